"""`Context`: what the author of a Function calls ``ctx``."""

from typing import Any

import torch

__all__ = ["Context"]


class Context:
    """Carries values from forward to backward and jvp.

    Arguments:
        needs_input_grad: one entry per argument of forward: whether its gradient is wanted.
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
        self, needs_input_grad: tuple[bool, ...], saved: tuple[torch.Tensor | None, ...] = ()
    ) -> None:
        self.needs_input_grad = needs_input_grad
        if saved:
            self._saved_for_backward = saved

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


INTERNAL = frozenset({"needs_input_grad", *(n for n in vars(Context) if n.startswith("_"))})
