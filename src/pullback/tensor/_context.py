"""`Context`: what the author of a Function calls ``ctx``."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Context"]


class Context:
    """Carries values from forward to backward and jvp.

    Arguments:
        needs: for each input tensor, whether its gradient is wanted.
        by_argument: groups such flags by argument of forward.
        saved: the saved tensors, when the context is rebuilt for backward or jvp.

    Any attribute may be set on it. Tensors among them are saved as `save_for_backward` saves
    them, so that nothing leaks and a later change in place is noticed.
    """

    # Class defaults, so that making a context costs nothing for what is not used.
    _saved_for_backward: tuple[torch.Tensor | None, ...] = ()
    _saved_for_forward: tuple[torch.Tensor | None, ...] = ()
    _dirty: tuple[torch.Tensor, ...] = ()
    _non_differentiable: tuple[torch.Tensor, ...] = ()
    _materialize: bool = True

    def __init__(
        self,
        needs: Sequence[bool],
        by_argument: Callable[[Sequence[bool]], tuple[bool, ...]],
        saved: tuple[torch.Tensor | None, ...] = (),
    ) -> None:
        self._needs = needs
        self._by_argument = by_argument
        if saved:
            self._saved_for_backward = saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument of forward, whether its gradient is wanted."""
        return self._by_argument(self._needs)

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for backward; they are returned by `saved_tensors`."""
        self._saved_for_backward = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for jvp; they are returned by `saved_tensors` there."""
        self._saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were saved, in the order they were saved in."""
        return self._saved_for_backward

    @property
    def saved_for_forward(self) -> tuple[Any, ...]:
        """The tensors that were saved for jvp."""
        return self._saved_for_forward or self._saved_for_backward

    # The older name of saved_tensors, which published Functions still use.
    saved_variables = saved_tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Declare inputs that forward changes in place; each must be returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Declare outputs that carry no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether undefined cotangents reach backward as zeros (default) or None."""
        self._materialize = value


INTERNAL = frozenset(
    {"_needs", "_by_argument", *(name for name in vars(Context) if name.startswith("_"))}
)
