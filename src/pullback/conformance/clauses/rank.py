"""`rank`: right at every number of dimensions that forward takes."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._wrong_derivative import wrong_derivative
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._related import Batch, data, sharings
from pullback.conformance.evidence._screen import (
    RIGHT,
    Run,
    Sweep,
    agrees,
    every_output,
    is_foreign,
    is_right,
    is_wrong,
)
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._vectors import are_finite
from pullback.conformance.process._failure import attempt, describe, raised
from pullback.conformance.script._repro import Given

__all__ = ["rank"]


@dataclass(frozen=True)
class _Made:
    """Arguments with another number of dimensions."""

    name: str  # what was done, in words
    chosen: tuple[int, ...]  # the tensors that have it
    inputs: Arguments  # the arguments
    items: tuple[Arguments, ...]  # the same one by one, each with the dimensions that were given
    less: bool = False  # whether a dimension was taken away

    def part(self, found: Tensors, k: int) -> Tensors:
        """What belongs to one item, where each has its part."""
        if self.less:
            return found
        return [y[k] if y.ndim and len(y) == 2 else y.new_empty(0) for y in found]

    def agreeing(self, probe: Probe, found: Tensors, alone: Sequence[Tensors]) -> list[bool]:
        """Which items have in what was found for all the numbers that they have alone."""
        return [_agree(probe, self.part(found, k), one) for k, one in enumerate(alone)]


class _Ran(NamedTuple):
    """What all items give at once, and each alone."""

    outputs: Tensors  # of all at once
    alone: list[Tensors]  # the same of each
    runs: list[Run]  # of each


@clause(
    why="A layer written for the rows of a matrix is handed batches of sequences, or one vector. "
    "Forward takes them, as most operations do, and backward sums over a dimension that it counts "
    "from the front, or looks at the first matrix alone.",
    breach="with one and two dimensions put before and one taken away: against finite differences, "
    "and item by item where forward gives the numbers of each item.",
    mend="Count dimensions from the end, or flatten the leading ones (x.reshape(-1, "
    "x.shape[-1])) and put them back; or let forward refuse other numbers of dimensions "
    "with an error.",
)
def rank(probe: Probe) -> Iterator[Finding | None]:
    """Put dimensions before and take one away, where forward allows it, and compare there."""
    if probe.intent == "nonlinear":
        yield probe.skipped("A nonlinear backward has no reference at another rank.")
    sweep = Sweep[str]()
    every = ((m.name, m) for m in _every(probe) if sweep.said.get(m.name) != RIGHT)
    yield sweep.over(every, partial(_run, probe), partial(_controlled, probe))
    told = "; ".join(f"{name}: {answer}" for name, answer in sweep.said.items())
    told += f"; others: {sweep.ended}" if sweep.ended else ""
    if not sweep.right:
        yield probe.skipped(f"No other number of dimensions could be judged: {told}.")
    yield probe.holds(f"{told[:1].upper()}{told[1:]}.")


def _run(probe: Probe, made: _Made) -> _Ran:
    items, outputs = [*map(probe.at, made.items)], every_output(probe.at(made.inputs))
    return _Ran(outputs, [*map(every_output, items)], [*map(Run.of, items)])


def _controlled(probe: Probe, name: str, made: _Made, ran: _Ran) -> Finding | str:
    """A finding that its controls do not take back, or what is said."""
    found = _judge(probe, made, ran)
    if isinstance(found, Finding) and is_foreign(probe, _as_few(probe, made)):
        return "not told: so few are wrong with the dimensions that were given too"
    if isinstance(found, Finding) and _depends_on_company(probe, made.chosen, data(probe)):
        return "not told: a row has another gradient alone than beside those given"
    return found


def _every(probe: Probe) -> Iterator[_Made]:
    """The arguments with more and fewer dimensions, for each choice of those that have them."""
    given = probe.inputs
    beside = given.with_points(probe.neighbour(2))
    for chosen in sharings(probe):
        other = given.with_some({k: beside.values[k] for k in chosen})
        for more in (1, 2):
            ones = (1,) * (more - 1)
            pairs = {k: (given.values[k], other.values[k]) for k in chosen}
            stacked = given.with_some(
                {k: torch.stack(p).view(2, *ones, *p[0].shape) for k, p in pairs.items()}
            )
            yield _Made(f"{more} more dimension{'s' * (more > 1)}", chosen, stacked, (given, other))
        if all(given.values[k].ndim and len(given.values[k]) for k in chosen):
            first, row = (given.changed(chosen, cut) for cut in (lambda v: v[0], lambda v: v[:1]))
            yield _Made("1 dimension less", chosen, first, (row,), less=True)


def _judge(probe: Probe, made: _Made, ran: _Ran) -> Finding | str:
    """A finding, or what is said of it."""
    other, same = probe.at(made.inputs), made.agreeing(probe, ran.outputs, ran.alone)
    cotangents = None
    if all(same):
        given = zip(*(run.cotangents for run in ran.runs), strict=True)
        shaped = (ran.outputs[k] for k in probe.outputs)
        cotangents = [torch.stack(g).reshape(y.shape) for g, y in zip(given, shaped, strict=True)]
    try:
        run = Run.of(other, cotangents)
    except Exception as error:
        if all(same) and not made.less and made.chosen == data(probe):
            if _by_chance(probe, made):
                return "not told: forward takes it since two sizes are the same"
            doing = f"Forward takes inputs with {made.name}, backward fails"
            return other.failed(error, doing, transform=False)
        return f"refused by backward ({describe(error, 60)})"
    if all(same):
        return _by_items(other, made, run, ran.runs)
    if same[0] and _is_first_alone(probe, made, ran.alone):
        return _broken(
            other, made, ran.alone[1][0], made.part(ran.outputs, 1)[0], "an output",
            repro=["print('at once', outs())", *_of_item(made, "1"), "print('alone  ', outs())"],
        )  # fmt: skip
    return _by_differences(probe, other, made, run)


def _by_chance(probe: Probe, made: _Made) -> bool:
    """Whether forward refuses more dimensions of half as many rows, which it takes without them.

    What counts dimensions from the front meets the rows where the next dimension was: that is a
    mistake of forward's, which it does not make alone where they are of one size.
    """
    shapes = [probe.inputs.values[k].ndim for k in made.chosen]
    if len(set(shapes)) > 1 or not shapes[0]:
        return False

    def half(value: torch.Tensor) -> torch.Tensor:
        rows = value.ndim - shapes[0]
        return value.narrow(rows, 0, (value.shape[rows] + 1) // 2)

    fewer, deeper = (
        probe.at(each.changed(made.chosen, half)) for each in (probe.inputs, made.inputs)
    )
    return (
        raised(lambda: every_output(fewer)) is None
        and raised(lambda: every_output(deeper)) is not None
    )


def _agree(probe: Probe, got: Tensors, expected: Tensors) -> bool:
    """Whether the numbers are the same, whatever dimensions of one there are."""
    if any(a.numel() != b.numel() for a, b in zip(got, expected, strict=True)):
        return False
    shaped = [a.reshape(b.shape) for a, b in zip(got, expected, strict=True)]
    return probe.differ(shaped, expected, 1e4) is None


def _by_items(probe: Probe, made: _Made, run: Run, items: list[Run]) -> Finding | str:
    """A finding where gradients are not the items' own: of data each its own, of others the sum."""
    for n, k in enumerate(probe.inputs.differentiable):
        every = torch.stack([item.gradients[n] for item in items])
        expected = every if k in made.chosen else every.sum(0)
        got = run.gradients[n]
        if probe.differ([got.reshape(expected.shape)], [expected], 1e4) is None:
            continue
        if probe.intent == "exact" and is_right(probe):
            break  # both may be so to a tolerance, as what solves all items together
        return _broken(
            probe, made, expected, got, f"the gradient of {probe.path(n)}",
            given={"w": run.cotangents}, repro=_item_by_item(made, n),
        )  # fmt: skip
    return RIGHT


