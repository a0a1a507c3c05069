"""`sizes`: right at every size, not at multiples of a block only."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._wrong_derivative import wrong_derivative
from pullback.conformance.clauses._hints import LIMIT, SINGLE
from pullback.conformance.evidence._derivative import Trial, decide, has_own_span, try_derivative
from pullback.conformance.evidence._screen import (
    APART,
    RIGHT,
    Run,
    Sweep,
    agrees,
    already,
    is_foreign,
)
from pullback.conformance.inputs._structure import tangent
from pullback.conformance.inputs._vectors import are_finite
from pullback.conformance.probing._resize import Resizing, resizings, together
from pullback.conformance.probing._unwritten import run_filled, tell_unwritten, unwritten

__all__ = ["sizes"]

# One more and one less than what a kernel takes at a time, whole blocks, and three entries beyond.
_SIZES = (1, 2, 3, 7, 64, 65, 128, 131, 1024, 1027)
_ENTRIES = 2**14
_RESULTS = 2**17
# Beyond these seconds of work nothing larger is tried, then nothing more: a check stays fast.
_CALL_SECONDS = 0.02
_SECONDS = 3.0
_GIVEN = "at the given size"


@dataclass
class _Tried:
    """What was learnt at the sizes of one dimension."""

    resizing: Resizing
    sweep: Sweep[int]
    looks: int = 4  # close ones that may still tell nothing, as at a kink
    runs: dict[int, tuple[Probe, Run]] = field(default_factory=dict)
    slow: bool = False  # then nothing larger is tried
    foreign: bool = False  # other arguments of the given size are outside of the domain too

    def __str__(self) -> str:
        refused = {size: said for size, said in self.sweep.said.items() if said != RIGHT}
        parts = [f"right at {_list(self.sweep.right)}"] if self.sweep.right else []
        if refused:
            first = next(iter(refused.values())).removeprefix("refused ")
            parts.append(f"refused at {_list([*refused])} {first}")
        if self.foreign:
            parts.append("other arguments are of another kind at the given size already")
        if self.sweep.ended:
            parts.append(f"nothing more was tried: {self.sweep.ended}")
        given = f"{self.resizing.where} (given {self.resizing.size})"
        return f"{given}: {', '.join(parts) or 'not told at any size'}"


@clause(
    why="A kernel takes 4, 64 or 1,024 entries at a time, and its tests have sizes to match. What "
    "lies beyond the last whole block is then forgotten, doubled or never written, at the sizes "
    "that real data have.",
    breach="against finite differences at size 1, one less and one more than given, odd sizes, "
    "and sizes beyond 64, 128 and 1,024; where backward is a surrogate, as entries that "
    "change with how many others there are; and as memory that nothing has written.",
    mend="Mask what lies beyond the last whole block, in forward and in backward, or refuse "
    "the size.",
)
def sizes(probe: Probe) -> Iterator[Finding | None]:
    """Change each size that the arguments have, and compare with finite differences there."""
    if probe.intent == "nonlinear":
        yield probe.skipped("A nonlinear backward has no reference at another size.")
    tried: list[_Tried] = []
    end = time.process_time() + _SECONDS
    for resizing in resizings(probe.inputs, max(_SIZES), _ENTRIES, probe.generator("sizes")):
        tried.append(_Tried(resizing, Sweep(end)))
        yield _vary(probe, tried[-1])
    yield _vary_together(probe, tried, end)
    if not tried:
        yield probe.skipped("No size may change: a number among the arguments may stand for each.")
    said = "; ".join(map(str, tried))
    if not any(found.sweep.right for found in tried):
        yield probe.skipped(f"No other size could be judged: {said}.")
    yield probe.holds(f"{said[:1].upper()}{said[1:]}.")


def _vary(probe: Probe, tried: _Tried) -> Finding | None:
    """Try every size of one dimension; a finding where one is wrong."""
    shown = probe.output_values()

    def run(other: Probe) -> tuple[Run, float]:
        started = time.process_time()  # what else the machine does is no fault of the code
        found = run_filled(partial(Run.of, other))
        return found, time.process_time() - started

    def judge(size: int, other: Probe, ran: tuple[Run, float]) -> Finding | str:
        run, where = ran[0], f"{size} of {tried.resizing.where}"
        tried.runs[size] = other, run
        tried.slow = size >= 64 and ran[1] > _CALL_SECONDS
        place = _unwritten(other, run)
        if place is not None:
            return _tell_unwritten(probe, other, tried, f"{where}, {place}")
        if sum(y.numel() for y in run.outputs) > _RESULTS:
            tried.slow = True  # finite differences keep some twenty of each
            return ""
        if probe.intent != "exact" or not has_own_span(shown, run.outputs, run.gradients):
            return ""
        settled, wrong = _judge(other, run, tried.resizing.places, tried)
        if wrong is None:
            return RIGHT if settled else ""
        finite = are_finite(run.gradients)
        known = already(probe, _GIVEN)
        if known is not None:
            return known
        # The numbers given stand among more of them too, and may lie where there is no derivative.
        as_given = not finite and not are_finite(Run.of(probe).gradients)
        if as_given or _wrong_as_given(probe, tried.resizing, size):
            tried.foreign = True
            return ""
        hint = SINGLE if size == 1 and _is_right_at_two(probe, tried) else sizes.mend
        hint = hint if finite else LIMIT
        return _broken(other, where, wrong, hint)

    finding = tried.sweep.over(_at_sizes(probe, tried), run, judge)
    if finding is not None or tried.foreign or probe.intent != "surrogate":
        return finding
    return _compare_parts(probe, tried)


def _at_sizes(probe: Probe, tried: _Tried) -> Iterator[tuple[int, Probe]]:
    given = tried.resizing.size
    for size in sorted({n for n in (*_SIZES, given - 1, given + 1) if 0 < n != given}):
        if size > tried.resizing.largest or tried.slow or tried.foreign:
            return
        inputs = tried.resizing.at(size)
        if inputs is not None:
            yield size, probe.at(inputs)


def _unwritten(probe: Probe, run: Run) -> str | None:
    """What holds NaN only because fresh memory was filled with it."""
    k = unwritten(run.every, lambda: Run.of(probe, run.cotangents).every)
    return None if k is None else probe.place(k, len(run.outputs))


def _tell_unwritten(probe: Probe, other: Probe, tried: _Tried, size: str) -> Finding | str:
    """A finding, unless arguments made as these are leave some unwritten at the given size, too.

    So lengths do that were made too short.
    """
    for there in map(probe.at, tried.resizing.control()):
        with suppress(Exception):  # refused
            if _unwritten(there, run_filled(partial(Run.of, there))) is not None:
                tried.foreign = True
                return ""
    return tell_unwritten(other, f"at size {size}", tried.resizing.where)


def _is_right_at_two(probe: Probe, tried: _Tried) -> bool:
    """Whether what is wrong at size 1 is so for a size of one, not for less than a block."""
    inputs = tried.resizing.at(2)
    if inputs is None:
        return False
    other = probe.at(inputs)
    with suppress(Exception):  # refused there
        settled, wrong = _judge(other, Run.of(other), tried.resizing.places, tried)
        return settled and wrong is None
    return False


def _wrong_as_given(probe: Probe, resizing: Resizing, size: int) -> bool:
    """Whether what is made as arguments of another size are is wrong at the given one too.

    Or so many entries as were given are wrong by themselves, of those of another size: halves of
    what is wrong are looked at, down to the given size. What is wrong for its size is right in its
    halves.
    """
    if is_foreign(probe, resizing.control()):
        return True
    start, length = 0, size
    while length > resizing.size:
        half = max(resizing.size, -(-length // 2))
        for first in (start, start + length - half):
            part = resizing.part(first, half)
            if part is not None and is_foreign(probe, [part]):
                start, length = first, half
                break
        else:
            return False
    return size > resizing.size


def _vary_together(probe: Probe, tried: Sequence[_Tried], end: float) -> Finding | None:
    """Change all sizes at once by one: a corner is ragged where two edges are."""
    every = [found for found in tried if len(found.sweep.right) > 1]
    if probe.intent != "exact" or len(every) < 2:
        return None
    places = tuple(sum(dims, ()) for dims in zip(*(f.resizing.places for f in every), strict=True))

    def judge(name: str, other: Probe, run: Run) -> Finding | str:
        if sum(y.numel() for y in run.outputs) > _RESULTS:
            return ""
        _, wrong = _judge(other, run, places, every[0])
        if wrong is None or any(is_foreign(probe, found.resizing.control()) for found in every):
            return ""
        return already(probe, _GIVEN) or _broken(other, name, wrong)

    return Sweep[str](end).over(_all_at_once(probe, every), Run.of, judge)


def _all_at_once(probe: Probe, every: Sequence[_Tried]) -> Iterator[tuple[str, Probe]]:
    for change in (1, -1):
        wanted = [max(1, found.resizing.size + change) for found in every]
        inputs = together([f.resizing for f in every], wanted, probe.generator("together"))
        if inputs is not None and inputs.entries <= 4 * _ENTRIES:
            pairs = zip(wanted, every, strict=True)
            yield "; ".join(f"{n} of {f.resizing.where}" for n, f in pairs), probe.at(inputs)


def _judge(
    probe: Probe, run: Run, places: Sequence[Sequence[int]], tried: _Tried
) -> tuple[bool, Trial | None]:
    """Compare with finite differences, along everything and along the last entries alone.

    Returns:
        Whether anything was settled, and what is wrong.
    """
    settled = False
    finite = are_finite(run.gradients)
    for tail in (True, False):
        if agrees(probe, run, _direction(probe, places, tail)):
            settled = True
            continue
        if not tried.looks:
            continue
        trial = decide(
            lambda number, tail=tail: try_derivative(
                probe, number, step=_direction(probe, places, tail, number)
            ),
            wanted=1, limit=4, singular=finite,
        )  # fmt: skip
        tried.looks -= not trial.is_told
        # Squares of its numbers can be told from zero and from infinity.
        largest = max(abs(trial.value), abs(trial.estimate.value))
        told = 1e-120 < largest < 1e120
        scale = max(largest, trial.estimate.magnitude)
        told &= abs(trial.value - trial.estimate.value) > APART * scale
        if trial.is_wrong and (told or not math.isfinite(trial.value)):
            return True, trial
        settled = settled or trial.is_told
    return settled, None


def _direction(
    probe: Probe, places: Sequence[Sequence[int]], tail: bool, number: int = 0
) -> Tensors:
    """A direction; with ``tail`` it moves the last entries along the changed size only."""
    step = probe.direction(f"sizes {number}")
    if not tail:
        return step
    kept = []
    for v, k in zip(step, probe.inputs.differentiable, strict=True):
        moved = places[k]
        last = tuple(slice(-3 if dim in moved else None, None) for dim in range(v.ndim))
        kept.append(torch.zeros_like(v))
        kept[-1][last] = v[last]
    return [tangent(x, v) for x, v in zip(probe.inputs.points(), kept, strict=True)]


def _compare_parts(probe: Probe, tried: _Tried) -> Finding | None:
    """Find entries of a surrogate's gradient that depend on how many others there are.

    Only where forward gives the same leading entries at both sizes, and only if the gradient does
    so at three sizes: then the function treats each entry by itself, and the others are wrong.
    """
    runs = tried.runs
    if probe.draws or len(runs) < 3:
        return None
    largest = max(runs)
    large, whole = runs[largest]
    same, unlike = list[int](), list[tuple[int, int, torch.Tensor, Run]]()
    for size, (other, run) in runs.items():
        if size == largest or not _is_part(probe, run.outputs, whole.outputs, size, largest):
            continue
        pairs = zip(whole.cotangents, run.outputs, strict=True)
        again = Run.of(other, [_cut(g, y) for g, y in pairs])
        parts = [_cut(g, x) for g, x in zip(whole.gradients, again.gradients, strict=True)]
        scaled = [k for k, g in enumerate(whole.gradients) if g.shape != parts[k].shape]
        place = probe.differ([again.gradients[k] for k in scaled], [parts[k] for k in scaled], 1e4)
        if place is None:
            same.append(size)
        else:
            unlike.append((size, scaled[place], parts[scaled[place]], again))
    tried.sweep.said.update(dict.fromkeys(same, RIGHT))
    if not unlike or len(same) < min(3, len(runs) // 2):
        return None
    size, k, expected, again = unlike[0]
    return runs[size][0].broken(
        f"At size {size} of {tried.resizing.where} the gradient of an entry is another than beside "
        f"more entries, where forward is the same; at size {same[0]} it is not.",
        expected=expected, got=again.gradients[k], place=probe.path(k),
        given={"w": again.cotangents, "beside": large.inputs.values, "v": whole.cotangents},
        repro=_alone_and_beside(k, expected),
    )  # fmt: skip


def _alone_and_beside(k: int, part: torch.Tensor) -> list[str]:
    """Lines that print a gradient, and the same part of it beside more entries."""
    return [
        f"print('alone      ', torch.autograd.grad(outs(), xs, w, allow_unused=True)[{k}])",
        "large = iter(beside)",
        "args = tree_map(lambda a: next(large).requires_grad_(a.requires_grad) "
        "if isinstance(a, torch.Tensor) else a, args)",
        "xs = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor) and a.requires_grad]",
        "whole = torch.autograd.grad(outs(), xs, v, allow_unused=True)",
        f"print('beside more', whole[{k}][{', '.join(f':{n}' for n in part.shape)}])",
    ]


def _cut(large: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    return large[tuple(slice(n) for n in small.shape)]


def _is_part(probe: Probe, small: Tensors, large: Tensors, size: int, largest: int) -> bool:
    """Whether the outputs at one size are the leading entries of those at a larger one."""
    shapes = [(tuple(a.shape), tuple(b.shape)) for a, b in zip(small, large, strict=True)]
    scaled = any(a != b for a, b in shapes)
    fits = all(
        len(a) == len(b)
        and all(m == n or (m, n) == (size, largest) for m, n in zip(a, b, strict=True))
        for a, b in shapes
    )
    if not (scaled and fits):
        return False
    return probe.differ(small, [_cut(b, a) for a, b in zip(small, large, strict=True)], 1e4) is None


def _broken(probe: Probe, size: str, trial: Trial, hint: str = "") -> Finding:
    return wrong_derivative(
        probe, trial, detail=f"Backward is wrong at size {size}, and not as it was given.",
        place=size.partition(" of ")[2], hint=hint,
    )  # fmt: skip


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
