"""The promises about conduct: no cache, no state, nothing written, read or called in secret."""

import math
import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy
import torch

from pullback.conformance import (
    Arguments,
    device_in_use,
    global_settings,
    guarded,
    reseed,
    resizings,
    unpatched,
)  # fmt: skip
from pullback.report import Verdict
from pullback.verification._answers import Answer, kept_in, same_bits
from pullback.verification._error import Result, difference_in_kind
from pullback.verification._forbidden import Operators
from pullback.verification._work import Work, broken, promise

__all__ = [
    "alias", "bounds", "caches", "deterministic", "finished", "load_modes", "mutation",
    "settings", "speed", "state",
]  # fmt: skip

_MARGIN = 4096
_OTHER = 7_340_033
_RUNS = 5  # that show whether it gives the same bits
_ROUNDS = 9  # of which speed is the median, but for the first
_WAIT = 0.02  # seconds in which work that was left behind shows itself


@promise(
    "it computes anew: it remembers no answer",
    "Key what is cached by nothing that a caller can reuse; cache no answers.",
)
def caches(work: Work) -> Result | None:
    """Old memory with new values, and new memory with old values."""
    with guarded(), torch.no_grad():
        reseed(work.seed)
        for said, arguments, answer in _recalled(work):
            found = work.silent().judge(arguments, answer).fault
            if found:
                return broken(f"{said}: {found}")
        counts = []
        for number in (12, 13, 14, 13, 13):  # what is kept by shapes is, after the first
            tensors = work.copies(work.fresh(number))
            with Operators() as operators:
                work.raw(tensors)
            counts.append(len(operators.names))
    if min(counts[3:]) < counts[1]:
        return broken(
            "Values that it has seen before are not computed again.",
            f"{counts[1]} operations", f"{min(counts[3:])} operations",
        )  # fmt: skip
    return None


def _recalled(work: Work) -> Iterator[tuple[str, Arguments, Answer]]:
    """Answers that something which is remembered may spoil."""
    tensors, other = work.copies(work.fresh(11)), work.fresh(12)
    work.raw(tensors)
    for tensor, value in zip(tensors, other.values, strict=True):
        tensor.copy_(value)
    yield "New values in the same memory are answered as the old ones", other, work.raw(tensors)
    for tensor in work.raw(work.copies(other)).outputs:
        tensor.fill_(math.nan if tensor.is_floating_point() else 0)
    again = work.raw(work.copies(other))
    yield "A change of its last answer changes its next one", other, again
    flipped = work.changed(lambda x: x.flip(tuple(range(x.ndim))))
    if flipped is not None:  # of the same sum, and norm
        work.raw(work.copies(work.given))
        said = "Values in another order are answered as the last ones"
        yield said, flipped, work.raw(work.copies(flipped))


@promise("its outputs have memory of their own", "Allocate the output.")
def alias(work: Work) -> Result | None:
    """An output is neither an input nor what the next call writes to, unless the reference's is."""
    with guarded(), torch.no_grad():
        reseed(work.seed)
        tensors = work.copies(work.given)
        made = work.raw(tensors)
        written = work.reference.written(work.given)
        given = {_storage(t) for k, t in enumerate(tensors) if t.numel() and k not in written}
        shared = [name for name, t in made.named() if t.numel() and _storage(t) in given]
        if shared:
            copies = work.copies(work.given)
            plain = work.outputs(work.reference.of(work.dtype), work.given, copies).values()
            lent = {_storage(t) for k, t in enumerate(copies) if k not in written}
            if not {_storage(t) for t in plain} & lent:
                return broken(f"It returns memory of an input: {shared[0]}.")
        kept = Answer(tuple(t.clone() for t in made.outputs))
        work.raw(work.copies(work.fresh(21)))
        if not same_bits(made, kept):
            return broken("The next call changes what the last one returned.")
    return None


@promise("it reads and writes within its inputs", "Mask loads and stores past the end.")
def bounds(work: Work) -> Result | None:
    """What lies around the inputs is neither read nor written."""
    buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def placed(value: torch.Tensor, around: float) -> torch.Tensor:
        number = value.is_floating_point() or value.is_complex()
        fill = around if number or not value.numel() else value.max().item()
        buffer = value.new_full((value.numel() + 2 * _MARGIN,), fill)
        inner = buffer[_MARGIN : _MARGIN + value.numel()].view(value.shape)
        inner.copy_(value)
        buffers.append((buffer, buffer.clone()))
        return inner.detach()

    around = *(0.0,) * _RUNS, math.nan
    first, *again, other = (work.answer(work.given, partial(placed, around=n)) for n in around)
    for buffer, before in buffers:
        for part in (slice(None, _MARGIN), slice(-_MARGIN, None)):
            if not torch.equal(buffer[part].nan_to_num(7.0), before[part].nan_to_num(7.0)):
                return broken("It writes past the end of an input.")
    steady = all(same_bits(first, each) for each in again)
    faults = (work.judge(work.given, each).verdict.is_bad for each in (first, other))
    if not same_bits(first, other) and (steady or any(faults)):
        return broken("The numbers past the end of an input change its answer.")
    return None


