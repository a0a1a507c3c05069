"""`check` on a `pullback.tape.Function`, for any value.

Numbers and tensors are compared to a tolerance, feedback by its texts. What the tape's engine
itself refuses by name (an undeclared change in place, a stale value) is a breach that cannot go
unseen, and is reported as such.
"""

from collections.abc import Sequence
from typing import Any

from pullback.errors import ArgumentTypeError, PullbackError, UnsupportedError
from pullback.tape import Function
from pullback.tape._layout import find, replace
from pullback.tape.conformance._clauses import CLAUSES
from pullback.tape.conformance._probe import Breach, Probe, Skip, require

__all__ = ["judge", "takes"]

_SAID = 240  # characters of an error


def takes(function: Any) -> bool:
    """Whether this is a Function of the tape, or its apply.

    Example:
        >>> from pullback.tape import sin
        >>> takes(sin)
        False
    """
    return _owner(function) is not None


def _owner(function: Any) -> type[Function] | None:
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, type) and issubclass(owner, Function) else None


def judge(
    function: Any, inputs: tuple[Any, ...], gradient: str | None, clauses: Sequence[str], seed: int
) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Check a Function of the tape.

    Arguments:
        function: the Function, or its apply.
        inputs: its arguments; Variables that require a gradient are differentiated, all numbers
            and texts if none does.
        gradient: the intent, or None for the declared one.
        clauses: ids of the clauses; those that make no sense on the tape are skipped.
        seed: the seed of every random choice.

    Returns:
        The name of the Function, its intent, and for each clause the verdict, what was seen and
        how to mend it.

    Raises:
        ArgumentTypeError: nothing among the inputs is a Variable.
    """
    owner: Any = _owner(function)
    variables, layout = find(inputs)
    if not variables:
        raise ArgumentTypeError(
            f"{owner.__name__} was given no Variable.", given=f"{len(inputs)} inputs",
            mend="Pass pullback.tape.Variable(value).",
        )  # fmt: skip
    if not any(variable.requires_grad for variable in variables):
        inputs = replace(layout, inputs, [require(variable) for variable in variables])
    probe = Probe(owner, inputs, gradient or owner.gradient, seed)
    name = f"{owner.__module__}:{owner.__qualname__}"
    return name, probe.gradient, [_verdict(probe, clause) for clause in clauses]


def _verdict(probe: Probe, clause: str) -> tuple[str, str, str]:
    test = CLAUSES.get(clause)
    if test is None:
        return "skipped", "It makes no sense for values of the tape.", ""
    try:
        return "holds", test(probe), ""
    except Skip as reason:
        return "skipped", str(reason), ""
    except Breach as reason:
        return "broken", str(reason), ""
    except UnsupportedError as error:
        return "lacking", f"It says {_describe(error)}", ""
    except PullbackError as error:
        return "broken", _describe(error), error.mend or ""
    except Exception as error:  # the checked code may raise anything
        return "crashes", _describe(error), ""


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_SAID]}"
