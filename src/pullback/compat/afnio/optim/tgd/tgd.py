"""`TGD`: textual gradient descent."""

from collections.abc import Callable, Iterable
from typing import Any

from pullback import text
from pullback.compat.afnio._client import as_lm
from pullback.compat.afnio.optim.optimizer import Optimizer
from pullback.tape._variable import data_of
from pullback.text.optim import Constraint, keeps_fields

__all__ = ["TGD"]


class TGD(text.optim.TGD, Optimizer):
    """Textual gradient descent: see `pullback.text.optim.TGD`.

    Arguments:
        params: parameters, or groups of them.
        model_client: rewrites the texts.
        constraints: what each new text must satisfy, in words.
        momentum: how many past versions are shown, with the feedback that they got.
        options: of `pullback.text.optim.TGD` and of the calls.

    Raises:
        TypeError: an argument is of another type.
    """

    def __init__(
        self,
        params: Iterable[Any],
        model_client: Any,
        *,
        constraints: Iterable[Any] = (),
        momentum: int = 0,
        **options: Any,
    ) -> None:
        lm, options = as_lm(model_client, options)
        listed = not isinstance(constraints, str)  # the characters of a text are no constraints
        told: Any = [data_of(each) for each in constraints] if listed else constraints
        super().__init__(params, lm, constraints=told, momentum=momentum, **options)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[bad-override]
        """Rewrite each text that has feedback; gives what ``closure`` gave."""
        result = None if closure is None else closure()
        super().step()
        return result

    def _kept(self, parameter: Any) -> Constraint | None:
        return keeps_fields(parameter.data) if "{" in parameter.data else None  # any is a template
