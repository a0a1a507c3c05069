"""Arithmetic on Variables: one table of operations, with the rule of each of their inputs.

The derivative of a number by a number is a number, its own transpose: so one rule,
``rule(change, *saved)``, pulls a gradient back to an input and pushes a tangent of it on. Reverse
and forward mode follow from it, and since it is written in these operations, so does every order.

Values follow IEEE 754 as torch's do: a division by zero is an infinity, not an error. Whole
numbers are Python's own, and one that is too large for a float is refused where it meets one.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape._function import Function
from pullback.tape._layout import batch_in
from pullback.tape._mode import mode
from pullback.tape._registry import OPERATIONS, space_of
from pullback.tape._spaces import NUMBER, TEXT, Concatenate
from pullback.tape._variable import Variable, data_of, describe, wrap

__all__ = ["cos", "exp", "log", "sin", "sqrt", "tanh"]

Rule = Callable[..., Any]


def _operation(
    verb: str, value: Callable[..., Any], *rules: Rule, linear: str = "", saves: str = "inputs"
) -> Callable[..., Any]:
    """The operation of one row of the table; tests hold its rules to torch's.

    A rule is given a gradient or tangent, and what is saved: the ``"inputs"`` or the ``"output"``;
    a sum or difference saves nothing. What it is linear in: see `Definition`.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        output = wrap(value(*[a._data if isinstance(a, Variable) else a for a in args]))
        if saves == "output":
            ctx.save_for_backward(output)
        elif linear != "jointly":
            ctx.save_for_backward(*args)
        return output

    first, last, unary = rules[0], rules[-1], len(rules) == 1

    def backward(ctx: Any, g: Any) -> Any:
        saved = ctx.saved_variables
        if unary:
            return first(g, *saved)
        need_a, need_b = ctx.needs_input_grad
        return first(g, *saved) if need_a else None, last(g, *saved) if need_b else None

    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = ctx.saved_variables
        changes = zip(rules, tangents, ctx.needs_input_grad, strict=True)
        parts = [rule(change, *saved) for rule, change, there in changes if there]
        return functools.reduce(operator.add, parts)

    body = {
        "_trusted": True, "_linear": linear, "forward": staticmethod(forward),
        "backward": staticmethod(backward), "jvp": staticmethod(jvp),
    }  # fmt: skip
    function = type(verb.capitalize(), (Function,), body)
    operate = (_unary if unary else _binary)(verb, function, value)
    OPERATIONS[verb] = operate
    return operate


def _binary(verb: str, function: Any, value: Any) -> Callable[[Any, Any], Any]:
    def operate(a: Any, b: Any) -> Any:
        x = a._data if isinstance(a, Variable) else a
        y = b._data if isinstance(b, Variable) else b
        kind, other = type(x), type(y)
        try:
            if not ((kind is float or kind is int) and (other is float or other is int)):
                return _other_kinds(verb, function, a, b)
            now = mode.get()
            if now.grad or now.watch is not None:
                return function.apply(a, b)
            return wrap(value(x, y))  # neither recorded nor watched: no need of a Function
        except OverflowError:
            raise _too_large(verb, a, b) from None

    return operate


def _unary(verb: str, function: Any, value: Any) -> Callable[[Any], Any]:
    def operate(a: Any) -> Any:
        try:
            return _other_kinds(verb, function, a if isinstance(a, Variable) else Variable(a))
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


def _other_kinds(verb: str, function: type[Function], *values: Any) -> Any:
    """An operation whatever its values are: batches, numbers, tensors, or two to concatenate."""
    batch = batch_in(value for value in values if isinstance(value, Variable))
    if batch is not None:
        return batch.lift(OPERATIONS[verb], values)
    spaces = [space_of(data_of(value)) for value in values]
    if all(space is NUMBER for space in spaces):
        return function.apply(*values)
    for space in spaces:
        operation = getattr(space, "operation", None)
        if operation is not None:
            return operation(verb, *values)
    first, last = values[0], values[-1]
    sequences = type(data_of(first)) is type(data_of(last)) and isinstance(
        data_of(first), list | tuple
    )
    if verb == "add" and (sequences or spaces[0] is spaces[1] is TEXT):
        return Concatenate.apply(first, last)
    raise ArgumentTypeError(
        f"The tape has no {verb} for a {' and a '.join(space.name for space in spaces)}.",
        given=" and ".join(describe(v) if isinstance(v, Variable) else repr(v) for v in values),
        expected="numbers or tensors; for add also two texts or two lists",
        mend="Write a Function for it.",
    )


def _too_large(verb: str, *values: Any) -> ArgumentError:
    return ArgumentError(
        f"A whole number is too large for a float in {verb}.",
        given=" and ".join(f"{data_of(value)!r:.40}" for value in values),
        mend="Make it a float, or keep to whole numbers.",
    )


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
        a, b = float(a), float(b)  # a whole number may be too large: that is no infinity
        if a < 0 and b != int(b):
            return math.nan
        return -math.inf if a < 0 and int(b) % 2 == 1 else math.inf
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


def _base(change: Any, a: Any, b: Any) -> Any:
    """d(a^b) = b a^(b-1) da, zero where b is zero, as in torch; but that b may change is kept."""
    zero = data_of(b) == 0
    if zero and not (isinstance(b, Variable) and b._requires_grad):
        return wrap(0.0)
    slope = b * _power(a, b - 1)
    return wrap(0.0) if zero and math.isnan(slope._data) else change * slope


def _exponent(change: Any, a: Any, b: Any) -> Any:
    """d(a^b) = a^b log(a) db, zero where a is zero and b is not negative, as in torch."""
    if data_of(a) == 0 and data_of(b) >= 0:
        return wrap(0.0)
    return change * (_power(a, b) * log(a if isinstance(a, Variable) else wrap(a)))


def _magnitude(change: Any, a: Any) -> Any:
    """The slope of the magnitude at zero is zero, as in torch."""
    return change * ((a._data > 0) - (a._data < 0))


_operation("add", operator.add, lambda c: c, lambda c: c, linear="jointly")
_operation("subtract", operator.sub, lambda c: c, lambda c: -c, linear="jointly")
_operation("negative", operator.neg, lambda c: -c, linear="jointly")
_operation("multiply", operator.mul, lambda c, a, b: c * b, lambda c, a, b: c * a, linear="each")
_operation(
    "divide", divide, lambda c, a, b: c / b, lambda c, a, b: -c * ((a / b) / b), linear="first"
)
_power = _operation("power", power, _base, _exponent)
_operation("absolute", abs, _magnitude)
exp = _operation("exp", _limited(math.exp), lambda c, y: c * y, saves="output")
log = _operation("log", _limited(math.log), lambda c, a: c * (1 / a))
sin = _operation("sin", _limited(math.sin), lambda c, a: c * cos(a))
cos = _operation("cos", _limited(math.cos), lambda c, a: c * -sin(a))
tanh = _operation("tanh", math.tanh, lambda c, y: c * (1 - y * y), saves="output")
sqrt = _operation("sqrt", _limited(math.sqrt), lambda c, y: c * (1 / (2 * y)), saves="output")
