"""What a type checker must know so that ``apply`` takes what ``forward`` takes."""

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    from pullback.tensor._context import Context

    class _AnyContext(Context, FunctionCtx):  # type: ignore[misc]
        """Fits a first parameter that is annotated as either context, and no tensor."""


__all__ = ["CombinedForm", "SplitForm"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class CombinedForm(Protocol[P, R_co]):
    """A Function whose forward takes the context first."""

    @staticmethod
    def forward(ctx: "_AnyContext", /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The author's rule."""
        ...


class SplitForm(Protocol[P, R_co]):
    """A Function whose forward takes the arguments alone."""

    @staticmethod
    def forward(*args: P.args, **kwargs: P.kwargs) -> R_co:
        """The author's rule."""
        ...
