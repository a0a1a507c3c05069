"""`derivative`: backward is the transpose of the derivative of forward (intent `exact`)."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.cause._repair import EDIT
from pullback.conformance.cause._wrong_derivative import wrong_derivative
from pullback.conformance.clauses._hints import SINGLE
from pullback.conformance.evidence._derivative import Trial, judge
from pullback.conformance.evidence._linearity import linearity_gap
from pullback.conformance.evidence._related import data, right_together, with_more
from pullback.conformance.evidence._screen import hides_slopes, is_right, unlike_own
from pullback.conformance.inputs._arguments import is_uniform
from pullback.conformance.inputs._structure import beside, bound_rows
from pullback.conformance.inputs._vectors import products
from pullback.conformance.process._failure import attempt

__all__ = ["derivative"]

_SEPARATELY = 8
_ELSEWHERE = 1  # inputs whose edit is searched for, where the first has none


_ON_PURPOSE = (
    'If it differs on purpose, declare gradient = "{0}" on the class or pass gradient="{0}".'
)


@clause(
    why="Training follows this gradient. A wrong one raises no error: the loss falls more "
    "slowly, or to a worse place, and nothing points at the cause.",
    breach="as `<J'w, v>` off from finite differences along a random direction, per input.",
    mend=f"Correct backward for this input. {_ON_PURPOSE.format('surrogate')}",
)
def derivative(probe: Probe) -> Finding:
    """Compare <J'w, v> with float64 finite differences of <w, f> along random directions."""
    asked, choices = probe, list[int | None](range(len(probe.inputs.differentiable)))
    if probe.intent != "exact":
        if not probe.held:
            return probe.skipped(_said(probe))
        asked, choices = replace(probe, outputs=probe.moving), [*probe.held]
    elif len(choices) > _SEPARATELY:
        choices = [None]
    settled, judged, bound = 0, 0, ""
    for there, only, trial, where in _trials(probe, asked, choices):
        if trial.is_wrong and not bound and not _hangs_on_its_start(there, trial):
            bound = right_together(asked)
            if not bound:
                return _broken(there, trial, only, where)
        settled, judged = settled + trial.is_told, judged + 1
    if not settled:
        return _of_few_digits(asked) or probe.skipped(
            "Finite differences do not settle at any point tried (kinks or noise)."
        )
    through = "" if probe.intent == "exact" else f" {_said(probe)}"
    forgotten = [] if probe.inputs.declared or bound else _forgotten(probe)
    if forgotten:
        return probe.lacking(
            f"Backward answers None for {', '.join(forgotten)}, with which forward moves: a "
            "constant on purpose, or a gradient forgotten. The others agree with finite "
            f"differences.{through}",
            "Return its gradient. Where it is a constant on purpose, mark the inputs that are "
            "differentiated with requires_grad, which settles it.",
        )
    bound = bound or _beside(asked, choices)
    if bound:
        return probe.lacking(
            f"Backward agrees with finite differences as long as {bound}, and not beside.{through}",
            "Nothing, where it is always so. For others, differentiate forward as it is there.",
        )
    return probe.holds(f"Backward agrees with finite differences for {settled} of {judged} "
                       f"input(s).{through}")  # fmt: skip


_Tried = tuple[Probe, int | None, Trial, str]  # the probe, of which input, where it is right


