"""Tensors on the tape, and the two bridges between its graphs and torch's.

Imported when the first tensor is seen, or by name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from pullback.tape._layout import batch_in
from pullback.tape._mode import mode
from pullback.tape._registry import Space, register_space
from pullback.tape._variable import Variable, wrap

try:
    import torch
except ModuleNotFoundError as error:
    what = "pullback.tape.tensor needs the package torch, which is not installed."
    raise MissingExtraError(what, mend="pip install 'pullback[tensor]'") from error

from pullback.internal.torch import version_of
from pullback.tape._bridges import from_torch, refuse_derivative, to_torch

__all__ = ["TensorSpace", "call", "from_torch", "to_torch"]


class TensorSpace(Space):
    """Tensors of one shape, dtype and device."""

    name = "tensor"

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.differentiable = tensor.is_floating_point() or tensor.is_complex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpace) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.device))

    def __repr__(self) -> str:
        return f"tensor {list(self.shape)}"

    def zero(self) -> Any:
        return wrap(torch.zeros(self.shape, dtype=self.dtype, device=self.device))

    def total(self, gradients: Sequence[Any]) -> Any:
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        return total

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        if not isinstance(gradient, Variable) or not isinstance(gradient._data, torch.Tensor):
            raise complain(f"a tensor Variable was expected, {type(gradient).__name__} was given")
        data = gradient._data
        if data.shape != self.shape:
            try:
                return call(lambda g: g.sum_to_size(self.shape), gradient)
            except RuntimeError:
                shapes = f"{tuple(self.shape)} was expected, {tuple(data.shape)} was given"
                raise complain(f"a tensor of the shape {shapes}") from None
        if data.dtype != self.dtype or data.device != self.device:
            return call(lambda g: g.to(dtype=self.dtype, device=self.device), gradient)
        return gradient

    def seed(self) -> Any:
        return None if self.shape.numel() != 1 else wrap(torch.ones_like(self.zero()._data))

    def inner(self, gradient: Any, tangent: Any) -> Any:
        # Of complex tensors torch's gradient is the conjugate one, so the pairing is Re <g, t>.
        return call(lambda g, t: (g.conj() * t).sum().real, gradient, tangent, number=True)

    def copied(self, data: Any) -> Any:
        return data.clone()

    def stamp(self, data: Any) -> Any:
        return id(data), version_of(data)

    def operation(self, verb: str, *values: Any) -> Variable:
        """An operation of torch on Variables."""
        return call(_VERBS[verb], *values)


_VERBS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.true_divide,
    "power": torch.pow, "negative": torch.neg, "absolute": torch.abs, "exp": torch.exp,
    "log": torch.log, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "item": lambda tensor, key: tensor[key],
}  # fmt: skip


def _space(tensor: torch.Tensor) -> Space:
    refuse_derivative(tensor)
    if tensor.requires_grad:
        raise ArgumentError(
            "A tensor with a history in torch's graph was put into a Variable, where its gradient "
            "would be lost.",
            given=f"shape {tuple(tensor.shape)}, grad_fn {tensor.grad_fn!r}",
            mend="Use from_torch(tensor), or tensor.detach() if it is a constant.",
        )
    return TensorSpace(tensor)


register_space(torch.Tensor, _space)


def call(function: Callable[..., torch.Tensor], *values: Any, number: bool = False) -> Variable:
    """Call a function of tensors on Variables; exact to any order, as torch is.

    Arguments:
        function: takes tensors, gives one tensor.
        values: Variables of tensors or numbers, or plain values.
        number: whether the result is a number rather than a tensor.

    Example:
        >>> x = Variable(torch.tensor([1.0, 2.0]), requires_grad=True)
        >>> call(torch.sum, x * x).backward()
        >>> x.grad.data
        tensor([2., 4.])
    """
    batch = batch_in(value for value in values if isinstance(value, Variable))
    if batch is not None:
        return batch.lift(functools.partial(call, function, number=number), values)
    with torch.set_grad_enabled(mode.get().grad):
        tensors = [to_torch(value) if isinstance(value, Variable) else value for value in values]
        result = function(*tensors)
    if not isinstance(result, torch.Tensor):
        raise ArgumentTypeError(
            "The function given to call returned no tensor.", given=type(result).__name__
        )
    return from_torch(result, number=number)
