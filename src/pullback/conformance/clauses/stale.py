"""`stale`: a saved tensor that is changed later is noticed."""

from collections.abc import Iterator

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._arguments import is_continuous

__all__ = ["stale"]


@clause(
    why="When a saved tensor is changed after forward, backward must notice. Otherwise it "
    "computes the gradient of something else.",
    breach="when each input and output is changed in place: backward must raise, or not care.",
    mend="`save_for_backward` (not `.data`), or save a clone.",
)
def stale(probe: Probe) -> Iterator[Finding | None]:
    """Change each input and output between forward and backward: it must raise or not matter."""
    run = Run.of(probe)
    handed, _, every = probe.exposed(probe.leaves())
    paths = enumerate(probe.inputs.paths)
    owned = probe.inputs.owned  # a module's own, which the caller goes on using
    places = [(path, 0, k) for k, path in paths if is_continuous(handed[k]) and k not in owned]
    places += [(f"output {k}", 1, k) for k, y in enumerate(every) if is_continuous(y)]
    for name, group, k in places:
        got = _after_change(probe, group, k, run.cotangents)
        target = f"ys[{k}]" if group else name
        yield None if got is None else probe.unlike(
            got, run.gradients,
            f"{name} was changed in place after forward; backward silently used new values.",
            place=name,
            hint="Save it with ctx.save_for_backward, which notices a change, or save a clone.",
            given={"w": run.cotangents},
            repro=[
                "ys = outs()",
                "print('before', torch.autograd.grad(ys, xs, w, allow_unused=True))",
                "ys = outs()",
                f"with torch.no_grad(): {target}.mul_(1.5).add_(0.25)",
                "print('after ', torch.autograd.grad(ys, xs, w, allow_unused=True))",
            ],
        )  # fmt: skip
    yield probe.holds("A change in place after forward raises or does not matter.")


def _after_change(probe: Probe, group: int, k: int, cotangents: Tensors) -> Tensors | None:
    """The gradients after one tensor was changed in place, or ``None`` where that raises."""
    leaves, copies = probe.leaves(), [g.clone() for g in cotangents]
    handed, _, every = probe.exposed(leaves)
    outputs = [every[j] for j in probe.outputs]
    try:
        with torch.no_grad():
            (handed, every)[group][k].mul_(1.5).add_(0.25)
        return [g.detach() for g in probe.pull(leaves, copies, outputs)]
    except Exception:  # loud in whatever way: that is the promise
        return None
