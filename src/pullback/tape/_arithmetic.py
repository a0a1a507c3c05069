"""Arithmetic on Variables: each operation a Function, its derivative written in operations.

Values follow IEEE 754 as torch's do: a division by zero is an infinity, not an error. Whole
numbers are Python's own, and one that is too large for a float is refused where it meets one.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape._function import Function
from pullback.tape._mode import mode
from pullback.tape._numbers import NUMBER
from pullback.tape._registry import OPERATIONS, space_of
from pullback.tape._spaces import TEXT
from pullback.tape._structures import Concatenate
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["cos", "exp", "log", "sin", "sqrt", "tanh"]


class _Number(Function):
    """A Function of numbers whose rules are known to be right; tests hold them to it.

    Backward is the one rule of a derivative: forward mode transposes it.
    """

    _trusted = True


class Add(_Number):
    """The sum of two numbers."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        return wrap(_value(a) + _value(b))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, g


class Subtract(_Number):
    """The difference of two numbers."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        return wrap(_value(a) - _value(b))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        need_a, need_b = ctx.needs_input_grad
        return g if need_a else None, -g if need_b else None


class Multiply(_Number):
    """The product of two numbers."""

    _linear = "each"

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return wrap(_value(a) * _value(b))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_variables
        need_a, need_b = ctx.needs_input_grad
        return g * b if need_a else None, g * a if need_b else None


class Divide(_Number):
    """The quotient of two numbers: d(a/b) = da/b - (a/b) db/b."""

    _linear = "first"

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return wrap(divide(_value(a), _value(b)))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_variables
        need_a, need_b = ctx.needs_input_grad
        return g / b if need_a else None, -g * ((a / b) / b) if need_b else None


class Power(_Number):
    """A number to a power: d(a^b) = b a^(b-1) da + a^b log(a) db.

    Where b is zero the first part is zero, and where a is zero and b is not negative so is the
    second, as in torch.
    """

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return wrap(power(_value(a), _value(b)))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_variables
        need_a, need_b = ctx.needs_input_grad
        return (
            g * _base_slope(a, b) if need_a else None,
            g * _exponent_slope(a, b) if need_b else None,
        )


def _base_slope(a: Any, b: Any) -> Any:
    return wrap(0.0) if _value(b) == 0 else b * _power(a, b - 1)


def _exponent_slope(a: Any, b: Any) -> Any:
    if _value(a) == 0 and _value(b) >= 0:
        return wrap(0.0)
    return _power(a, b) * log(a if isinstance(a, Variable) else wrap(a))


class Negative(_Number):
    """The number with the other sign."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return wrap(-a._data)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


class Absolute(_Number):
    """The magnitude of a number; its slope at zero is zero, as in torch."""

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        ctx.save_for_backward(a)
        return wrap(abs(a._data))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (a,) = ctx.saved_variables
        return g * ((a._data > 0) - (a._data < 0))


def _elementary(
    name: str, function: Callable[[float], float], slope: Callable[[Any, Any], Any]
) -> type[Function]:
    """A Function of one number; its slope is given from the number and the result."""

    def forward(ctx: Any, a: Any) -> Any:
        output = wrap(function(a._data))
        ctx.save_for_backward(a, output)
        return output

    def scaled(ctx: Any, g: Any) -> Any:
        return g * slope(*ctx.saved_variables)

    body: dict[str, Any] = {
        "__doc__": f"{name} of a number.",
        "forward": staticmethod(forward),
        "backward": staticmethod(scaled),
    }
    return type(name, (_Number,), body)


def divide(a: Any, b: Any) -> Any:
    """The quotient as IEEE 754 has it."""
    try:
        return a / b
    except ZeroDivisionError:
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)


def power(a: Any, b: Any) -> Any:
    """The power as IEEE 754 has it: not a number where it would be complex."""
    try:
        result = a**b
    except ZeroDivisionError:
        odd = b == int(b) and int(b) % 2 == 1
        return math.copysign(math.inf, a) if odd else math.inf
    except OverflowError:
        odd = b == int(b) and int(b) % 2 == 1
        return -math.inf if a < 0 and odd else math.inf
    return math.nan if isinstance(result, complex) else result


def _limited(function: Callable[[float], float]) -> Callable[[float], float]:
    """A function of math that gives infinities and no number where math raises."""

    def limited(a: float) -> float:
        a = float(a)  # a whole number may be too large: that is no infinity
        try:
            return function(a)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if function is math.log and a == 0 else math.nan

    return limited


