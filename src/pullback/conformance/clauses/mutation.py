"""`mutation`: an input that is changed in place is declared with `mark_dirty`."""

from collections.abc import Sequence

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.comparison._values import is_freed, same_bits
from pullback.conformance.probing._nodes import watched_marks
from pullback.conformance.process._failure import raised
from pullback.internal.torch import version_of

__all__ = ["mutation"]


_DECLARE = (
    "Work on a clone, or declare the change with ctx.mark_dirty and return the input; one call "
    "with all of them, since torch keeps what the last one is given."
)
_LEAVE = "Work on a clone: who made the input, and what else was computed of it, reads it too."
_REPRO = (
    "before = [a.clone() for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]",
    "ys = outs()",
    "if w: torch.autograd.grad(ys, xs, w, allow_unused=True)",
    "after = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]",
)


@clause(
    why="An input changed in place and not declared with mark_dirty corrupts whatever "
    "else holds that tensor, and its version counter does not tell.",
    breach="as inputs whose version counter or data differ after forward or backward (a write "
    "that happens to change nothing bumps the counter; numpy's writes skip it).",
    mend="Work on a clone, or `mark_dirty` and return the input.",
    gradient=False,
)
def mutation(probe: Probe) -> Finding:
    """Compare every input with its copy, after forward and after backward."""
    leaves = probe.leaves()
    with watched_marks() as marks:
        handed, versions, every = probe.exposed(leaves)
    dirty = {t.data_ptr() for t in marks.dirty} - {t.data_ptr() for t in marks.dropped}
    before = list(zip(probe.inputs.values, versions, strict=True))
    changed = _changed(handed, before, dirty)
    moment, weights = "forward", []
    if changed is None and probe.outputs:
        chosen = [every[k] for k in probe.outputs]
        weights = probe.cotangents(chosen)
        error = raised(lambda: probe.pull(leaves, [w.clone() for w in weights], chosen))
        changed, moment = _changed(handed, before, dirty), "backward"
        if error is not None and changed is None and probe.fault is None:
            raise error  # plain backward ran before, so this is no other clause's finding
    if changed is not None:
        name = probe.inputs.paths[changed]
        if is_freed(handed[changed]):
            return _freed(probe, changed, moment)
        then, now = before[changed][0], handed[changed]
        same = same_bits(now, then)
        return probe.broken(
            f"{moment.capitalize()} changed {name} in place"
            f"{' without ctx.mark_dirty' if moment == 'forward' else ''}"
            f"{', here by the numbers that stood there' if same else ''}.",
            expected="" if same else then, got="" if same else now, place=name, said="",
            hint=_DECLARE if moment == "forward" else _LEAVE,
            given={"w": weights},
            repro=[*_REPRO, f"print('before', before[{changed}], 'after', after[{changed}])"],
        )  # fmt: skip
    if probe.fault is not None:
        return probe.holds("Forward changes no input without declaring it; backward does not run.")
    said = f" {len(dirty)} input(s) are declared with mark_dirty." if dirty else ""
    return probe.holds(f"No input is changed without being declared.{said}")


def _freed(probe: Probe, position: int, moment: str) -> Finding:
    name = probe.inputs.paths[position]
    return probe.broken(
        f"{moment.capitalize()} freed the memory of {name}: whoever reads it again reads what is "
        "not there.",
        expected=probe.inputs.values[position], got="freed memory", place=name,
        hint="Leave the memory of inputs to who made them.",
        repro=[
            f"print('before', {name})",
            "ys = outs()",
            f"print('elements', {name}.numel())",
            f"print('bytes', {name}.untyped_storage().nbytes())",
        ],
    )  # fmt: skip


def _changed(
    handed: Sequence[torch.Tensor], before: Sequence[tuple[torch.Tensor, int]], dirty: set[int]
) -> int | None:
    """The first tensor written to, by its version counter or, as numpy writes, its numbers."""
    for k, (now, (then, version)) in enumerate(zip(handed, before, strict=True)):
        if now.data_ptr() in dirty and now.numel():
            continue
        if version_of(now) != version or not same_bits(now, then):
            return k
    return None
