"""`derivative`: backward is the transpose of the derivative of forward (intent `exact`)."""

from dataclasses import replace

from pullback.conformance._clause import clause
from pullback.conformance._derivative import Trial, decide, try_derivative
from pullback.conformance._entrywise import Entrywise, compare_entries
from pullback.conformance._probe import Probe
from pullback.report import Finding

__all__ = ["derivative"]

_SEPARATELY = 8


@clause(
    "derivative",
    promise="Backward is the transpose of the derivative of forward (intent `exact`).",
    why="Training follows this gradient. A wrong one raises no error: the loss falls more "
    "slowly, or to a worse place, and nothing points at the cause.",
    breach="as `<J'w, v>` off from finite differences along a random direction, per input.",
    mend="Correct backward for the input named; if it differs on purpose, declare `surrogate`.",
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
    settled = 0
    for only in choices:
        trial = decide(lambda number, only=only: try_derivative(asked, number, only))
        if trial is not None and trial.match == "mismatch":
            return _broken(probe, trial, only)
        settled += trial is not None
    if not settled:
        return probe.skipped(
            "Finite differences do not settle at any point tried (kinks or noise)."
        )
    through = "" if probe.intent == "exact" else f" {_said(probe)}"
    forgotten = [] if probe.inputs.declared else _forgotten(probe)
    if forgotten:
        return probe.lacking(
            f"Backward answers None for {', '.join(forgotten)}, with which forward moves: a "
            "constant on purpose, or a gradient forgotten. The others agree with finite "
            f"differences.{through}",
            "Return its gradient. Where it is a constant on purpose, mark the inputs that are "
            "differentiated with requires_grad, which settles it.",
        )
    return probe.holds(f"Backward agrees with finite differences for {settled} of {len(choices)} "
                       f"input(s).{through}")  # fmt: skip


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
        trial = decide(lambda number, alone=alone: try_derivative(alone, number))
        if trial is not None and trial.match == "mismatch":
            found.append(probe.inputs.paths[k])
    return found


_HINT = (
    "Correct backward for this input. If it differs on purpose, declare "
    'gradient = "surrogate" on the class or pass gradient="surrogate".'
)
_CLOSE = 1e-3


def _broken(probe: Probe, trial: Trial, only: int | None) -> Finding:
    hint = _HINT
    if abs(trial.value - trial.estimate.value) < _CLOSE * abs(trial.estimate.value):
        hint += " They are close: if backward solves or sums to a tolerance, check a finer one."
    found = compare_entries(probe, only)
    if found is not None:
        return _by_entry(probe, found, hint)
    place = "every input at once" if only is None else probe.path(only)
    there = replace(probe, inputs=probe.inputs.with_points(trial.points))
    return there.broken(
        "The directional derivative by backward is not that of forward.",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} (finite differences)",
        got=f"{trial.value:.8g} (backward)",
        place=place,
        hint=hint,
        given={"w": trial.weights, "v": trial.step},
        repro=[
            "h = 1e-6",
            "got = torch.autograd.grad(outs(), xs, w, allow_unused=True)",
            "got = [torch.zeros_like(x) if g is None else g for x, g in zip(xs, got)]",
            "def moved(h):",
            "    with torch.no_grad():",
            "        for x, d in zip(xs, v): x += h * d",
            "        found = sum((a.conj() * y).sum().real.item() for a, y in zip(w, outs()))",
            "        for x, d in zip(xs, v): x -= h * d",
            "    return found",
            "print('finite differences', (moved(h) - moved(-h)) / (2 * h))",
            "print('backward          ', "
            "sum((g.conj() * d).sum().real.item() for g, d in zip(got, v)))",
        ],
    )


def _by_entry(probe: Probe, found: Entrywise, hint: str) -> Finding:
    there = replace(probe, inputs=probe.inputs.with_points(found.points))
    k = found.only
    if found.got is None:
        hint = "Return its gradient at its place: backward returns None there."
    return there.broken(
        "Backward is not what finite differences of forward are.",
        expected=found.expected,
        got=found.got,
        place=probe.path(k),
        hint=hint,
        said=found.said,
        given={"w": found.weights},
        repro=[
            f"got = torch.autograd.grad(outs(), xs, w, allow_unused=True)[{k}]",
            f"x = xs[{k}]; steps = {found.steps()}",
            "def moved(i, h):",
            "    with torch.no_grad():",
            "        x.view(-1)[i] += h",
            "        found = sum((a.conj() * y).sum().real.item() for a, y in zip(w, outs()))",
            "        x.view(-1)[i] -= h",
            "    return found",
            "print('finite differences', "
            "[(moved(i, h) - moved(i, -h)) / (2 * h) for i, h in steps.items()])"
            if not found.expected.is_complex()
            else "print('finite differences', [complex(*[(moved(i, d * h) - moved(i, -d * h)) "
            "/ (2 * h) for d in (1, 1j)]) for i, h in steps.items()])",
            "print('backward          ', got if got is None else "
            "[got.reshape(-1)[i].item() for i in steps])",
        ],
    )
