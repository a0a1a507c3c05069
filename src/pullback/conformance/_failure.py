"""Tell an error that clearly says "not supported" from one that does not.

What plain forward and plain backward do is known before any clause runs. An error that comes up
only with a transform is a refusal where somebody raised it on purpose: the author by a ``raise``
of their own, or torch, whose transforms refuse what they cannot follow. It is a crash where code
ran into what nobody foresaw, and where other numbers or precisions of the very same call fail in
backward although forward took them, and where a rule fails that the author wrote for the transform
itself. The words of a message decide nothing.
"""

import dis
import os
from collections.abc import Iterable, Iterator
from types import CodeType, TracebackType
from typing import Any

import torch

from pullback.errors import PullbackError
from pullback.internal import torch as internal
from pullback.report import Verdict

__all__ = ["NoForward", "OnceOnly", "classify", "describe", "is_from_within", "is_raised_in"]

# Raised by the interpreter when code runs into what nobody foresaw.
_UNFORESEEN = (AttributeError, LookupError, NameError, ArithmeticError, MemoryError, TimeoutError)
_REFUSING_TYPES = {
    "Unsupported",
    "UserError",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "GuardOnDataDependentSymNode",
}
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
# The method of `Probe` that calls the subject.
_CALL = "call_subject"
_LAYER = internal.__file__
# What torch itself calls its own fault is no refusal.
_FAULT = "INTERNAL ASSERT FAILED"
# The rules that an author writes for one transform, by their own name, or by that of the function
# of torch that calls them: an error inside is no refusal.
_RULES = {"vmap", "jvp"}
_CALLERS = {"custom_function_call_vmap_helper", "apply_jvp", "fake_impl"}
_REGISTERED = (torch.library.__file__, os.path.join("_library", "fake_impl.py"))


class NoForward(Exception):
    """A plain forward that fails, by its own code."""


class OnceOnly(Exception):
    """A function that a second call with the same arguments fails."""


def classify(error: BaseException, *, transform: bool = True) -> Verdict:
    """``lacking`` for an error that refuses on purpose, ``crashes`` for any other.

    Arguments:
        error: what the checked code raised, with its traceback.
        transform: whether the call went through a transform of torch; if not, other data was
            tried, which torch refuses for the reason that the code does not fit it.

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
    if isinstance(error, _UNFORESEEN) and not _is_the_authors(error):
        return Verdict.CRASHES
    if transform and _is_from_a_rule(error) and type(error).__name__ not in _REFUSING_TYPES:
        return Verdict.CRASHES
    if type(error).__name__ in _REFUSING_TYPES:
        return Verdict.LACKING
    refused = _is_deliberate(error) or (transform and _is_refused_by_torch(error))
    return Verdict.LACKING if refused else Verdict.CRASHES


def _frames(error: BaseException) -> Iterator[TracebackType]:
    step = error.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def is_raised_in(error: BaseException, given: Iterable[Any]) -> bool:
    """Whether the code that raised, torch aside, is that of one of the callables.

    Arguments:
        error: what was raised, with its traceback.
        given: what the caller handed over: functions, modules and others.
    """
    codes = {getattr(getattr(value, "forward", value), "__code__", None) for value in given}
    own = [
        step.tb_frame.f_code
        for step in _frames(error)
        if not step.tb_frame.f_code.co_filename.startswith((_TORCH, _OURS))
    ]
    return bool(own) and own[-1] in codes


def is_from_within(error: BaseException | None) -> bool:
    """Whether the checked code was running: not so where the arguments do not fit its signature.

    Example:
        >>> is_from_within(TypeError("forward() missing 1 required positional argument"))
        False
    """
    return error is not None and any(
        not step.tb_frame.f_code.co_filename.startswith((_TORCH, _OURS)) for step in _frames(error)
    )


def _is_deliberate(error: BaseException) -> bool:
    """Whether a ``raise`` or an ``assert`` is what raised the error; a bare one, the author's."""
    last = list(_frames(error))[-1:]
    if not last or (isinstance(error, AssertionError) and not str(error) and _is_foreign(last[0])):
        return False
    code = last[0].tb_frame.f_code
    return code.co_code[last[0].tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_the_authors(error: BaseException) -> bool:
    """Whether a ``raise`` in code of the author's own is what raised the error."""
    last = list(_frames(error))[-1:]
    return bool(last) and not _is_foreign(last[0]) and _is_deliberate(error)


def _is_foreign(step: TracebackType) -> bool:
    """Whether the code is torch's, ours or Python's, which raise a KeyError for an author's bug."""
    name = step.tb_frame.f_code.co_filename
    installed = name[len(_PYTHON) :].startswith(("site-packages", "dist-packages"))
    library = name.startswith((_PYTHON, "<frozen")) and not installed
    return library or name.startswith((_TORCH, _OURS))


def _is_refused_by_torch(error: BaseException) -> bool:
    """Whether an operation that the checked code calls refused what the transform hands it.

    What the engine itself complains of, from inside its own call, is what the checked code gave it.
    """
    codes = [step.tb_frame.f_code for step in _frames(error)]
    own = [c for c in codes if not c.co_filename.startswith((_TORCH, _OURS))]
    refused = bool(own) or (_is_raised_by_apply(codes) and _FAULT not in str(error))
    return isinstance(error, RuntimeError) and refused


def _is_from_a_rule(error: BaseException) -> bool:
    """Whether a rule of the author's own for a transform was running."""
    codes = [step.tb_frame.f_code for step in _frames(error)]
    for caller, code in zip([None, *codes], codes, strict=False):
        if code.co_filename.startswith((_TORCH, _OURS)):
            continue
        called = caller is not None and caller.co_filename.startswith(_TORCH)
        if code.co_name in _RULES or (called and _calls_rules(caller)):
            return True
    return False


def _calls_rules(code: CodeType) -> bool:
    return code.co_name in _CALLERS or code.co_filename.endswith(_REGISTERED)


def _is_raised_by_apply(codes: list[CodeType]) -> bool:
    """Whether `apply` itself refused before any rule ran: from torch 2.14 on it is in C++.

    Between it and our call there may be the layer that hears the calls of a program.
    """
    for code in reversed(codes):
        if code.co_name == _CALL and code.co_filename.startswith(_OURS):
            return True
        if not code.co_filename.startswith((_TORCH, _LAYER)):
            return False
    return False


def describe(error: BaseException, limit: int = 240) -> str:
    r"""The type and the first lines of an error, on one line.

    Example:
        >>> describe(ValueError("no such\n  value"))
        'ValueError: no such value'
    """
    text = " ".join(str(error).split())
    short = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
