"""`double` and `once`: the second derivative is right, or loudly refused."""

import math
from collections.abc import Callable, Sequence

import torch

from pullback.conformance._derivative import Trial, decide, second_estimate, try_second
from pullback.conformance._failure import classify, describe
from pullback.conformance._nodes import custom_nodes
from pullback.conformance._probe import Probe
from pullback.conformance._report import Finding, Verdict

__all__ = ["double", "once"]

_COMPLETE = "Write Function from pullback instead, or use pullback.complete(F)."


def double(probe: Probe) -> Finding:
    """Compare autodiff of <B(g), u> with finite differences of B, by inputs and by cotangent."""
    if _is_once(probe):
        return probe.lacking(
            "Backward is marked once_differentiable; `once` says how loudly.", _COMPLETE
        )
    count = len(probe.inputs.differentiable)
    refused = _refusal(lambda: try_second(probe, 0))
    if refused is not None:
        if classify(refused) is not Verdict.LACKING:
            raise refused
        return probe.lacking(f"It says {describe(refused)}", _COMPLETE)
    settled = 0
    for only in range(count + len(probe.outputs)):
        trial = decide(lambda number, only=only: try_second(probe, number, only))
        if trial is not None and trial.match == "mismatch":
            return _broken(probe, trial, only, count)
        settled += trial is not None
    if not settled:
        return probe.skipped("Finite differences of backward do not settle (kinks or noise).")
    return probe.holds("The derivative of backward agrees with finite differences of backward.")


def _broken(probe: Probe, trial: Trial, only: int, count: int) -> Finding:
    place = probe.path(only) if only < count else f"the cotangent of output {only - count}"
    source = f"xs[{only}]" if only < count else f"w[{only - count}]"
    what = "is NaN" if math.isnan(trial.value) else "does not change as backward itself does"
    return probe.broken(
        "The second derivative is silently wrong: backward, differentiated by autograd with "
        f"respect to {place}, {what}.",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} "
        "(finite differences of backward)",
        got=f"{trial.value:.8g} (backward of backward)",
        place=place,
        hint="Write backward with differentiable operations of what save_for_backward saved; what "
        "forward computed is a constant to backward: compute it there again, or make it an output "
        "(pullback.Function differentiates residuals). Otherwise decorate it with "
        "once_differentiable.",
        repro=[
            "w, h = [torch.randn_like(y).requires_grad_() for y in outs()], 1e-6",
            "def B(g=False): r = torch.autograd.grad(outs(), xs, w, create_graph=g, "
            "allow_unused=True); return [b for b in r if b is not None]",
            f"u = [torch.randn_like(b) for b in B()]; x = {source}; v = torch.randn_like(x)",
            "got = torch.autograd.grad([b for b in B(True)], x, u, allow_unused=True)[0]",
            "x.data += h * v; plus = B(); x.data -= 2 * h * v; print('finite differences', "
            "sum((c * (p - m)).sum().item() for c, p, m in zip(u, plus, B())) / (2 * h))",
            "print('double backward   ', None if got is None else (got * v).sum().item())",
        ],
    )


def once(probe: Probe) -> Finding:
    """Where a second derivative is refused, each way to ask for it must raise or be right."""
    if not _is_once(probe):
        return probe.skipped("Backward is not marked once_differentiable.")
    bends = [k for k in range(len(probe.inputs.differentiable)) if _bends(probe, k)]
    if not bends:
        return probe.holds("The second derivative is zero, so that no silent zero is wrong.")
    silent = [name for name, ask in _WAYS.items() if _refusal(lambda a=ask: a(probe)) is None]
    if not silent:
        return probe.holds("A second derivative raises under autograd and under torch.func.")
    return probe.broken(
        f"A second derivative is silently zero, not refused: {'; '.join(silent)}.",
        expected="an error that names once_differentiable",
        got="zeros in place of the second derivative",
        place=probe.path(bends[0]),
        hint=f"torch's once_differentiable is silent here. {_COMPLETE}",
        repro=[
            "g = torch.autograd.grad(sum(y.sum() for y in outs()) + sum(x.square().sum() "
            "for x in xs), xs, create_graph=True)",
            "h = torch.autograd.grad(sum(b.sum() for b in g), xs)",
            "print('second derivative, no error raised (2 is from x squared):', h)",
        ],
    )


def _is_once(probe: Probe) -> bool:
    """Whether any custom Function in the graph is marked once_differentiable."""

    def marked(rule: Callable[..., object]) -> bool:
        code = getattr(rule, "__code__", None)
        return (
            code is not None
            and code.co_filename.endswith("autograd/function.py")
            and (hasattr(rule, "__wrapped__"))
        )

    outputs = probe.evaluate(probe.leaves())  # held: a node lives as long as what it made
    nodes = custom_nodes(outputs)
    if probe.subject.function is not None:
        classes = [probe.subject.function, *(node._forward_cls for node in nodes)]
    else:
        classes = [node._forward_cls for node in nodes]
    return any(marked(cls.backward) or marked(cls.vjp) for cls in classes)


def _bends(probe: Probe, only: int) -> bool:
    """Whether the Function's own backward changes with an input, by finite differences."""
    estimate = second_estimate(probe, only)
    return estimate.error < 1e-3 * estimate.magnitude and abs(estimate.value) > 1e-6 * max(
        estimate.magnitude, 1e-12
    )


def _refusal(ask: Callable[[], object]) -> Exception | None:
    """The error of a second derivative, or ``None`` when it answers."""
    try:
        ask()
    except Exception as error:  # any error is loud; the caller judges it
        return error
    return None


def _direct(probe: Probe) -> object:
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    cotangents = [g.requires_grad_() for g in probe.cotangents(outputs)]
    gradients = probe.pull(leaves, cotangents, outputs, create_graph=True)
    return torch.autograd.grad(_total(gradients), leaves, allow_unused=True)


def _summed(probe: Probe) -> object:
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    total = _total(outputs) + _total([x * x.conj() for x in leaves])
    gradients = torch.autograd.grad(total, leaves, create_graph=True)
    return torch.autograd.grad(_total(gradients), leaves)


def _functional(probe: Probe) -> object:
    points = tuple(probe.inputs.points())
    positions = tuple(range(len(points)))

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return _total(probe.flat(*leaves))

    def slope(*leaves: torch.Tensor) -> torch.Tensor:
        return _total(torch.func.grad(loss, argnums=positions)(*leaves))

    return torch.func.grad(slope, argnums=positions)(*points)


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The real sum of every entry."""
    return torch.stack([part.real.sum().double() for part in parts]).sum()


_WAYS: dict[str, Callable[[Probe], object]] = {
    "autograd.grad of autograd.grad with allow_unused": _direct,
    "autograd.grad of a gradient summed with other terms": _summed,
    "torch.func.grad of torch.func.grad": _functional,
}