def _trials(probe: Probe, asked: Probe, choices: Sequence[int | None]) -> Iterator[_Tried]:
    """Each input, what a module among the arguments learns, sparse values, and what zeros hide."""
    yield from ((probe, only, judge(asked, only), "") for only in choices)
    if probe.intent != "exact":
        return
    given, answered = probe.inputs, []
    for k in (*given.learnt, *given.beside):
        there = replace(probe, inputs=given.with_differentiable([k]))
        points = there.point(0)
        weights = there.cotangents(there.output_values(points))
        # Not one that is answered with ``None`` where backward adds to its ``.grad`` by itself.
        before = _grad_of(given.owned[k]) if k in given.owned else None
        answer = there.answers(there.leaves(points), weights)[0]
        is_lost = before is not None and torch.equal(before, _grad_of(given.owned[k]))
        answered += [k] * (answer is not None or is_lost)
    # All together, so that an edit which mends one of them is asked what becomes of the others.
    there = replace(probe, inputs=given.with_differentiable([*given.differentiable, *answered]))
    for only in range(len(given.differentiable), len(there.inputs.differentiable)):
        yield there, only, judge(there, only), ""
    yield from filter(None, (_hidden(probe, only) for only in choices))


# How far slopes of two seeds are apart, and how much less their values.
_APART, _ALIKE, _STEP = 0.1, 1e-3, 2.0**-8


def _hangs_on_its_start(probe: Probe, trial: Trial) -> bool:
    """Whether random numbers move what forward answers beside the arguments, and not at them.

    A solver that starts at random numbers forgets them where its arguments fit each other, as an
    operator does its eigenvector. Beside such arguments it has no one answer to differentiate.
    """

    def value(seed: int, t: float) -> float:
        there = replace(probe, seed=seed)
        found = there.output_values(there.moved(trial.points, trial.step, t))
        return products(trial.weights, found)[0]

    with suppress(Exception):  # not defined there
        at, up, down = ([value(probe.seed + k, t) for k in (0, 1)] for t in (0.0, _STEP, -_STEP))
        apart = abs((up[0] - down[0]) - (up[1] - down[1]))
        moves = max(abs(u - d) for u, d in zip(up, down, strict=True))
        return bool(at[0]) and apart > _APART * moves and abs(at[0] - at[1]) < _ALIKE * apart
    return False


def _grad_of(owned: torch.Tensor) -> torch.Tensor:
    """The ``.grad`` that a tensor of a module's has now; zeros where it has none."""
    return torch.zeros_like(owned) if owned.grad is None else owned.grad.clone()


def _hidden(probe: Probe, only: int | None) -> _Tried | None:
    """What a constant that is zero or one hides: a fault in what it is multiplied with.

    It may be a flag, or all that is allowed: backward must be wrong beside it and farther off too.
    """
    given = probe.inputs
    for k, value in enumerate(given.values):
        if not is_uniform(value) or k in {*given.differentiable, *given.owned}:
            continue
        drawn = probe.generator(f"zeros {k}")
        close = beside(value, drawn, 0.02)
        away = beside(value, drawn, 0.5) if bound_rows(value) else value + 1
        if torch.equal(close, value) or torch.equal(away, value):
            continue  # all that it may be
        with suppress(Exception):  # refused there
            far, near = (replace(probe, inputs=given.with_some({k: v})) for v in (away, close))
            if judge(far, only).is_wrong and (trial := judge(near, only)).is_wrong:
                number = float(value.reshape(-1)[0].real)
                where = f" It is right where {given.paths[k]} is {number:g}, as given."
                return near, only, trial, where
    return None


def _said(probe: Probe) -> str:
    how = "inferred" if probe.inferred else "declared"
    return f"The gradient is {how} as {probe.intent}: {probe.reason}."


def _forgotten(probe: Probe) -> list[str]:
    """Floating inputs that nobody marked, that backward answers with ``None`` and forward uses."""
    taken = set(probe.inputs.differentiable)
    found = []
    for k, value in enumerate(probe.inputs.values):
        if k in taken or not value.is_floating_point() or probe.inputs.nested(k):
            continue
        alone = replace(probe, inputs=probe.inputs.with_differentiable([k]))
        if judge(alone).is_wrong:
            found.append(probe.inputs.paths[k])
    return found


