"""`state`: live calls do not share state; threads do not either."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Thread

from pullback.conformance._clause import clause
from pullback.conformance._limits import limited
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._repro import Given
from pullback.report import Finding

__all__ = ["state"]

Answer = Tensors | None

# How many times the given numbers those of a call are that only disturbs, and how long it may take.
_FAR, _PATIENCE = 8, 5.0
_THREADS = 4
_REPEATS = 5

_SECOND = "a second live call"
# How scripts make a second call of the first.
_OTHERS = (
    "others = [x.requires_grad_() for x in others]; args = tree_map(lambda a: "
    "next((o for x, o in zip(xs, others) if x is a), a), args)"
)
_NUMBERS = "args = tree_map(lambda a: 2 * a if type(a) is float else a, args)"


@clause(
    promise="Live calls do not share state; threads do not either.",
    why="Two live calls that share state overwrite each other: shared weights, several "
    "losses, data-parallel threads.",
    breach="when two calls are interleaved, nearby, at numbers of other signs and sizes and with "
    "other options, then in four threads.",
    mend="Keep everything on `ctx`.",
)
def state(probe: Probe) -> Finding:
    """Interleave two live calls, then run in several threads, and compare with calls alone."""
    points = [probe.point(0), probe.neighbour(2)]
    shapes = probe.output_values()
    cotangents = probe.cotangents(shapes)
    first = probe.leaves(points[0])
    kept = [*probe.evaluate(first)]
    kept += [g.detach() for g in probe.pull(first, [g.clone() for g in cotangents], kept)]
    before = [t.detach().clone() for t in kept]
    alone = [[g.clone() for g in probe.backward(x, cotangents)] for x in points]
    probe.backward(points[1], cotangents)  # whose results nobody wants
    place = probe.differ([t.detach() for t in kept], before)
    if place is not None:
        pair = before[place], kept[place]
        given = {"w": probe.cotangents(shapes), "others": points[1]}
        return _overwritten(probe, pair, place - len(shapes), given)
    for order in ((0, 1), (1, 0)):
        leaves = [probe.leaves(x) for x in points]
        outputs = [probe.evaluate(x) for x in leaves]
        for k in order:
            handed = [g.clone() for g in cotangents]  # which backward may write into
            got = probe.pull(leaves[k], handed, outputs[k])
            finding = _unlike(probe, _SECOND, got, alone[k], cotangents,
                              points[k], points[1 - k])  # fmt: skip
            if finding is not None:
                return finding
    other = probe.at(probe.inputs.with_numbers(lambda number: 2 * number))
    for second, others, what, change in (
        *((probe, [far * x for x in points[0]], _SECOND, _OTHERS) for far in (-_FAR, _FAR)),
        (other, points[0], "a call with other numbers", _NUMBERS),
    ):
        got = _disturbed(probe, second, points[0], others, cotangents)
        finding = _unlike(probe, what, got, alone[0], cotangents, points[0], others, change)
        if finding is not None:
            return finding
    if probe.draws:
        return probe.holds("Live calls do not disturb each other (threads share the generator).")
    finding = _threads(probe, points, cotangents, alone)
    return finding or probe.holds(
        f"Two live calls and {_THREADS} threads do not disturb each other."
    )


def _disturbed(
    probe: Probe, second: Probe, points: Tensors, others: Tensors, cotangents: Tensors
) -> Tensors:
    """Gradients with a call between that is of other signs and sizes, where masks differ too."""
    leaves = probe.leaves(points)
    outputs = probe.evaluate(leaves)
    with suppress(Exception):  # outside of its domain, or without an end there
        replace(second, patience=min(probe.patience, _PATIENCE)).evaluate(probe.leaves(others))
    return probe.pull(leaves, [g.clone() for g in cotangents], outputs)


def _threads(
    probe: Probe, points: list[Tensors], cotangents: Tensors, alone: list[Tensors]
) -> Finding | None:
    def work(number: int) -> Answer:
        k = number % 2
        for _ in range(_REPEATS):
            leaves = probe.leaves(points[k])
            outputs = list(probe.unseeded(*leaves))
            handed = [g.clone() for g in cotangents]
            got = [g.detach() for g in probe.pull(leaves, handed, outputs)]
            if probe.differ(got, alone[k], looser=1e3) is not None:
                return got
        return None

    with limited(_THREADS * _REPEATS * probe.patience):  # which no thread but this one keeps
        answers = _at_once(work, _THREADS)
    for number, answer in enumerate(answers):
        if answer is not None:
            k = number % 2
            return _unlike(probe, "another thread", answer, alone[k], cotangents, points[k],
                           points[1 - k])  # fmt: skip
    return None


def _at_once(work: Callable[[int], Answer], count: int) -> list[Answer]:
    """What several threads answer; one that never ends is not waited for beyond the limit."""
    found: list[Future[Answer]] = [Future() for _ in range(count)]

    def run(number: int) -> None:
        try:
            found[number].set_result(work(number))
        except BaseException as error:
            found[number].set_exception(error)

    for number in range(count):
        Thread(target=run, args=(number,), daemon=True).start()
    return [one.result() for one in found]


def _overwritten(probe: Probe, pair: tuple[object, object], place: int, given: Given) -> Finding:
    before, now = pair
    what = "an output" if place < 0 else f"the gradient of {probe.path(place)}"
    return probe.broken(
        f"The next call writes into {what} of the call before.",
        expected=before,
        got=now,
        place=what,
        hint="Return memory of the call's own: what is returned is the caller's to keep.",
        given=given,
        repro=[
            "first = outs(); kept = [y.detach().clone() for y in first]",
            "g = torch.autograd.grad(first, xs, w, allow_unused=True); was = "
            "[None if t is None else t.clone() for t in g]",
            _OTHERS,
            "torch.autograd.grad(outs(), others, w, allow_unused=True)",
            "print('before', kept, was); print('after ', first, g)",
        ],
    )


def _unlike(  # noqa: PLR0917 - what one comparison takes
    probe: Probe, what: str, got: Tensors, alone: Tensors, cotangents: Tensors, points: Tensors,
    others: Tensors, change: str = _OTHERS,
) -> Finding | None:  # fmt: skip
    """The finding that gradients at some points are others than those of a call alone."""
    there = replace(probe, inputs=probe.inputs.with_points(points))
    return there.unlike(
        [g.detach() for g in got], alone,
        f"A gradient is wrong while {what} is under way: calls share state.",
        hint="Keep what a call needs on its ctx, not on the class, a module or a global.",
        given={"w": cotangents, "others": others},
        said="",  # numbers of two calls, which no relation holds between
        repro=[
            "print('alone', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            "first = outs()",
            change,
            "outs(); print('with a second call live', torch.autograd.grad(first, xs, w, "
            "allow_unused=True))",
        ],
    )  # fmt: skip
