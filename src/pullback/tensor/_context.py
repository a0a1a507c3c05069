"""`Context`: what the author of a Function calls ``ctx``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pullback.errors import DefinitionError

__all__ = ["Context", "Declared"]


class Declared:
    """What a rule has declared on its context, apart from the attributes that it sets."""

    __slots__ = (
        "by_argument",
        "dirty",
        "materialize",
        "needs",
        "non_differentiable",
        "output_grad_dtypes",
        "saved_for_backward",
        "saved_for_forward",
    )

    def __init__(
        self,
        needs: Sequence[bool],
        by_argument: Callable[[Sequence[bool]], tuple[bool, ...]],
        saved: tuple[torch.Tensor | None, ...],
    ) -> None:
        self.needs = needs
        self.by_argument = by_argument
        self.saved_for_backward = saved
        self.saved_for_forward: tuple[torch.Tensor | None, ...] = ()
        self.dirty: tuple[torch.Tensor, ...] = ()
        self.non_differentiable: tuple[torch.Tensor, ...] = ()
        self.materialize = True
        self.output_grad_dtypes: tuple[torch.dtype | None, ...] | None = None


class Context:
    """Carries values from forward to backward and jvp.

    Arguments:
        needs: for each input tensor, whether its gradient is wanted.
        by_argument: groups such flags by argument of forward.
        saved: the saved tensors, when the context is rebuilt for backward or jvp.

    Any attribute may be set on it. Tensors among them are saved as `save_for_backward` saves
    them, so that nothing leaks and a later change in place is noticed.
    """

    # A name of its own class: no attribute that an author sets can meet it.
    __slots__ = ("__declared", "__dict__", "__weakref__")

    def __init__(
        self,
        needs: Sequence[bool],
        by_argument: Callable[[Sequence[bool]], tuple[bool, ...]],
        saved: tuple[torch.Tensor | None, ...] = (),
    ) -> None:
        self.__declared = Declared(needs, by_argument, saved)

    if TYPE_CHECKING:  # any attribute may be set on it, which a type checker must be told

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @staticmethod
    def declared(context: "Context") -> Declared:
        """What the rules have declared on a context."""
        return context.__declared

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument of forward, whether its gradient is wanted."""
        declared = self.__declared
        return declared.by_argument(declared.needs)

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for backward; they are returned by `saved_tensors`."""
        self.__declared.saved_for_backward = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for jvp; they are returned by `saved_tensors` there."""
        self.__declared.saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were saved, in the order they were saved in."""
        return self.__declared.saved_for_backward

    @property
    def saved_for_forward(self) -> tuple[Any, ...]:
        """The tensors that were saved for jvp."""
        declared = self.__declared
        return declared.saved_for_forward or declared.saved_for_backward

    # The older name of saved_tensors, which published Functions still use.
    saved_variables = saved_tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Declare inputs that forward changes in place; each must be returned."""
        self.__declared.dirty = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Declare outputs that carry no gradient."""
        self.__declared.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether undefined cotangents reach backward as zeros (default) or None."""
        self.__declared.materialize = value

    def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> None:
        """Choose the dtype of the cotangent of each output; ``None`` takes it as it comes.

        From torch 2.14 on, where torch hands it over unrounded.
        """
        if self.__declared.output_grad_dtypes is not None:
            raise DefinitionError("set_output_grad_dtype is called more than once.")
        self.__declared.output_grad_dtypes = dtypes

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """For each argument of forward ``None``: what is derived never accumulates in place."""
        return (None,) * len(self.needs_input_grad)
