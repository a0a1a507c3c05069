"""`saved`, `leak` and `hooks`: where tensors wait for backward, and that they are let go."""

import gc
import weakref
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from pullback.conformance._held import held_tensors
from pullback.conformance._nodes import custom_nodes
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._report import Finding

__all__ = ["hooks", "leak", "saved"]

_SAVE = "Pass it to ctx.save_for_backward (inputs, outputs and intermediates alike)."


def saved(probe: Probe) -> Finding:
    """Scan every context for tensors that save_for_backward does not know of."""
    leaves = probe.leaves()
    handed, every = probe.exposed(leaves)
    known = {t.untyped_storage().data_ptr(): "an input" for t in handed if t.numel()}
    known |= {t.untyped_storage().data_ptr(): "an output" for t in every if t.numel()}
    for node in custom_nodes([every[k] for k in probe.outputs]):
        for path, value in held_tensors(node):
            if isinstance(value, torch.Tensor):
                where = value.untyped_storage().data_ptr() if value.numel() else 0
            else:
                where = value.__array_interface__["data"][0]
                if where not in known:
                    continue  # a numpy array of its own is no tensor, and can go nowhere else
            what = known.get(where, "an intermediate")
            return probe.broken(
                f"{what.capitalize()} reaches backward through {path}, not save_for_backward.",
                expected="no tensor among the attributes of ctx",
                got=f"{path}, {type(value).__name__} of shape {tuple(value.shape)}",
                hint=f"{_SAVE} Otherwise a change in place goes unnoticed, saved-tensor hooks and "
                "offloading miss it, and an output kept so leaks.",
                repro=[
                    "ys = outs(); node = ys[0].grad_fn",
                    "print('held by the context:', [(name, value.shape) for name, value in "
                    "vars(node).items() if isinstance(value, torch.Tensor)] or vars(node))",
                    "print('saved for backward:', [t.shape for t in node.saved_tensors])",
                ],
            )
    return probe.holds("The contexts hold no tensor outside save_for_backward.")


def leak(probe: Probe) -> Finding:
    """With the collector off, inputs and outputs must die with their last reference."""
    for mode in ("after forward", "after backward"):
        probe.backward(probe.inputs.points(), probe.cotangents(_like(probe)))  # fill caches first
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
                hint=f"{_SAVE} An output set as an attribute of ctx is a cycle "
                "(output -> grad_fn -> ctx -> output); a list on the class never ends.",
                repro=[
                    "import gc, weakref; gc.disable()",
                    "ys = outs(); watched = [weakref.ref(y) for y in ys]",
                    "torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], "
                    "allow_unused=True); del ys",
                    "print('outputs still alive:', sum(w() is not None for w in watched))",
                ],
            )
    return probe.holds("Inputs and outputs are freed with their last reference.")


def _live(probe: Probe, mode: str) -> list[tuple[str, Any]]:
    """Weak references to what one run made, whose strong ones end with this call."""
    leaves = probe.leaves()
    handed, every = probe.exposed(leaves)
    names = [f"input {path}" for path in probe.inputs.paths]
    names += [f"output {k}" for k in range(len(every))]
    if mode == "after backward":
        chosen = [every[k] for k in probe.outputs]
        probe.pull(leaves, probe.cotangents(chosen), chosen)
    return [(name, weakref.ref(t)) for name, t in zip(names, [*handed, *every], strict=True)]


def hooks(probe: Probe) -> Finding:
    """Hooks must see every saved tensor, and a second backward without retain must raise."""
    packed: list[int] = []
    freed: list[str] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.numel())
        return tensor.detach().clone()

    points = probe.inputs.points()
    cotangents = probe.cotangents(_like(probe))
    expected = probe.backward(points, cotangents)
    leaves = probe.leaves(points)
    with saved_tensors_hooks(pack, lambda kept: kept):
        outputs = probe.evaluate(leaves)
        nodes = custom_nodes(outputs)
        got = probe.pull(leaves, cotangents, outputs)
    for node in nodes:
        freed += [path for path, value in held_tensors(node) if isinstance(value, torch.Tensor)]
    place = probe.differ([g.detach() for g in got], expected, looser=1e3)
    if place is not None:
        return probe.broken(
            "The gradient changes when saved tensors pass through hooks.",
            expected=expected[place], got=got[place], place=probe.path(place),
            hint="Use only what ctx.saved_tensors returns in backward.",
            repro=_hooked(),
        )  # fmt: skip
    if freed:
        return probe.broken(
            f"{freed[0]} is still held after backward: it is not freed, and no hook saw it.",
            expected=f"every tensor packed ({len(packed)} were) and freed by backward",
            got=f"held outside: {', '.join(freed)}",
            hint=_SAVE,
            repro=_twice(),
        )
    if packed and _second_backward(probe, cotangents):
        return _not_freed(probe)
    return probe.holds(f"Hooks saw {len(packed)} saved tensor(s); buffers are freed by backward.")


def _not_freed(probe: Probe) -> Finding:
    return probe.broken(
        "A second backward without retain_graph does not raise.",
        expected="an error: backward through the graph a second time",
        got="a gradient, from buffers that should be freed",
        hint="Read ctx.saved_tensors inside backward.",
        repro=_twice(),
    )


def _second_backward(probe: Probe, cotangents: Tensors) -> bool:
    """Whether backward through a freed graph answers, where it reads what was saved."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    reads = any(_raw(node) for node in custom_nodes(outputs))
    probe.pull(leaves, cotangents, outputs)
    try:
        probe.pull(leaves, cotangents, outputs)
    except RuntimeError:
        return False
    return reads


def _raw(node: Any) -> bool:
    return bool(getattr(node, "_raw_saved_tensors", ()))


def _like(probe: Probe) -> Tensors:
    return [y.detach() for y in probe.evaluate(probe.leaves())]


def _hooked() -> list[str]:
    return [
        "w = [torch.ones_like(y) for y in outs()]",
        "print('plain', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):",
        "    print('hooked', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
    ]


def _twice() -> list[str]:
    return [
        "ys = outs(); w = [torch.ones_like(y) for y in ys]; node = ys[0].grad_fn",
        "torch.autograd.grad(ys, xs, w, allow_unused=True)",
        "print('held after backward:', {k: getattr(v, 'shape', v) for k, v in vars(node).items()})",
        "try: print('again, no error:', torch.autograd.grad(ys, xs, w, allow_unused=True))",
        "except RuntimeError as error: print('raises:', error)",
    ]