Exp = _elementary("Exp", _limited(math.exp), lambda a, y: y)
Log = _elementary("Log", _limited(math.log), lambda a, y: 1 / a)
Sin = _elementary("Sin", _limited(math.sin), lambda a, y: cos(a))
Cos = _elementary("Cos", _limited(math.cos), lambda a, y: -sin(a))
Tanh = _elementary("Tanh", math.tanh, lambda a, y: 1 - y * y)
Sqrt = _elementary("Sqrt", _limited(math.sqrt), lambda a, y: 1 / (2 * y))


def _value(a: Any) -> Any:
    return a._data if isinstance(a, Variable) else a


def _binary(
    verb: str, function: type[Function], plain: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    def operate(a: Any, b: Any) -> Any:
        x = a._data if isinstance(a, Variable) else a
        y = b._data if isinstance(b, Variable) else b
        kind, other = type(x), type(y)
        if (kind is float or kind is int) and (other is float or other is int):
            now = mode.get()
            try:
                if now.grad:
                    return function.apply(a, b)
                if now.watch is not None:
                    now.watch.extend(
                        [v for v in (a, b) if isinstance(v, Variable) and v._requires_grad]
                    )
                return wrap(plain(x, y))  # not recorded: no need of a Function
            except OverflowError:
                raise _too_large(verb, a, b) from None
        return _other_kinds(verb, function, a, b)

    return operate


def _too_large(verb: str, *values: Any) -> ArgumentError:
    return ArgumentError(
        f"A whole number is too large for a float in {verb}.",
        given=" and ".join(f"{_value(value)!r:.40}" for value in values),
        mend="Make it a float, or keep to whole numbers.",
    )


def _other_kinds(verb: str, function: type[Function], a: Any, b: Any) -> Any:
    for value in (a, b):
        if isinstance(value, Variable) and value.batched:
            if verb != "add":
                return function.apply(a, b)
            return value.lift(OPERATIONS["add"], (a, b))  # type: ignore[missing-attribute]
    spaces = [space_of(_value(value)) for value in (a, b)]
    if all(space is NUMBER for space in spaces):
        return function.apply(a, b)
    for space in spaces:
        operation = getattr(space, "operation", None)
        if operation is not None:
            return operation(verb, a, b)
    if verb == "add" and (spaces[0] is spaces[1] is TEXT or _both_sequences(a, b)):
        return Concatenate.apply(a, b)
    raise ArgumentTypeError(
        f"The tape has no {verb} for a {spaces[0].name} and a {spaces[1].name}.",
        given=" and ".join(describe(v) if isinstance(v, Variable) else repr(v) for v in (a, b)),
        expected="two numbers or tensors; for add also two texts or two lists",
        mend="Write a Function for it.",
    )


def _both_sequences(a: Any, b: Any) -> bool:
    return type(_value(a)) is type(_value(b)) and isinstance(_value(a), list | tuple)


def _unary(verb: str, function: type[Function]) -> Callable[[Any], Any]:
    def operate(a: Any) -> Any:
        if not isinstance(a, Variable):
            a = Variable(a)
        space = NUMBER if a.batched else space_of(a._data)
        operation = getattr(space, "operation", None)
        if operation is not None:
            return operation(verb, a)
        if space is not NUMBER:
            raise ArgumentTypeError(
                f"The tape has no {verb} of a {space.name}.", given=describe(a),
                expected="a number or a tensor",
            )  # fmt: skip
        try:
            return function.apply(a)
        except OverflowError:
            raise _too_large(verb, a) from None

    operate.__name__ = verb
    operate.__doc__ = (
        f"The {verb} of a number or tensor Variable.\n\n    Raises:\n"
        f"        ArgumentTypeError: it is neither.\n\n    Example:\n"
        f"        >>> {verb}(Variable(0.25)).data == math.{verb}(0.25)\n        True\n    "
        if hasattr(math, verb) else None
    )  # fmt: skip
    return operate


exp, log, sin = _unary("exp", Exp), _unary("log", Log), _unary("sin", Sin)
cos, tanh, sqrt = _unary("cos", Cos), _unary("tanh", Tanh), _unary("sqrt", Sqrt)
_power = _binary("power", Power, power)

OPERATIONS.update(
    add=_binary("add", Add, operator.add),
    subtract=_binary("subtract", Subtract, operator.sub),
    multiply=_binary("multiply", Multiply, operator.mul),
    divide=_binary("divide", Divide, divide),
    power=_power,
    negative=_unary("negative", Negative),
    absolute=_unary("absolute", Absolute),
)