def _beside(probe: Probe, choices: Sequence[int | None]) -> str:
    """The input that backward is wrong for where its rows leave what binds them, and what that is.

    A loss of logarithms of shares, a marginal that adds up to one, a quaternion of length one:
    their gradients may be any that are right along what such rows can move by.
    """
    free = replace(probe, free=True)
    for k, x in enumerate(probe.inputs.points()):
        what = bound_rows(x)
        if what and {k, None} & {*choices} and judge(free, k).is_wrong:
            return f"the rows of {probe.path(k)} are {what}"
    return ""


def _of_few_digits(probe: Probe) -> Finding | None:
    """What finite differences do not tell for rounding, told by what autograd has of forward."""
    if not hides_slopes(probe):
        return None
    found = [unlike_own(probe, number) for number in (0, 2)]
    if None in found:
        return None
    if not all(found):
        return probe.holds("Backward agrees with the derivative that autograd has of forward.")
    place, expected, got = found[0][0]  # type: ignore[index]
    return probe.broken(
        f"The gradient of {probe.path(place)} is not what autograd has of forward.",
        expected=expected, got=got, place=probe.path(place),
        given={"w": probe.spread(probe.output_values(probe.point(0)), "own")},
        repro=[f"print('backward', torch.autograd.grad(outs(), xs, w)[{place}])"],
    )  # fmt: skip


_CLOSE = 1e-3


def _of_one_row(probe: Probe) -> bool:
    """Whether the arguments hold one row, and backward is right beside a second one."""
    chosen, given = data(probe), probe.inputs
    if not chosen or len(given.values[chosen[0]]) != 1:
        return False
    two = with_more(given, given.with_points(probe.point(2)), chosen)
    return attempt(lambda: is_right(probe.at(two)), False)


def _broken(probe: Probe, trial: Trial, only: int | None, where: str = "") -> Finding:
    if probe.brief:
        return wrong_derivative(probe, trial, only, detail="It is wrong.", place="an input")
    found = _finding(probe, trial, only, where)
    others = [] if found.hint.startswith(EDIT) or only is None else _others(probe, only)
    for k, other in others[:_ELSEWHERE]:
        beside = _finding(probe, other, k, where)
        if beside.hint.startswith(EDIT):  # a cause that is known before one that is not
            found, others = beside, [(only, trial), *(o for o in others if o[0] != k)]
            break
    names = [probe.path(k) for k, _ in others if k is not None]
    of = "So are those of" if len(names) > 1 else "So is that of"
    too = f" {of} {' and '.join(names)}." if names else ""
    return replace(found, detail=found.detail + too)


def _others(probe: Probe, only: int) -> list[tuple[int | None, Trial]]:
    """The other inputs whose gradients are wrong."""
    if probe.intent != "exact":
        return []
    every = (k for k in range(len(probe.inputs.differentiable)) if k != only)
    return [(k, trial) for k in every if (trial := judge(probe, k)).is_wrong]


def _finding(probe: Probe, trial: Trial, only: int | None, where: str) -> Finding:
    place = "every input at once" if only is None else probe.path(only)
    wrong = f"The gradient of {place} is not what finite differences of forward are.{where}"
    if _of_one_row(probe):
        return wrong_derivative(
            probe, trial, only, detail=f"{wrong} It is for two rows, not for one.", place=place,
            hint=SINGLE,
        )  # fmt: skip
    finding = wrong_derivative(probe, trial, only, detail=wrong, place=place)
    # One that refuses some cotangents is linear, for all that is seen.
    linear = attempt(lambda: linearity_gap(probe) is None, True)
    meant = _ON_PURPOSE.format("surrogate" if linear else "nonlinear")
    if finding.hint.startswith(EDIT):
        edit = f"{finding.hint} {meant}"
        return replace(finding, hint=edit)
    off = abs(trial.value - trial.estimate.value)
    close = " They are close: if forward or backward iterates to a tolerance, check a finer one."
    close *= off < _CLOSE * abs(trial.estimate.value)
    return replace(finding, hint=finding.hint or f"Correct backward for this input. {meant}{close}")
