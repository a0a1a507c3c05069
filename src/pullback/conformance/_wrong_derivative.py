"""Tell of a derivative that is wrong: entry by entry where it can be, else along a direction."""

from dataclasses import replace

from pullback.conformance._derivative import Trial
from pullback.conformance._entrywise import wrong_entries
from pullback.conformance._probe import Probe
from pullback.report import Finding

__all__ = ["wrong_derivative"]


def wrong_derivative(
    probe: Probe, trial: Trial, only: int | None = None, *, detail: str, place: str, hint: str = ""
) -> Finding:
    """The finding that backward is not the derivative of forward.

    Arguments:
        probe: the subject with its inputs.
        trial: the comparison that has shown it.
        only: the position of the input, or ``None`` to look at each.
        detail: what was seen.
        place: what is concerned, where no single input is found.
        hint: how to mend it.
    """
    found = wrong_entries(probe, only, detail, hint)
    return _along(probe, trial, detail, place, hint) if found is None else found


def _along(probe: Probe, trial: Trial, detail: str, place: str, hint: str = "") -> Finding:
    there = replace(probe, inputs=probe.inputs.with_points(trial.points))
    return there.broken(
        f"{detail} The directional derivative by backward is another.",
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
