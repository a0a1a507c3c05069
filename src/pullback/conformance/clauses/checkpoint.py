"""`checkpoint`: it works under activation checkpointing; saved tensors are unpacked once."""

from collections import Counter

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as run_checkpointed

from pullback.conformance._clause import clause
from pullback.conformance._guard import reseed
from pullback.conformance._probe import Probe
from pullback.report import Finding

__all__ = ["checkpoint"]

_PLAIN = "print('plain       ', torch.autograd.grad(outs(), xs, w, allow_unused=True))"


@clause(
    "checkpoint",
    promise="It works under activation checkpointing; saved tensors are unpacked once.",
    why="Activation checkpointing runs forward again to save memory. The gradient must be "
    "the same with it as without.",
    breach="against a plain run, and in the count of unpackings.",
    mend="Read `ctx.saved_tensors` once; draw from torch's generator only.",
)
def checkpoint(probe: Probe) -> Finding:
    """Compare non-reentrant checkpointing with a plain run, and count each unpacking."""
    points = probe.inputs.points()
    cotangents = probe.cotangents(probe.output_values())
    expected = probe.backward(points, cotangents)
    often = _unpacked_often(probe, cotangents)
    if often:
        return _often(probe, often)
    leaves = probe.leaves()
    reseed(probe.seed)
    outputs = run_checkpointed(
        probe.unseeded, *leaves, use_reentrant=False, preserve_rng_state=True
    )
    got = [g.detach() for g in probe.pull(leaves, cotangents, list(outputs or ()))]
    place = probe.differ(got, expected, looser=1e3)
    if place is None:
        return probe.holds("The gradient under non-reentrant checkpointing is the same.")
    return probe.broken(
        "The gradient under activation checkpointing is another.",
        expected=expected[place],
        got=got[place],
        place=probe.path(place),
        hint="Forward runs again before backward: let it depend on its arguments and on torch's "
        "generator only, not on counters, caches or other generators.",
        repro=[
            "from torch.utils.checkpoint import checkpoint",
            "w = [torch.ones_like(y) for y in outs()]",
            _PLAIN,
            "ys = checkpoint(lambda: call(*args, **kwargs), use_reentrant=False)",
            "ys = [y for y in tree_leaves(ys) if y.requires_grad]",
            "print('checkpointed', ys, torch.autograd.grad(ys, xs, w, allow_unused=True))",
        ],
    )


def _often(probe: Probe, often: int) -> Finding:
    return probe.broken(
        f"Backward unpacks a saved tensor {often} times; checkpointing allows once.",
        expected="ctx.saved_tensors read once",
        got=f"read {often} times",
        hint="Read ctx.saved_tensors once in backward and keep the tuple in a variable.",
        repro=[
            "seen = []",
            "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, "
            "lambda t: seen.append(id(t)) or t): ys = outs()",
            "torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], allow_unused=True)",
            "print('unpacked', len(seen), 'times,', len(set(seen)), 'different tensors')",
        ],
    )


def _unpacked_often(probe: Probe, cotangents: list[torch.Tensor]) -> int:
    """The largest number of times that one saved tensor is unpacked, or 0 when at most once."""
    tickets: dict[int, torch.Tensor] = {}
    counts: Counter[int] = Counter()

    def pack(tensor: torch.Tensor) -> int:
        tickets[len(tickets)] = tensor.detach()
        return len(tickets) - 1

    def unpack(ticket: int) -> torch.Tensor:
        counts[ticket] += 1
        return tickets[ticket]

    leaves = probe.leaves()
    with saved_tensors_hooks(pack, unpack):
        outputs = probe.evaluate(leaves)
        probe.pull(leaves, cotangents, outputs)
    most = max(counts.values(), default=0)
    return most if most > 1 else 0
