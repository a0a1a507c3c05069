"""What every function of this room asks of its tensors, before any work."""

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._dtypes import PACKED
from pullback.internal.torch import graph_break, is_exporting

__all__ = [
    "check_broadcast",
    "check_device",
    "check_fits",
    "check_floating",
    "check_strided",
    "check_tensor",
    "refuse_export",
]


def check_strided(tensor: Tensor, function: str, name: str = "x") -> None:
    """Refuse by name what is no tensor, or a sparse or nested one."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(
            f"{function}: {name} is not a tensor.",
            given=f"{name} of type {type(tensor).__name__}",
            expected="a torch.Tensor",
        )
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise UnsupportedError(
            f"{function} does not take {kind} tensors.",
            given=f"{name} with layout {tensor.layout}",
            expected="a strided tensor",
            mend="Pass its values, and build it from them: x.coalesce().values() of a sparse, "
            "x.values() of a nested tensor.",
        )


def check_floating(tensor: Tensor, function: str, name: str = "x") -> None:
    """Refuse by name what holds no real or complex numbers, each an element."""
    check_strided(tensor, function, name)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ArgumentTypeError(
            f"{function}: {name} is not floating or complex.",
            given=f"{name} of dtype {tensor.dtype}",
            expected="a floating or complex dtype",
            mend=f"Convert it first: {name}.float().",
        )
    if tensor.dtype in PACKED:
        raise UnsupportedError(
            f"{function} does not take tensors that pack two values in one element.",
            given=f"{name} of dtype {tensor.dtype}",
            mend="Unpack it to a floating dtype first.",
        )


def check_tensor(tensor: Tensor, function: str, name: str = "x") -> None:
    """Refuse by name what cannot carry a gradient: non-tensors, integers, sparse and nested."""
    check_floating(tensor, function, name)
    refuse_export(function)


def check_fits(tensor: Tensor, x: Tensor, function: str, name: str) -> None:
    """Refuse what lies on another device than ``x``, or would enlarge it by broadcasting."""
    check_broadcast(tensor.shape, x.shape, function, name)
    check_device(tensor, x, function, name)


def check_broadcast(shape: torch.Size, target: torch.Size, function: str, name: str) -> None:
    """Refuse a shape that does not broadcast to the target without enlarging it."""
    fits = len(shape) <= len(target)
    for last in range(1, len(shape) + 1):  # Dynamo of torch 2.9 can trace neither all() nor zip()
        fits = fits and shape[-last] in (1, target[-last])
    if not fits:
        raise ArgumentError(
            f"{function}: {name} does not broadcast to the shape of x.",
            given=f"{name} of shape {tuple(shape)} for x of shape {tuple(target)}",
            expected="each size, from the last, 1 or that of x, and no more dimensions than x",
        )


def check_device(tensor: Tensor, x: Tensor, function: str, name: str, to: str = "x") -> None:
    """Refuse tensors on two devices."""
    if tensor.device != x.device:
        raise ArgumentError(
            f"{function}: {name} and {to} are on different devices.",
            given=f"{name} on {tensor.device}, {to} on {x.device}",
            mend=f"Pass {name}.to({to}.device).",
        )


def refuse_export(function: str) -> None:
    """Refuse to be exported with a gradient: torch.export keeps the value alone, silently.

    Measured on torch 2.13: a program exported through an autograd Function differentiates the
    operations of its forward, so that the shaped gradient is lost without a word.
    """
    if is_exporting() and torch.is_grad_enabled():
        if torch.compiler.is_dynamo_compiling():
            # An exception of ours cannot be raised while Dynamo traces (strict=True); this can.
            graph_break(f"{function} cannot be exported with its gradient")
        raise UnsupportedError(
            f"{function} cannot be exported with its gradient.",
            given="torch.export, which keeps the value of a custom function and drops its gradient",
            expected="an export for inference",
            mend="Export under torch.no_grad(), where the value alone is meant; "
            "to train, use the module itself or torch.compile.",
        )
