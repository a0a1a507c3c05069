"""`state`: live calls do not share state; threads do not either."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Thread

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._causes import shared_in
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.probing._resize import larger
from pullback.conformance.process._failure import describe
from pullback.conformance.process._guard import global_settings, guarded, reseed
from pullback.conformance.process._limits import limited

__all__ = ["state"]

Answer = Tensors | None

# How many times the given numbers those of a call are that only disturbs, and how long it may take.
_FAR, _PATIENCE = 8, 5.0
_THREADS, _LIVE = 4, 9
_REPEATS = 5

_SECOND, _SHARED = "a second live call", "calls share state."
_HINT = "Keep what a call needs on its ctx, not on the class, a module or a global."
_PUT_BACK = (
    "Give the operations that need it what they need (dtype=, device=, generator=), or put it back "
    "in a finally, as torch.random.fork_rng does."
)
# How scripts make a second call of the first.
_OTHERS = (
    "others = [x.requires_grad_() for x in others]; args = tree_map(lambda a: "
    "next((o for x, o in zip(xs, others) if x is a), a), args)"
)
_SEVERAL = f"{_OTHERS}; live = [outs() for _ in range({_LIVE})]"
_NUMBERS = (
    "factors = iter([2.0, 1.5, 1.25] * len(args)); args = tree_map(lambda a: a * next(factors) "
    "if type(a) is float else a, args)"
)
_INTEGERS = (
    "args = tree_map(lambda a: a if not torch.is_tensor(a) or any(a is x for x in xs) else "
    "~a if a.dtype is torch.bool else a if a.is_floating_point() else "
    "(a.long() // 2).to(a.dtype), args)"
)


@clause(
    why="Two live calls that share state overwrite each other: shared weights, several "
    "losses, data-parallel threads.",
    breach="when two calls are interleaved, nearby, at numbers of other signs and magnitudes, with "
    "other options, sizes, indices and masks, beside nine more, then in four threads; and as a "
    "setting of the process, or the seed of its generator, that a call leaves changed.",
    mend="Keep everything on `ctx`.",
)
def state(probe: Probe) -> Iterator[Finding | None]:
    """Interleave two live calls, then run in several threads, and compare with calls alone."""
    yield _settings(probe)
    points = [probe.point(0), probe.neighbour(2)]
    cotangents = probe.cotangents(probe.output_values())
    calls = _Calls(probe, points, cotangents, [])
    first, outputs = calls.begin(0)
    kept = [*outputs, *calls.end(first, outputs)]
    before = [t.detach().clone() for t in kept]
    alone = [[g.clone() for g in probe.backward(x, cotangents)] for x in points]
    probe.backward(points[1], cotangents)  # whose results nobody wants
    place = probe.differ([t.detach() for t in kept], before)
    if place is not None:
        yield _overwritten(calls, (before[place], kept[place]), place - len(outputs))
    calls = replace(calls, alone=alone)
    for order in ((0, 1), (1, 0)):
        live = [calls.begin(k) for k in (0, 1)]
        for k in order:
            yield calls.unlike(k, calls.end(*live[k]), _SECOND, points[1 - k])
    yield from _disturbed(calls)
    if probe.draws:
        yield probe.holds("Live calls do not disturb each other (threads share the generator).")
    yield from _threads(calls)
    yield probe.holds(f"Two live calls and {_THREADS} threads do not disturb each other.")


@dataclass(frozen=True)
class _Calls:
    """Calls at two points, which begin and end apart, and the gradients of each alone."""

    probe: Probe
    points: Sequence[Tensors]
    cotangents: Tensors
    alone: Sequence[Tensors]

    def begin(self, k: int, *, seeded: bool = True) -> tuple[Tensors, Tensors]:
        """Leaves and outputs."""
        leaves = self.probe.leaves(self.points[k])
        return leaves, self.probe.evaluate(leaves, seeded=seeded)

    def end(self, leaves: Tensors, outputs: Tensors) -> Tensors:
        """Gradients, of cotangents that backward may write into."""
        handed = [g.clone() for g in self.cotangents]
        return [g.detach() for g in self.probe.pull(leaves, handed, outputs)]

    def unlike(
        self, k: int, got: Tensors, what: str, others: Tensors, change: str = _OTHERS
    ) -> Finding | None:
        """The finding that gradients are others than those of a call alone."""
        probe = self.probe
        there = replace(probe, inputs=probe.inputs.with_points(self.points[k]))
        found = there.unlike(
            got, self.alone[k],
            f"A gradient is wrong while {what} is under way: {_SHARED}",
            hint=_HINT,
            given={"w": self.cotangents, "others": others},
            said="",  # numbers of two calls, which no relation holds between
            repro=[
                "print('alone', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
                "first = outs()",
                change,
                "outs(); print('with a second call live', torch.autograd.grad(first, xs, w, "
                "allow_unused=True))",
            ],
        )  # fmt: skip
        return None if found is None else self.placed(found)

    def placed(self, finding: Finding) -> Finding:
        """A finding that names, as it is written, what calls share: nothing of it was tried."""
        places = "" if self.probe.brief else shared_in(self.probe)
        said = f"{_SHARED[:-1]}, likely {places}."
        return replace(finding, detail=finding.detail.replace(_SHARED, said if places else _SHARED))


def _settings(probe: Probe) -> Finding | None:
    """What a call leaves changed for whatever else runs in the process, its seed too.

    The first call is left out: what it loads may set what it needs.
    """
    reads = {name: read for name, (read, _) in global_settings().items()}
    reads["the seed of the random generator"] = torch.initial_seed
    points = probe.point(0)
    with guarded():
        cotangents = probe.cotangents(probe.output_values(points))
        probe.backward(points, cotangents)
    reseed(probe.seed)
    before = {name: read() for name, read in reads.items()}
    probe.backward(points, cotangents)
    for name, read in reads.items():
        now = read()
        if now != before[name]:
            said = f"A call changes {name}, for the whole process and whatever else runs in it."
            return probe.broken(said, expected=str(before[name]), got=str(now), hint=_PUT_BACK)
    return None


def _disturbed(calls: _Calls) -> Iterator[Finding | None]:
    """What is wrong with a call during which another one runs that nobody wants anything of."""
    probe, inputs, points = calls.probe, calls.probe.inputs, calls.points[0]
    brief, sizes = replace(probe, patience=min(probe.patience, _PATIENCE)), None
    with suppress(Exception):  # a tensor of another class
        sizes = larger(inputs, probe.generator("other sizes"))
    factors = itertools.cycle((2.0, 1.5, 1.25))  # a ratio of two may be all that counts
    ways: list[tuple[Callable[[], Arguments], Tensors, str, str]] = [
        (lambda: inputs, [-_FAR * x for x in points], _SECOND, _OTHERS),
        (lambda: inputs, [_FAR * x for x in points], _SECOND, _OTHERS),
        (lambda: inputs.with_numbers(lambda number: number * next(factors)), points,
         "a call with other numbers", _NUMBERS),
        (inputs.with_other_integers, points, "a call with other integers", _INTEGERS),
    ]  # fmt: skip
    if sizes is not None:
        ways.append((lambda: sizes, sizes.points(), "a call with other sizes", _OTHERS))
    for make, others, what, change in ways:
        call = calls.begin(0)
        with suppress(Exception):  # outside of its domain, or without an end there
            brief.at(make()).evaluate(probe.leaves(others))
        try:
            got = calls.end(*call)
        except Exception as error:  # what the other call has left is of another size
            said = f"Backward fails while {what} is under way: {_SHARED} It says "
            yield calls.placed(probe.raised(error, said + describe(error), _HINT))
            return
        yield calls.unlike(0, got, what, others, change)
    call = calls.begin(0)
    several = [calls.begin(1) for _ in range(_LIVE)]  # for what has a place for each of a few
    yield calls.unlike(
        0, calls.end(*call), f"a row of {len(several)} calls", calls.points[1], _SEVERAL
    )


def _threads(calls: _Calls) -> Iterator[Finding | None]:
    def work(number: int) -> Answer:
        k = number % 2
        for _ in range(_REPEATS):
            got = calls.end(*calls.begin(k, seeded=False))
            if calls.probe.differ(got, calls.alone[k], looser=1e3) is not None:
                return got
        return None

    with limited(_THREADS * _REPEATS * calls.probe.patience):  # which no thread but this one keeps
        answers = _at_once(work, _THREADS)
    for number, answer in enumerate(answers):
        if answer is not None:
            k = number % 2
            yield calls.unlike(k, answer, "another thread", calls.points[1 - k])


def _at_once(work: Callable[[int], Answer], count: int) -> list[Answer]:
    """What several threads answer; one that never ends is not waited for beyond the limit."""
    found: list[Future[Answer]] = [Future() for _ in range(count)]

    def run(number: int) -> None:
        try:
            found[number].set_result(work(number))
        except BaseException as error:
            found[number].set_exception(error)

    for number in range(count):
        Thread(target=copy_context().run, args=(run, number), daemon=True).start()
    return [one.result() for one in found]


def _overwritten(calls: _Calls, pair: tuple[object, object], place: int) -> Finding:
    before, now = pair
    what = "an output" if place < 0 else f"the gradient of {calls.probe.path(place)}"
    return calls.probe.broken(
        f"The next call writes into {what} of the call before.",
        expected=before,
        got=now,
        place=what,
        said="",  # numbers of two calls, as above
        hint="Return memory of the call's own: what is returned is the caller's to keep.",
        given={"w": calls.cotangents, "others": calls.points[1]},
        repro=[
            "first = outs(); kept = [y.detach().clone() for y in first]",
            "g = torch.autograd.grad(first, xs, w, allow_unused=True); was = "
            "[None if t is None else t.clone() for t in g]",
            _OTHERS,
            "torch.autograd.grad(outs(), others, w, allow_unused=True)",
            "print('before', kept, was); print('after ', first, g)",
        ],
    )
