"""`derivative`: backward is the transpose of the derivative of forward (intent `exact`)."""

from pullback.conformance._clause import clause
from pullback.conformance._derivative import Trial, decide, try_derivative
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
    if probe.intent != "exact":
        how = "inferred" if probe.inferred else "declared"
        return probe.skipped(f"The gradient is {how} as {probe.intent}: {probe.reason}.")
    count = len(probe.inputs.differentiable)
    choices: list[int | None] = list(range(count)) if count <= _SEPARATELY else [None]
    settled = 0
    for only in choices:
        trial = decide(lambda number, only=only: try_derivative(probe, number, only))
        if trial is not None and trial.match == "mismatch":
            return _broken(probe, trial, only)
        settled += trial is not None
    if not settled:
        return probe.skipped(
            "Finite differences do not settle at any point tried (kinks or noise)."
        )
    return probe.holds(f"Backward agrees with finite differences for {settled} of {len(choices)} "
                       f"input(s).{_excluded(probe)}")  # fmt: skip


def _excluded(probe: Probe) -> str:
    """Say which inputs were taken as constants because backward answers ``None``."""
    taken = set(probe.inputs.differentiable)
    floats = [
        path
        for k, (path, value) in enumerate(zip(probe.inputs.paths, probe.inputs.values, strict=True))
        if k not in taken and value.is_floating_point()
    ]
    return f" Constants: {', '.join(floats)}." if floats else ""


def _broken(probe: Probe, trial: Trial, only: int | None) -> Finding:
    place = "every input at once" if only is None else probe.path(only)
    k = only or 0
    return probe.broken(
        "The directional derivative by backward is not that of forward.",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} (finite differences)",
        got=f"{trial.value:.8g} (backward)",
        place=place,
        hint="Correct backward for this input. If it differs on purpose, declare "
        'gradient = "surrogate" on the class or pass gradient="surrogate".',
        repro=[
            f"ys, h = outs(), 1e-6; x = xs[{k}]; v = torch.randn_like(x); "
            "w = [torch.randn_like(y) for y in ys]",
            f"got = torch.autograd.grad(ys, xs, w, allow_unused=True)[{k}]",
            "with torch.no_grad():",
            "    x += h * v; plus = [y.clone() for y in outs()]; x -= 2 * h * v; minus = outs()",
            "print('finite differences', "
            "sum((a * (p - m)).sum() for a, p, m in zip(w, plus, minus)).item() / (2 * h))",
            "print('backward          ', None if got is None else (got * v).sum().item())",
        ],
    )