@promise("the same arguments give the same bits", "Sum in a fixed order.")
def deterministic(work: Work) -> Result | None:
    """The same arguments, the same bits."""
    first = work.answer(work.given)
    for _ in range(_RUNS - 1):
        again = work.answer(work.given)
        if not same_bits(first, again):
            own = [work.refer(work.given, work.dtype) for _ in range(2)]
            if work.judge(work.given, again).fault or not same_bits(*own):
                return broken("The same arguments give another answer the next time.")
            return Result(Verdict.UNTIDY, "the same arguments give other bits, within rounding")
    return None


@promise("calls do not share what they keep", "Keep what backward needs on ctx, nothing elsewhere.")
def state(work: Work) -> Result | None:
    """What was called before makes no difference, and two calls do not share what they keep."""
    first = work.answer(work.given)
    for number in range(31, 36):
        work.answer(work.fresh(number))
    again = work.answer(work.given)
    if not same_bits(first, again) and work.judge(work.given, again).fault:
        return broken("The answer depends on what was called before.")
    found = _interleaved(work)
    return broken(found) if found else None


def _interleaved(work: Work) -> str:
    if not work.gradients or not work.truth(work.given).history:
        return ""
    drawn = torch.Generator().manual_seed(work.seed)
    resized = (
        sized.at(max(1, sized.size - 1)) for sized in resizings(work.given, 64, 2**12, drawn)
    )
    # An error of a call that is none by itself is a matter of what is shared.
    answered = (x for x in resized if x and not (work.truth(x).fault or work.answer(x).fault))
    for other in (work.fresh(36), next(answered, None)):
        if other is None:
            continue

        kernel = work.kernel.of(work.dtype)

        @wraps(kernel, updated=())
        def between(*args: Any, kernel: Any = kernel, other: Any = other, **kwargs: Any) -> Any:
            made = kernel(*args, **kwargs)
            left = [(buffer, buffer.clone()) for buffer in kept_in(kernel, "buffers").values()]
            points = [point.clone().requires_grad_() for point in other.points()]
            work.outputs(kernel, other, other.with_points(points).values)
            for buffer, value in left:  # a running mean counts every call
                buffer.data.copy_(value)
            return made

        found = work.judge(work.given, work.run(between, work.given))
        if found.verdict.is_bad:
            return f"A call between forward and backward changes the gradient: {found.detail}."
    return ""


@promise("it writes to no input or cotangent", "Write to a tensor of your own.")
def mutation(work: Work) -> Result | None:
    """No input or cotangent is written to, unless the reference writes to it."""

    def written(function: Callable[..., Any]) -> list[int]:
        handed: list[tuple[torch.Tensor, torch.Tensor]] = []

        def place(value: torch.Tensor) -> torch.Tensor:
            handed.append((value.clone(), value))
            return handed[-1][0]

        work.silent().run(function, work.given, place)
        replace(work, cotangents=place).run(function, work.given)
        return [k for k, pair in enumerate(handed) if not torch.equal(*pair)]

    changed = written(work.kernel.of(work.dtype))
    allowed = written(work.reference.of(work.dtype))
    names = dict(enumerate(work.given.paths))
    bad = [names.get(k, "a cotangent") for k in changed if k not in allowed]
    return broken(f"It writes to {', '.join(bad)}.") if bad else None


