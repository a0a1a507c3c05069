"""`stale`, `mutation` and `cotangent`: changes in place are declared and noticed."""

from collections.abc import Sequence

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._nodes import spied
from pullback.conformance._probe import Probe, Tensors, same_bits
from pullback.conformance._report import Finding

__all__ = ["cotangent", "mutation", "stale"]


def stale(probe: Probe) -> Finding:
    """Change each input and output between forward and backward: it must raise or not matter."""
    points = probe.inputs.points()
    cotangents = probe.cotangents([y.detach() for y in probe.evaluate(probe.leaves())])
    expected = probe.backward(points, cotangents)
    handed, every = probe.exposed(probe.leaves())
    paths = enumerate(probe.inputs.paths)
    places = [(path, 0, k) for k, path in paths if is_continuous(handed[k])]
    places += [(f"output {k}", 1, k) for k, y in enumerate(every) if is_continuous(y)]
    for name, group, k in places:
        got = _after_change(probe, group, k, cotangents)
        place = None if got is None else probe.differ(got, expected, looser=1e3)
        if got is not None and place is not None:
            target = "ys" if group else "torch.utils._pytree.tree_leaves((args, kwargs))"
            return probe.broken(
                f"{name} was changed in place after forward; backward silently used new values.",
                expected=expected[place], got=got[place], place=name,
                hint="Save it with ctx.save_for_backward, which notices a change, or save a clone.",
                repro=[
                    "ys = outs(); w = [torch.ones_like(y) for y in ys]",
                    "print('before', torch.autograd.grad(ys, xs, w, allow_unused=True))",
                    "ys = outs()",
                    f"with torch.no_grad(): {target}[{k}].mul_(2)",
                    "print('after ', torch.autograd.grad(ys, xs, w, allow_unused=True))",
                ],
            )  # fmt: skip
    return probe.holds("A change in place after forward raises or does not matter.")


def _after_change(probe: Probe, group: int, k: int, cotangents: Tensors) -> Tensors | None:
    """The gradients after one tensor was changed in place, or ``None`` where that raises."""
    leaves = probe.leaves()
    found = probe.exposed(leaves)
    outputs = [found[1][j] for j in probe.outputs]
    try:
        with torch.no_grad():
            found[group][k].mul_(1.5).add_(0.25)
        return [g.detach() for g in probe.pull(leaves, cotangents, outputs)]
    except Exception:  # loud in whatever way: that is the promise
        return None


def mutation(probe: Probe) -> Finding:
    """Compare every input with its copy, after forward and after backward."""
    leaves = probe.leaves()
    with spied() as spy:
        handed, every = probe.exposed(leaves)
    dirty = {t.data_ptr() for t in spy.dirty}
    before = list(probe.inputs.values)
    changed = _changed(handed, before, dirty)
    moment = "forward"
    if changed is None and probe.outputs:
        chosen = [every[k] for k in probe.outputs]
        probe.pull(leaves, probe.cotangents(chosen), chosen)
        changed, moment = _changed(handed, before, dirty), "backward"
    if changed is not None:
        name = probe.inputs.paths[changed]
        return probe.broken(
            f"{moment.capitalize()} changed {name} in place without ctx.mark_dirty.",
            expected=before[changed], got=handed[changed], place=name,
            hint="Work on a clone, or declare the change with ctx.mark_dirty and return the input.",
            repro=[
                "before = [a.clone() for a in torch.utils._pytree.tree_leaves((args, kwargs)) "
                "if isinstance(a, torch.Tensor)]",
                "ys = outs(); torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], "
                "allow_unused=True)",
                "after = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) "
                "if isinstance(a, torch.Tensor)]",
                f"print('before', before[{changed}]); print('after', after[{changed}])",
            ],
        )  # fmt: skip
    said = f" {len(dirty)} input(s) are declared with mark_dirty." if dirty else ""
    return probe.holds(f"No input is changed without being declared.{said}")


def _changed(handed: Sequence[torch.Tensor], before: Tensors, dirty: set[int]) -> int | None:
    for k, (now, then) in enumerate(zip(handed, before, strict=True)):
        if now.data_ptr() in dirty and now.numel():
            continue
        if not same_bits(now, then):
            return k
    return None


def cotangent(probe: Probe) -> Finding:
    """Compare each incoming cotangent with its copy after backward."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    incoming = probe.cotangents(outputs)
    copies = [g.clone() for g in incoming]
    versions = [g._version for g in incoming]
    probe.pull(leaves, incoming, outputs)
    for k, (now, then) in enumerate(zip(incoming, copies, strict=True)):
        if not same_bits(now, then) or now._version != versions[k]:
            return probe.broken(
                f"Backward changed the cotangent of output {k} in place.",
                expected=then, got=now, place=f"cotangent of output {k}",
                hint="Work on a clone: other branches of the graph may share the cotangent.",
                repro=[
                    "ys = outs(); w = [torch.ones_like(y) for y in ys]",
                    "torch.autograd.grad(ys, xs, w, allow_unused=True)",
                    f"print('cotangent of ones after backward:', w[{k}])",
                ],
            )  # fmt: skip
    return probe.holds("Cotangents are left as they came.")
