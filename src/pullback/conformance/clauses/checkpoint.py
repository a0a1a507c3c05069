"""`checkpoint`: it works under activation checkpointing; saved tensors are unpacked once."""

from collections import Counter

import torch
from torch.utils.checkpoint import CheckpointError
from torch.utils.checkpoint import checkpoint as run_checkpointed

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.evidence._screen import Run
from pullback.conformance.probing._nodes import Saved
from pullback.conformance.process._failure import describe
from pullback.conformance.process._guard import reseed

__all__ = ["checkpoint"]

_PLAIN = "print('plain       ', torch.autograd.grad(outs(), xs, w, allow_unused=True))"


@clause(
    why="Activation checkpointing runs forward again to save memory. The gradient must be "
    "the same with it as without.",
    breach="against a plain run. One that reads its saved tensors twice, which torch refuses "
    "there, is `lacking`.",
    mend="Read `ctx.saved_tensors` once; draw from torch's generator only.",
)
def checkpoint(probe: Probe) -> Finding:
    """Compare non-reentrant checkpointing with a plain run."""
    run = Run.of(probe)
    often = _unpacked_often(probe, run.cotangents)
    leaves = probe.leaves()
    reseed(probe.seed)
    try:
        outputs = run_checkpointed(
            probe.unseeded, *leaves, use_reentrant=False, preserve_rng_state=True
        )
        got = probe.pull(leaves, run.cotangents, list(outputs or ()))
    except CheckpointError as error:
        if not often:
            raise
        return probe.lacking(
            f"Backward unpacks a saved tensor {often} times; checkpointing allows once: "
            f"{describe(error)}",
            "Read ctx.saved_tensors once in backward and keep the tuple in a variable.",
        )
    return probe.unlike(
        got,
        run.gradients,
        "The gradient under activation checkpointing is another.",
        hint="Forward runs again before backward: let it depend on its arguments and on torch's "
        "generator only, not on counters, caches or other generators.",
        given={"w": run.cotangents},
        repro=[
            "from torch.utils.checkpoint import checkpoint",
            _PLAIN,
            "ys = checkpoint(lambda: call(*args, **kwargs), use_reentrant=False)",
            "ys = [y for y in tree_leaves(ys) if y.requires_grad]",
            "print('checkpointed', ys, torch.autograd.grad(ys, xs, w, allow_unused=True))",
        ],
    ) or probe.holds("The gradient under non-reentrant checkpointing is the same.")


def _unpacked_often(probe: Probe, cotangents: list[torch.Tensor]) -> int:
    """The most times that backward unpacks one saved tensor, or 0 when at most once."""
    leaves, saved = probe.leaves(), Saved()
    with saved:
        outputs = probe.evaluate(leaves)
        saved.read.clear()  # of a graph that forward made and went through by itself
        probe.pull(leaves, [g.clone() for g in cotangents], outputs)
    most = max(Counter(saved.read).values(), default=0)
    return most if most > 1 else 0