def _depends_on_company(probe: Probe, *choices: tuple[int, ...]) -> bool:
    """Whether a row has another gradient alone than beside the others, as it was given already.

    So it has where a surrogate is scaled by how many entries there are; more items are more of
    them. Only a surrogate may: where forward treats rows apart, its derivative does. Which tensors
    have rows nobody says: those that have more dimensions, or all that have as many as the output.
    """
    some = choices if probe.intent == "surrogate" else ()
    return any(attempt(partial(_is_scaled, probe, chosen), False) for chosen in some)


def _is_scaled(probe: Probe, chosen: tuple[int, ...]) -> bool:
    """Whether the first row and the others give other gradients apart, of the same outputs."""
    whole, parts = Run.of(probe), []
    for cut in (slice(1), slice(1, None)):
        rows = probe.inputs.changed(chosen, lambda v, cut=cut: v[cut])
        parts.append(Run.of(probe.at(rows), [w[cut] for w in whole.cotangents]))
        if not _agree(probe, parts[-1].outputs, [y[cut] for y in whole.outputs]):
            return False
    for n, k in enumerate(probe.inputs.differentiable):
        each = [part.gradients[n] for part in parts]
        expected = torch.cat(each) if k in chosen else sum(each[1:], each[0])
        if probe.differ([whole.gradients[n]], [expected], 1e4) is not None:
            return True
    return False