@promise(
    "it neither changes nor heeds global settings",
    "Take dtype and device from the input; seed nothing.",
)
def settings(work: Work) -> Result | None:
    """It neither changes a global setting nor depends on one that its reference does not."""
    states = []
    for number in range(2):
        reseed(work.seed + _OTHER + number)  # a seed that nobody sets
        before = _state()
        with unpatched() as replaced:
            work.outputs(work.kernel.of(work.dtype), work.given, work.copies(work.given))
        moved = [name for name, value in _state().items() if value != before[name]] + replaced
        if moved:
            return broken(f"It changes {moved[0]}.")
        states.append({"Python's": random.getstate(), "numpy's": str(numpy.random.get_state())})
    for name, left in states[0].items():
        if left == states[1][name]:  # after other seeds
            return broken(f"It seeds {name} random generator.")
    silent = work.silent()
    subjects = work.kernel, work.reference
    plain, own = silent.answer(work.given), silent.refer(work.given, work.dtype)
    for name, setting in _SETTINGS.items():
        with guarded(), setting():
            changed = [silent.run(s.of(work.dtype), work.given) for s in subjects]
        as_half = setting is _half  # in which as much as that may be rounded
        # Where the reference itself answers in another dtype, the setting is part of what it says.
        heeded = not as_half and bool(difference_in_kind(changed[1], own))
        if not same_bits(plain, changed[0]) and not (changed[1].fault or heeded):
            judged = partial(silent.judge_as, torch.bfloat16) if as_half else silent.judge
            found = changed[0].fault or judged(work.given, changed[0]).fault
            if found:
                return broken(f"Its answer depends on {name}: {found}")
    found = _elsewhere(silent)
    return broken(f"Its answer depends on who calls it, or where: {found}") if found else None


def _elsewhere(work: Work) -> str:
    """What is wrong in another thread, where no frame of ours is below the kernel."""
    kernel = work.kernel.of(work.dtype)
    with ThreadPool(1) as pool:

        @wraps(kernel, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            return pool.apply(kernel, args, kwargs)

        answer = work.run(call, work.given)
    return answer.fault or work.judge(work.given, answer).fault


@promise("its work is done when it returns", "Wait for what was started before returning.")
def finished(work: Work) -> Result | None:
    """When it returns, its work is done: no thread, process or stream goes on with it.

    What is copied at once, in the current stream of a GPU, is what is there at the end.
    """
    with guarded(), torch.no_grad():
        reseed(work.seed)
        work.raw(work.copies(work.given))  # what is started once, a pool of threads
        time.sleep(_WAIT)
        threads, children = set(threading.enumerate()), set(multiprocessing.active_children())
        made = work.raw(work.copies(work.fresh(22)))  # memory that is free holds another answer
        kept = Answer(tuple(t.clone() for t in made.outputs))
        left = [t for t in threading.enumerate() if t not in threads]
        started = [c for c in multiprocessing.active_children() if c not in children]
        time.sleep(_WAIT)
        _wait()
    if not same_bits(made, kept):
        return broken("Its output changes after it has returned.")
    if left or started:
        return broken(f"It leaves {'a thread' if left else 'a process'} behind at each call.")
    return None


@promise("it is none, and tested as one", "")
def speed(work: Work) -> Result:
    """The median time of the kernel over that of the reference, forward alone.

    Each round has fresh inputs, and takes the two in turn; a GPU has ended before time is read.
    """
    functions = [s.of(work.dtype) for s in (work.reference, work.kernel)]
    times: list[list[float]] = [[], []]
    try:
        with guarded(), torch.no_grad():
            for number in range(_ROUNDS):
                arguments = work.fresh(100 + number)
                for function, taken in zip(functions, times, strict=True):
                    args, kwargs = arguments.build([p.clone() for p in arguments.points()])
                    _wait()
                    started = time.perf_counter()
                    function(*args, **kwargs)
                    _wait()
                    taken.append(time.perf_counter() - started)
    except Exception as error:
        return Result(Verdict.SKIPPED, f"not measured: {error}")
    plain, kernel = (statistics.median(taken[1:]) for taken in times)
    return Result(Verdict.HOLDS, f"{kernel / plain:.2f} x the reference's")


def _wait() -> None:
    """Wait for all that was started on an accelerator."""
    if device_in_use() is not None:
        torch.accelerator.synchronize()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def load_modes() -> None:
    """Load what torch loads where a mode is first entered, which no time limit must end halfway."""
    with Operators():
        torch.ones(1, device="cpu")


def _half() -> Any:
    device = device_in_use()
    return torch.autocast("cpu" if device is None else device.type, torch.bfloat16)


# Entered within `guarded`, which puts all of them back.
_SETTINGS: dict[str, Callable[[], Any]] = {
    "the default dtype": lambda: nullcontext(torch.set_default_dtype(torch.float64)),
    "whether gradients are recorded": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": _half,
}


def _state() -> dict[str, Any]:
    state = {name: read() for name, (read, _) in global_settings().items()}
    return {**state, "the seed of the random generator": torch.initial_seed()}
