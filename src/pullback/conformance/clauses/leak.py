"""`leak`: nothing keeps inputs or outputs alive."""

import gc
import weakref
from typing import Any

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.clauses._hints import SAVE

__all__ = ["leak"]


@clause(
    why="An output kept alive by a cycle is freed only when the garbage collector runs. "
    "On a GPU the memory of past steps piles up until an allocation fails.",
    breach="as a weak reference that outlives its last strong one with the collector off.",
    mend="`save_for_backward` for outputs; no lists on the class.",
)
def leak(probe: Probe) -> Finding:
    """With the collector off, inputs and outputs must die with their last reference."""
    for mode in ("after forward", "after backward"):
        cotangents = probe.cotangents(probe.output_values())
        probe.backward(probe.inputs.points(), cotangents)  # fill caches first
        collecting = gc.isenabled()
        gc.disable()
        try:
            references = _live(probe, mode)
            alive = [name for name, reference in references if reference() is not None]
        finally:
            if collecting:
                gc.enable()
        if alive:
            return probe.broken(
                f"Kept alive {mode}, with nothing left that refers to it: {', '.join(alive)}.",
                expected="freed with the last reference, without the garbage collector",
                got=f"{len(alive)} of {len(references)} tensors alive",
                hint=f"{SAVE} An output set as an attribute of ctx is a cycle "
                "(output -> grad_fn -> ctx -> output); a list on the class never ends; and torch "
                "never lets go of what setup_context returns.",
                repro=_script(mode),
            )
    return probe.holds("Inputs and outputs are freed with their last reference.")


def _live(probe: Probe, mode: str) -> list[tuple[str, Any]]:
    """Weak references to what one run made, whose strong ones end with this call."""
    leaves = probe.leaves()
    handed, _, every = probe.exposed(leaves)
    named = [(f"input {path}", x) for path, x in zip(probe.inputs.paths, handed, strict=True)]
    # A module keeps its own alive.
    named = [pair for k, pair in enumerate(named) if k not in probe.inputs.owned]
    named += [(f"output {k}", y) for k, y in enumerate(every)]
    if mode == "after backward":
        chosen = [every[k] for k in probe.outputs]
        probe.pull(leaves, probe.cotangents(chosen), chosen)
    return [(name, weakref.ref(t)) for name, t in named]


def _script(mode: str) -> list[str]:
    """As in `_live`, of a second run: tensors that nothing holds once the function is left."""
    backward = (
        "    ys = [y for y in ys if isinstance(y, torch.Tensor) and y.requires_grad]",
        "    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])",
    )
    return [
        "import gc, weakref; gc.disable()",
        "def anew(value):",
        "    if not isinstance(value, torch.Tensor):",
        "        return value",
        "    return value.detach().clone().requires_grad_(value.requires_grad)",
        "def run():",
        "    given, named = tree_map(anew, args), tree_map(anew, kwargs)",
        "    ys = tree_leaves(call(*given, **named))",
        "    watched = [t for t in tree_leaves([given, named, ys]) if isinstance(t, torch.Tensor)]",
        *(backward if mode == "after backward" else ()),
        "    return [weakref.ref(t) for t in watched]",
        "run()",
        "watched = run()",
        "alive = [w for w in watched if w() is not None]",
        "print(len(alive), 'of', len(watched), 'tensors alive')",
    ]
