"""What every function asks of its tensors and factors, and how factors lose no small ones."""

import numbers
from collections.abc import Callable
from types import EllipsisType

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._dtypes import PACKED
from pullback.internal.torch import graph_break, is_exporting, is_functorch_wrapped_tensor

__all__ = [
    "Factor",
    "can_look_into",
    "check_device",
    "check_factor",
    "check_fits",
    "check_floating",
    "check_number",
    "check_strided",
    "check_tensor",
    "multiply",
    "widen",
]


def check_strided(tensor: Tensor, function: str, name: str = "x") -> None:
    """Refuse by name what is no tensor, or a sparse, nested or quantised one."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(
            f"{function}: {name} is not a tensor.",
            given=f"{name} of type {type(tensor).__name__}",
            expected="a torch.Tensor",
        )
    if tensor.is_quantized:
        raise UnsupportedError(
            f"{function} does not take quantised tensors.",
            given=f"{name} of dtype {tensor.dtype}",
            mend=f"Pass the values that it stands for: {name}.dequantize().",
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
    if not _is_inexact(tensor):
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


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


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
        # Nor ``in (1, size)``: it says no for a number and a symbol that are equal.
        fits = fits and (shape[-last] == 1 or shape[-last] == target[-last])
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


def refuse_export(function: str, exports: Callable[[], bool] = is_exporting) -> None:
    """Refuse to be exported with a gradient: torch.export keeps the value alone, silently.

    Measured on torch 2.13: a program exported through an autograd Function differentiates the
    operations of its forward, so that the shaped gradient is lost without a word. What was
    compiled before this was asked has `is_known_to_export` asked, so that torch 2.7 compiles it.
    """
    if exports() and torch.is_grad_enabled():
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


_SYMBOLIC = (torch.SymFloat, torch.SymInt)

Factor = float | complex | Tensor
"""A factor: a number, or a tensor that broadcasts to the scaled one."""

AllowNan = bool | EllipsisType
"""Whether NaN and infinity are taken; ``...`` where a function does not take this argument."""


def check_factor(
    factor: Factor,
    x: Tensor | None,
    function: str,
    name: str = "factor",
    allow_nan: AllowNan = ...,
) -> Factor:
    """Return a factor that is fit to be multiplied, in float32 or wider.

    There is no ``x`` yet while a module is constructed. Whether a tensor's values are finite is
    looked at only where that waits for nothing: on the CPU, outside of tracing and of torch.func.
    """
    if not isinstance(allow_nan, (bool, EllipsisType)):
        raise ArgumentTypeError(
            f"{function}: allow_nan is not True or False.", given=f"allow_nan={allow_nan!r}"
        )
    if type(factor) is float and x is not None:  # the common case, kept short
        if allow_nan is not True and factor - factor != 0.0:
            _refuse_non_finite(factor, function, name, allow_nan)
        return factor
    if isinstance(factor, Tensor):
        return _check_tensor_factor(factor, x, function, name, allow_nan)
    expected = "a number, or a tensor that broadcasts to x"
    number = check_number(factor, function, name, allow_nan, expected)
    if isinstance(number, complex) and x is not None and not x.is_complex():
        _refuse_complex(factor, function, name)
    return number


def check_number(
    number: object,
    function: str,
    name: str,
    allow_nan: AllowNan = ...,
    expected: str = "a number",
) -> float | complex:
    """Return a plain number, or refuse what is none, NaN or infinite."""
    if isinstance(number, bool) or not isinstance(number, (numbers.Number, *_SYMBOLIC)):
        raise ArgumentTypeError(
            f"{function}: {name} is of no type that can be used.",
            given=f"{name}={number!r}",
            expected=expected,
            mend=f"Pass {name}.item()." if isinstance(number, Tensor) else None,
        )
    if isinstance(number, _SYMBOLIC):
        return number  # type: ignore[return-value]  # traced numbers act as numbers
    try:
        plain = complex(number) if isinstance(number, complex) else float(number)  # type: ignore[arg-type]
    except OverflowError as error:
        raise ArgumentError(
            f"{function}: {name} is larger than any floating number.",
            given=f"{name} of type {type(number).__name__}, beyond 1.8e308",
        ) from error
    if allow_nan is not True and plain - plain != 0.0:
        _refuse_non_finite(number, function, name, allow_nan)
    return plain


def _check_tensor_factor(
    factor: Tensor, x: Tensor | None, function: str, name: str, allow_nan: AllowNan
) -> Tensor:
    check_strided(factor, function, name)
    if factor.dtype == torch.bool or factor.is_quantized:
        raise ArgumentTypeError(
            f"{function}: {name} is not numeric.",
            given=f"{name} of dtype {factor.dtype}",
            expected="a floating, complex or integer dtype",
            mend="To choose where a gradient flows, use where_gradient(x, mask).",
        )
    if x is not None:
        if factor.is_complex() and not x.is_complex():
            _refuse_complex(factor.dtype, function, name)
        check_broadcast(factor.shape, x.shape, function, name)
        if factor.ndim or factor.device.type != "cpu":
            check_device(factor, x, function, name)
    if allow_nan is not True and can_look_into(factor) and not bool(torch.isfinite(factor).all()):
        _refuse_non_finite("a tensor with NaN or infinite values", function, name, allow_nan)
    if x is not None and x.dtype in (torch.float64, torch.complex128) and not _is_inexact(factor):
        return factor.to(torch.float64)  # float32 has no 16,777,217
    return widen(factor)


def can_look_into(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read without waiting, tracing or batching."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not is_functorch_wrapped_tensor(tensor)
    )


def _refuse_non_finite(factor: object, function: str, name: str, allow_nan: AllowNan) -> None:
    raise ArgumentError(
        f"{function}: {name} is NaN or infinite.",
        given=f"{name}={factor!r}",
        expected="finite values",
        mend=None if allow_nan is ... else "Pass allow_nan=True if that is meant.",
    )


def _refuse_complex(factor: object, function: str, name: str) -> None:
    raise ArgumentTypeError(
        f"{function}: {name} is complex and x is real, whose gradient is real too.",
        given=f"{name}={factor!r}",
        expected="a real factor for a real x",
        mend=f"Pass {name}.real, or a complex x.",
    )


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or wider, so that a factor of 1e-9 does not become 0."""
    dtype = _wide_dtype(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.complex32:
        return torch.complex64
    if dtype.itemsize == 1 and dtype.is_floating_point:  # float8 promotes with nothing
        return torch.float32
    return torch.promote_types(dtype, torch.float32)


def multiply(tensor: Tensor, factor: Factor) -> Tensor:
    """Return ``tensor * factor``, computed in float32 or wider, in the tensor's dtype.

    One kernel where the dtypes agree. A half-precision tensor times a number is one kernel too:
    torch multiplies it in float32.
    """
    dtype = tensor.dtype
    if not isinstance(factor, Tensor):
        if dtype.itemsize == 1 or dtype == torch.complex32:
            return (widen(tensor) * factor).to(dtype)
        return tensor * factor
    wide = torch.promote_types(_wide_dtype(dtype), factor.dtype)
    if wide == dtype:
        return tensor * factor
    return (tensor.to(wide) * factor).to(dtype)
