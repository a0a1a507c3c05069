"""`verify`: test whether a kernel computes what its reference computes."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe
from typing import Any

import torch

from pullback.conformance import Arguments, NoEnd, can_copy, guarded, limited, reseed, unpatched
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal._processes import describe_end, start_copy
from pullback.internal._work_time import WorkTime
from pullback.report import Finding, Report, Verdict
from pullback.verification import _conduct as conduct
from pullback.verification import _numbers as numbers
from pullback.verification._answers import Slow, Subject
from pullback.verification._error import Result
from pullback.verification._forbidden import forbidden, refuse_unknown
from pullback.verification._work import Promise, Work, promise

__all__ = ["PROMISES", "isolated", "refuse_inputs", "verify"]

_SEEDS = 2**63
# Beside floating dtypes of one byte, those in which torch stores numbers, and does little else.
_STORED = torch.uint16, torch.uint32, torch.uint64, torch.complex32
Inputs = list[Any] | tuple[Any, ...] | Callable[[], Any]
# In the order in which they are tested.
PROMISES = (
    numbers.outputs, numbers.gradients, numbers.second, numbers.sizes, forbidden,
    numbers.dtype, numbers.layout, numbers.values, conduct.caches, conduct.alias, conduct.bounds,
    conduct.deterministic, conduct.state, conduct.mutation, conduct.settings, conduct.finished,
)  # fmt: skip
_Results = dict[str, Result]
# Given what is known, yields the name of each other step before it, and with its result after it.
_Steps = Callable[[_Results], Iterator[tuple[str, Result | None]]]
_PATIENCE = 3.0  # times the timeout, of work or sleep: the copy itself stops what computes
_POLL = 0.1
_CRASH_MEND = "Call it by itself: where its reference answers, it raises, hangs or dies."


@checked
def verify(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Inputs,
    *,
    forbid: Sequence[Any] = (),
    seed: int = 0,
    isolate: bool = True,
    timeout: float = 60.0,
) -> Report:
    """Test whether a kernel computes what its reference computes, and does nothing else.

    Outputs, gradients and second derivatives are compared with the reference in float64 on the
    same numbers: as given, and at other values, sizes, dtypes and strides. An entry may be off by
    eight times the reference's own largest error in the kernel's dtype, or eight times what
    rounding of the inputs does to it, times the root of the number of entries that it is summed of.
    Then its conduct is tested: caches, state, memory that it reads or writes, what it calls.

    Arguments:
        kernel: a function, `torch.autograd.Function`, custom operator or module.
        reference: plain torch of the same signature.
        inputs: one example, its positional arguments, nested or not; or a function that makes one,
            fresh ones at each call. Tensors that require a gradient are differentiated, or every
            floating tensor if none does.
        forbid: functions of torch, or names of functions and operators, that the kernel must not
            call, such as ``torch.softmax`` or ``"softmax"``, or functions of Python. The reference
            is always among them.
        seed: of everything random, and of inputs that a function makes.
        isolate: run in a copy of this process, so that a crash or a hang is a verdict. Where no
            copy can be made it runs here: not on Linux, where a GPU is in use, and where there
            is one and this process has run a backward.
        timeout: seconds of work for each promise.

    Returns:
        A report with one finding for each of `PROMISES`; it is ok if none is broken or crashes. Its
        ``environment["speed"]`` is the time of the kernel over that of the reference, and
        ``environment["isolated"]`` whether it ran in a copy.

    Raises:
        ArgumentTypeError: kernel or reference cannot be called, or inputs are no arguments.
        ArgumentError: the reference does not take the inputs, or returns no entry for them; they
            are of a dtype in which torch computes nothing, such as float8; seed or timeout is
            none, or what is forbidden is nothing that could be called.

    Example:
        >>> def plain(x):
        ...     return torch.softmax(x, -1)
        >>> def kernel(x):
        ...     e = x.exp()
        ...     return e / e.sum(-1, keepdim=True)
        >>> report = verify(kernel, plain, (torch.randn(4, 8),), isolate=False)
        >>> [finding.clause for finding in report.problems]
        ['values']
    """
    started = time.perf_counter()
    apart = isolate and can_copy()
    refuse_unknown(forbid)
    work = _work(kernel, reference, inputs, tuple(forbid), seed, timeout, apart)
    conduct.load_modes()
    steps = partial(_run, work, timeout, (*PROMISES, conduct.speed))
    with unpatched():
        known = isolated(steps, timeout, isolate=apart)
    taken = known.pop(conduct.speed.id)
    findings = tuple(_finding(each, known[each.id], seed) for each in PROMISES)
    environment = {
        "torch": str(torch.__version__), "isolated": "yes" if apart else "no",
        "speed": taken.detail if taken.verdict is Verdict.HOLDS else "",
    }  # fmt: skip
    return Report(work.kernel.name, "", False, findings, seed,
                  time.perf_counter() - started, environment)  # fmt: skip


@checked
def refuse_inputs(
    reference: Callable[..., Any], inputs: Inputs, *, seed: int, timeout: float
) -> None:
    """Refuse inputs that no kernel could be verified with, given as to `verify`.

    Raises:
        ArgumentError: as `verify` raises.
    """
    _work(reference, reference, inputs, (), seed, timeout, can_copy())


def _work(  # noqa: PLR0917 - what `verify` was given
    kernel: Any, reference: Any, inputs: Inputs, forbid: tuple[Any, ...], seed: int,
    timeout: float, apart: bool,
) -> Work:  # fmt: skip
    if not (0 < timeout < math.inf and 0 <= seed < _SEEDS):
        raise ArgumentError(
            "The timeout is not a time, or the seed not one that torch takes.",
            given=f"timeout={timeout!r}, seed={seed!r}",
            expected=f"a positive number of seconds, and 0 <= seed < {_SEEDS}",
        )
    make = inputs if callable(inputs) else None
    try:
        example = inputs if make is None else _made(make, seed)
    except Exception as error:
        raise ArgumentError(
            "The inputs cannot be made.", given=f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(example, list | tuple):
        raise ArgumentTypeError(
            "The inputs are no positional arguments.", given=type(example).__name__,
            expected="a tuple, or a function that returns one", mend="verify(kernel, plain, (x,))",
        )  # fmt: skip
    arguments = Arguments.of(tuple(example))
    _refuse_dtypes(arguments)
    work = Work(kernel=Subject(kernel), reference=Subject(reference), seed=seed, given=arguments,
                make=make, forbid=forbid)  # fmt: skip
    # In a copy, as all else: see `can_copy`, which one backward may end.
    steps = partial(_run, work, timeout, (_fit,))
    fit = isolated(steps, timeout, isolate=apart)[_fit.id]
    if fit.verdict is not Verdict.HOLDS:
        raise ArgumentError(
            "The reference does not take the inputs in float64, or has nothing to compare.",
            given=fit.detail,
            expected="plain torch, which computes in the dtype of its arguments, and returns "
            "tensors or numbers of some entries, or writes to an argument",
        )  # fmt: skip
    return work


def _refuse_dtypes(arguments: Arguments) -> None:
    """Refuse dtypes in which torch itself neither draws, compares nor orders: nothing varies."""
    for path, value in zip(arguments.paths, arguments.values, strict=True):
        is_small = value.is_floating_point() and value.element_size() == 1
        if is_small or value.dtype in _STORED:
            raise ArgumentError(
                "In the dtype of an input torch computes too little to judge by.",
                given=f"{path} is of {value.dtype}",
                expected="a dtype that is computed in, such as torch.float32 or torch.int64",
                mend="Give that, and cast within both: "
                f"lambda x: kernel(x.to({value.dtype})), and the same of the reference.",
            )


def _made(make: Callable[[], Any], seed: int) -> Any:
    """Inputs that a function makes, the same ones for a seed: a second run says the same."""
    with guarded():
        reseed(seed)
        return make()


@promise("the reference takes the inputs in float64", "", alone=True)
def _fit(work: Work) -> Result | None:
    truth = work.truth(work.given)
    fault = truth.fault
    if not fault and not any(output.numel() for output in truth.outputs):
        fault = "it returns nothing that could be compared: no number, no entry"
    return Result(Verdict.SKIPPED, fault) if fault else None


def _run(
    work: Work, timeout: float, promises: Sequence[Promise], known: Mapping[str, Result]
) -> Iterator[tuple[str, Result | None]]:
    """Each promise that is not known yet and its result; the name alone before it is tested."""
    found = dict(known)
    for each in promises:
        if each.id not in known:
            yield each.id, None
            found[each.id] = _test(each, work, timeout, found)
            yield each.id, found[each.id]


def isolated(steps: _Steps, timeout: float, *, isolate: bool) -> _Results:
    """The results of steps in copies of this process; of one that ended the copy, that it crashes.

    Where it is not asked for the steps run here.
    """
    known: _Results = {}
    while True:
        began, end = "", [""]
        for name, result in _copy(steps, known, timeout, end) if isolate else steps(known):
            began = name if result is None else ""
            if result is not None:
                known[name] = result
        if not began:
            return known
        known[began] = Result(Verdict.CRASHES, end[-1])


def _copy(
    steps: _Steps, known: _Results, timeout: float, end: list[str]
) -> Iterator[tuple[str, Result | None]]:
    """What one copy says until it ends; why it ended is added to a list."""
    reader, writer = Pipe(duplex=False)

    def tell() -> None:
        for item in steps(known):
            writer.send(item)

    copy = start_copy(tell)
    writer.close()
    work, since = WorkTime(copy.pid), 0.0
    try:
        while work.seconds - since < _PATIENCE * timeout:
            if reader.poll(_POLL):
                yield reader.recv()
                since = work.seconds
        end.append("It gave no answer in time.")
    except EOFError:
        end.append(describe_end(copy.end()) or "The process ended, without an answer.")
    finally:
        copy.end()
        reader.close()


def _test(promise: Promise, work: Work, timeout: float, found: Mapping[str, Result]) -> Result:
    bad = {name for name, result in found.items() if result.verdict is not Verdict.HOLDS}
    if "outputs" in bad and not (promise.alone and found["outputs"].verdict is Verdict.BROKEN):
        is_bad = found["outputs"].verdict.is_bad
        why = "its outputs are wrong as given" if is_bad else found["outputs"].detail
        return Result(Verdict.SKIPPED, why)
    if "gradients" in bad:
        work.gradients = False  # said once; the rest is about outputs
    if "sizes" in bad:
        work.sizes = False
    try:
        with guarded(), limited(timeout):
            return promise.test(work) or Result(Verdict.HOLDS, promise.promise)
    except NoEnd as error:
        return Result(Verdict.CRASHES, str(error))
    except Slow:
        return Result(Verdict.SKIPPED, f"the reference gave no answer within {timeout:g} s")
    except Exception as error:  # what a kernel raises at arguments that it was given before
        return Result(Verdict.CRASHES, f"{type(error).__name__}: {error}")


def _finding(promise: Promise, result: Result, seed: int) -> Finding:
    bad = result.verdict.is_bad
    mend = promise.mend if result.verdict is Verdict.BROKEN else _CRASH_MEND
    return Finding(
        promise.id, result.verdict, result.detail, result.expected, result.got, seed=seed,
        hint=mend if bad else "", why=promise.promise if bad else "",
    )  # fmt: skip
