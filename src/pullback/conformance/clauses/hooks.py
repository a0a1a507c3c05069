"""`hooks`: saved-tensor hooks see everything; buffers are freed."""

from collections.abc import Iterator

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.clauses._hints import SAVE
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._held import context_tensors, tensors_within
from pullback.conformance.probing._nodes import Saved, custom_nodes

__all__ = ["hooks"]

_HOOKED = [
    "print('plain', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):",
    "    print('hooked', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
]
_TWICE = [
    "ys = outs(); w = [torch.ones_like(y) for y in ys]; node = ys[0].grad_fn",
    "torch.autograd.grad(ys, xs, w, allow_unused=True)",
    "print('held after backward:', {k: getattr(v, 'shape', v) for k, v in vars(node).items()})",
    "try: print('again, no error:', torch.autograd.grad(ys, xs, w, allow_unused=True))",
    "except RuntimeError as error: print('raises:', error)",
]


@clause(
    why="Saved-tensor hooks move activations to the CPU or compress them, and buffers "
    "must be freed after backward. What bypasses the hooks stays in memory.",
    breach="in what is still held after backward, and when a second backward does not raise.",
    mend="`save_for_backward`.",
)
def hooks(probe: Probe) -> Iterator[Finding | None]:
    """Hooks must see every saved tensor, and a second backward without retain must raise."""
    run, saved, leaves = Run.of(probe), Saved(copies=True), probe.leaves()
    before = tensors_within([probe.subject.target, *probe.inputs.others()])
    with saved:
        outputs = probe.evaluate(leaves)
        nodes = custom_nodes(outputs)
        got = probe.pull(leaves, run.cotangents, outputs)
    every = (held for node in nodes for held in context_tensors(node, before))
    freed = [held.path for held in every if held.of_the_call]
    yield probe.unlike(
        got, run.gradients, "The gradient changes when saved tensors pass through hooks.",
        hint="Use only what ctx.saved_tensors returns in backward.",
        given={"w": run.cotangents}, repro=_HOOKED,
    )  # fmt: skip
    if freed:
        yield probe.broken(
            f"{freed[0]} is still held after backward: it is not freed, and no hook saw it.",
            expected=f"every tensor packed ({len(saved.tensors)} were) and freed by backward",
            got=f"held outside: {', '.join(freed)}",
            hint=SAVE,
            repro=_TWICE,
        )
    # What this backward did not read it need not miss a second time: a surrogate may save in vain.
    if saved.read and _second_backward(probe, run.cotangents):
        yield probe.broken(
            "A second backward without retain_graph does not raise.",
            expected="an error: backward through the graph a second time",
            got="a gradient, from buffers that should be freed",
            hint="Read ctx.saved_tensors inside backward.",
            repro=_TWICE,
        )
    count = len(saved.tensors)
    yield probe.holds(f"Hooks saw {count} saved tensor(s); buffers are freed by backward.")


def _second_backward(probe: Probe, cotangents: Tensors) -> bool:
    """Whether backward through a freed graph answers."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    probe.pull(leaves, cotangents, outputs)
    try:
        probe.pull(leaves, cotangents, outputs)
    except RuntimeError:
        return False
    return True
