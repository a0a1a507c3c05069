"""The adapter to the tape: `check` on a `pullback.tape.Function`, for any value.

Numbers and tensors are compared to a tolerance, feedback by its texts. What the tape's engine
itself refuses by name (an undeclared change in place, a stale value) is a breach that cannot go
unseen, and is reported as such.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pullback.conformance._environment import environment
from pullback.conformance._failure import describe
from pullback.conformance._tape_clauses import TAPE_CLAUSES
from pullback.conformance._tape_data import rebuild, require, variables_in
from pullback.conformance._tape_probe import Breach, Probe, Skip
from pullback.errors import ArgumentTypeError, PullbackError, UnsupportedError
from pullback.report import Finding, Report, Verdict
from pullback.tape import Function

__all__ = ["check_tape", "is_tape"]


def is_tape(function: Any) -> bool:
    """Whether this is a Function of the tape, or its apply."""
    return _owner(function) is not None


def _owner(function: Any) -> type[Function] | None:
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, type) and issubclass(owner, Function) else None


def check_tape(
    function: Any, inputs: tuple[Any, ...], gradient: str | None, wanted: Sequence[str], seed: int
) -> Report:
    """Check a Function of the tape.

    Arguments:
        function: the Function, or its apply.
        inputs: its arguments; Variables that require a gradient are differentiated, all numbers
            and texts if none does.
        gradient: the intent, or None for the declared one.
        wanted: ids of the clauses; those that make no sense on the tape are skipped.
        seed: the seed of every random choice.

    Raises:
        ArgumentTypeError: nothing among the inputs is a Variable.
    """
    started = time.perf_counter()
    owner: Any = _owner(function)
    variables = list(variables_in(inputs))
    if not variables:
        raise ArgumentTypeError(
            f"{owner.__name__} was given no Variable.", given=f"{len(inputs)} inputs",
            mend="Pass pullback.tape.Variable(value).",
        )  # fmt: skip
    if not any(variable.requires_grad for variable in variables):
        inputs = tuple(rebuild(value, require) for value in inputs)
    probe = Probe(owner, inputs, gradient or owner.gradient, seed)
    findings = [_finding(probe, name) for name in wanted]
    return Report(
        f"{owner.__module__}:{owner.__qualname__}", probe.gradient, False,
        tuple(replace(finding, seed=seed) for finding in findings), seed,
        time.perf_counter() - started, environment(),
    )  # fmt: skip


def _finding(probe: Probe, name: str) -> Finding:
    test = TAPE_CLAUSES.get(name)
    if test is None:
        return Finding(name, Verdict.SKIPPED, "It makes no sense for values of the tape.")
    try:
        return Finding(name, Verdict.HOLDS, test(probe))
    except Skip as reason:
        return Finding(name, Verdict.SKIPPED, str(reason))
    except Breach as reason:
        return Finding(name, Verdict.BROKEN, str(reason))
    except UnsupportedError as error:
        return Finding(name, Verdict.LACKING, f"It says {describe(error)}")
    except PullbackError as error:
        return Finding(name, Verdict.BROKEN, describe(error), hint=error.mend or "")
    except Exception as error:  # the checked code may raise anything
        return Finding(name, Verdict.CRASHES, describe(error))
