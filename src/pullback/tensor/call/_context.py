"""`Context`: what the author of a Function calls ``ctx``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pullback.errors import DefinitionError

__all__ = ["Context"]


_base: Any = torch.autograd.function.FunctionCtx  # whose own annotations are of a context in C++


class Context(_base):
    """Carries values from forward to backward and jvp, where the engine runs the rules.

    It has the methods of torch's own context, and keeps what they declare under torch's names.

    Arguments:
        needs_input_grad: for each argument of forward, whether its gradient is wanted.
        saved: the saved tensors, when the context is rebuilt for backward or jvp.

    Any attribute may be set on it. Tensors among them are saved as `save_for_backward` saves
    them, so that nothing leaks and a later change in place is noticed.
    """

    # As slots, they are apart from the attributes that an author sets.
    __slots__ = (
        "dirty_tensors",
        "materialize_grads",
        "needs_input_grad",
        "non_differentiable",
        "output_grad_dtypes",
        "saved_for_forward",
        "saved_tensors",
        "to_save",
    )

    __dict__: dict[str, Any]
    needs_input_grad: tuple[bool, ...]
    output_grad_dtypes: tuple[torch.dtype | None, ...] | None
    saved_tensors: tuple[Any, ...]

    def __init__(
        self, needs_input_grad: tuple[bool, ...], saved: Sequence[torch.Tensor | None] = ()
    ) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors = self.saved_for_forward = tuple(saved)
        self.to_save = self.dirty_tensors = self.non_differentiable = ()
        self.materialize_grads, self.output_grad_dtypes = True, None

    if TYPE_CHECKING:  # any attribute may be set on it, which a type checker must be told

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The older name of `saved_tensors`, which published Functions still use."""
        return self.saved_tensors

    def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> None:
        """Choose the dtype of the cotangent of each output; ``None`` takes it as it comes.

        From torch 2.14 on, where torch hands it over unrounded.
        """
        if self.output_grad_dtypes is not None:
            raise DefinitionError("set_output_grad_dtype is called more than once.")
        self.output_grad_dtypes = dtypes

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """For each argument of forward ``None``: what is derived never accumulates in place."""
        return (None,) * len(self.needs_input_grad)
