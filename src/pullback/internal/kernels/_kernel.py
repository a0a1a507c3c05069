"""A kernel that is an operator of torch's where something watches, and a plain call elsewhere.

And its `vmap`: the mapped dimension becomes a part of the batch that it has already.
"""

from collections.abc import Callable
from typing import Any, Generic, Never, ParamSpec, TypeVar

import torch

from pullback.errors import UnsupportedError
from pullback.internal.kernels._backend import is_plain
from pullback.internal.torch import are_functorch_transforms_active, is_known_to_export

__all__ = [
    "Kernel",
    "apply_rules",
    "broadcast_batch",
    "broadcast_shapes",
    "fold_batch",
    "register_kernel",
]

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Generic[P, R]):
    """A function of tensors, and the operator of `torch.library` that stands for it in graphs.

    The first call of such an operator imports torch's compiler, which takes 2 to 4 seconds, and
    each call costs some 20 microseconds. So the function is called itself unless a graph is traced,
    or a transform or a mode is active, which see operators only.

    Arguments:
        name: ``"namespace::operator"``.
        function: takes its arguments by position and mutates none of them.
    """

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._operator: Any = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self._operator.register_fake
        self.register_vmap = self._operator.register_vmap
        self._operator.register_autograd(self._refuse)
        self._name = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._function if is_plain(*args) else self._operator)(*args, **kwargs)

    def _refuse(self, ctx: Any, *cotangents: Any) -> Never:
        raise UnsupportedError(
            f"The operator {self._name} has no derivative of its own.",
            given="a program of torch.export, perhaps, which keeps the operator and drops the rule "
            "of differentiation around it",
            expected="an export for inference",
            mend="To train, use the function itself or torch.compile.",
        )


def register_kernel(name: str) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Return a decorator that makes a `Kernel` of a function.

    Example:
        >>> import torch
        >>> @register_kernel("pullback_example::double")
        ... def double(x: torch.Tensor) -> torch.Tensor:
        ...     return x + x
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """
    return lambda function: Kernel(name, function)


def apply_rules(function: Any, *inputs: Any) -> Any:
    """Apply a Function over a kernel, or in a program that Dynamo exports its forward alone.

    There (``strict=True``) torch keeps what forward does without gradients, and drops the rule, in
    silence. The operator alone refuses to be differentiated, and plain torch needs no rule.
    """
    exported = torch.compiler.is_dynamo_compiling() and is_known_to_export()
    if exported and not are_functorch_transforms_active():
        return function.forward(*inputs)
    return function.apply(*inputs)


def fold_batch(operator: Callable[..., Any], tensors: int) -> Callable[..., Any]:
    """Return the vmap rule of an operator of tensors ``[batch, ...]``.

    Arguments:
        operator: the operator; its outputs are all ``[batch, ...]``.
        tensors: how many tensors come first. The last of them holds coefficients, ``[1, ...]``
            for the whole batch or ``[batch, ...]``.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        moved = [
            arg.movedim(dim, 0) if dim is not None else arg.expand(size, *arg.shape)
            for arg, dim in zip(args[:tensors], in_dims[:tensors], strict=True)
        ]
        batch = moved[0].shape[1]
        weights = moved.pop()
        if in_dims[tensors - 1] is None and weights.shape[1] == 1:
            weights = args[tensors - 1]
        else:
            weights = weights.expand(size, batch, *weights.shape[2:]).flatten(0, 1)
        folded = [tensor.reshape(size * batch, *tensor.shape[2:]) for tensor in moved]
        outputs = operator(*folded, weights, *args[tensors:])
        unfolded = tuple(output.unflatten(0, (size, batch)) for output in outputs)
        return unfolded, (0,) * len(unfolded)

    return rule


def broadcast_batch(operator: Callable[..., Any], ranks: tuple[int, ...]) -> Callable[..., Any]:
    """Return the vmap rule of an operator of tensors ``[..., rank dimensions]``, all broadcast.

    Arguments:
        operator: the operator; its outputs have the common batch first.
        ranks: of the tensors, which come first, how many dimensions are none of the batch.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        mapped = list(zip(args, in_dims, ranks, strict=False))
        most = max(t.dim() - rank - (dim is not None) for t, dim, rank in mapped)
        tensors = []
        for tensor, dim, rank in mapped:
            first = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
            missing = most + rank - (first.dim() - 1)
            tensors.append(first.reshape(first.shape[0], *[1] * missing, *first.shape[1:]))
        # The first of all batches has every dimension of the others.
        tensors[0] = tensors[0].expand(info.batch_size, *tensors[0].shape[1:])
        found = operator(*tensors, *args[len(ranks) :])
        return found, 0 if not isinstance(found, tuple) else (0,) * len(found)

    return rule


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, whose first call imports symbolic algebra, for half a second.

    Where nothing watches, tensors without memory are broadcast instead.

    Raises:
        RuntimeError: the shapes cannot be broadcast.
    """
    if not is_plain():
        return torch.broadcast_shapes(*shapes)
    return torch.broadcast_tensors(*(torch.empty(s, device="meta") for s in shapes))[0].shape