def _is_first_alone(probe: Probe, made: _Made, alone: list[Tensors]) -> bool:
    """Whether the first item is right wherever it comes from, and the next is not.

    Not so where an entry depends on those before it, as it then does with the given dimensions too.
    """
    if made.less or probe.draws:
        return False  # what is drawn may be the same by chance
    try:
        turned = probe.at(made.inputs.changed(made.chosen, lambda v: v.flip(0)))
        same = made.agreeing(probe, every_output(turned), alone[::-1])
        whole = Batch.of(probe, made.chosen)
        places = [whole.differs(torch.tensor([k], device="cpu"))[0] for k in (0, 1)]
    except Exception:  # not known
        return False
    return same == [True, False] and not any(0 <= place < whole.outputs for place in places)


def _by_differences(probe: Probe, other: Probe, made: _Made, run: Run) -> Finding | str:
    """Backward against finite differences, where forward does not give the numbers of the items."""
    if probe.intent != "exact":
        return "not told: forward is no longer that of each item"
    if agrees(other, run, other.direction("rank")):
        return RIGHT
    foreign = "not told: backward is wrong with the dimensions that were given too"
    if is_wrong(probe):
        return foreign
    trial = judge(other, wanted=1, limit=5, singular=are_finite(run.gradients))
    if not trial.is_wrong:
        return RIGHT if trial.is_told else "not told"
    if is_foreign(probe, made.items):
        return foreign
    named = _named(other, made)
    return wrong_derivative(
        other, trial, place=named,
        detail=f"With {made.name} of {named}, which forward takes, backward is wrong.",
        hint=rank.mend,
    )  # fmt: skip


def _as_few(probe: Probe, made: _Made) -> list[Arguments]:
    """What has the dimensions given, and as few entries along the first as what has more."""
    numbers = any(probe.inputs.values[k].ndim == 0 for k in made.chosen)
    if probe.intent != "exact" or made.less or numbers:
        return []
    few = probe.inputs.changed(made.chosen, lambda v: v[:2])
    with suppress(Exception):  # refused
        every_output(probe.at(few))
        return [few]
    return []


def _named(probe: Probe, made: _Made) -> str:
    return ", ".join(probe.inputs.paths[k] for k in made.chosen)


def _of_item(made: _Made, number: str) -> list[str]:
    """Lines that put one item in the place of all."""
    ones = ", 0" * (made.name.startswith("2"))
    part = "a[None]" if made.less else f"a[{number}{ones}]"
    return [
        "leaves = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]",
        f"chosen = [leaves[k] for k in {list(made.chosen)}]",
        f"args = tree_map(lambda a: {part} if any(a is c for c in chosen) else a, args)",
    ]


def _item_by_item(made: _Made, place: int) -> list[str]:
    """Lines that print a gradient of all at once, and the sum of what each item gives."""
    leaves, chosen, item = _of_item(made, "i")
    own = "g" if made.less else "g[i]"
    return [
        "every = args",
        f"got = torch.autograd.grad(outs(), xs, w, allow_unused=True)[{place}]",
        leaves,
        chosen,
        f"total = torch.zeros_like(xs[{place}])",
        f"for i in range({1 if made.less else 2}):",
        f"    {item.removesuffix('args)')}every)",
        "    ys = outs()",
        f"    own = [{own}.reshape(y.shape) for g, y in zip(w, ys)]",
        f"    total += torch.autograd.grad(ys, xs, own, allow_unused=True)[{place}]",
        "print('item by item', total)",
        "print('at once     ', got)",
    ]


def _broken(
    probe: Probe, made: _Made, expected: object, got: object, what: str, *,
    repro: list[str], given: Given | None = None,
) -> Finding:  # fmt: skip
    named = _named(probe, made)
    return probe.broken(
        f"With {made.name} of {named}, which forward takes, {what} is wrong.",
        expected=expected, got=got, place=named, repro=repro, given=given,
    )  # fmt: skip
