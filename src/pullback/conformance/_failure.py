"""Tell an error that clearly says "not supported" from one that does not."""

import re

from pullback.errors import PullbackError
from pullback.report import Verdict

__all__ = ["classify", "describe"]

# What torch, numpy and careful authors write when they refuse something by name. Kept as one list
# so that a message that is judged wrongly can be mended in one place.
_REFUSALS = re.compile(
    r"""
      not\ (yet\ )?(currently\ )?support | unsupported(?!\ operand)
    | (does|do|did)(n't|\ not)\ (yet\ )?support
    | not\ (yet\ |been\ )?implement | must\ (override|implement|be\ implemented)
    | no\ support\ for | vmap\ support | vmap: | setup_context | only\ support | is\ disabled
    | (must|should|needs?\ to|has\ to|expect\w*\ to)\ be\ (\w+\ )?contiguous | not\ contiguous
    | at\ least\ one\ stride | size\ and\ stride | differentiate\ twice | once_differentiable
    | modified\ by\ an\ inplace | view\ and\ is\ being\ modified | is\ not\ allowed
    | no\ storage | have\ storage | storage\ that | data\ pointer | is\ refused
    | cannot\ be\ used\ with
    | cannot\ (compute|be\ computed|take|handle|support)
    | cannot\ be\ (differentiated|batched|traced|compiled|derived|transposed)
    | takes\ no\ keyword\ arguments | data.dependent | does\ not\ require\ grad
    | must\ be\ (a\ )?(float|complex|real|double|half)\w* | not\ differentiable
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Raised by the interpreter when code runs into what nobody foresaw, whatever the text says.
_UNFORESEEN = (AttributeError, LookupError, NameError, ArithmeticError, MemoryError, TimeoutError)
_REFUSING_TYPES = {
    "Unsupported",
    "UserError",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "GuardOnDataDependentSymNode",
}


def classify(error: BaseException) -> Verdict:
    """``lacking`` for an error that names what is not supported, ``crashes`` for any other.

    Arguments:
        error: what the checked code raised.

    Returns:
        `Verdict.LACKING` or `Verdict.CRASHES`.

    Example:
        >>> classify(NotImplementedError("You must implement the jvp function.")).value
        'lacking'
        >>> classify(AttributeError("'NoneType' object has no attribute 'clone'")).value
        'crashes'
    """
    if isinstance(error, (NotImplementedError, PullbackError)):
        return Verdict.LACKING
    if isinstance(error, _UNFORESEEN):
        return Verdict.CRASHES
    if type(error).__name__ in _REFUSING_TYPES or _REFUSALS.search(str(error)):
        return Verdict.LACKING
    return Verdict.CRASHES


def describe(error: BaseException, limit: int = 240) -> str:
    r"""The type and the first lines of an error, on one line.

    Example:
        >>> describe(ValueError("no such\n  value"))
        'ValueError: no such value'
    """
    text = " ".join(str(error).split())
    short = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
