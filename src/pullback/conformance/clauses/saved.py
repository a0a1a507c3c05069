"""`saved`: tensors reach backward only through `save_for_backward` and `save_for_forward`."""

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.clauses._hints import SAVE
from pullback.conformance.inputs._held import context_tensors, tensors_within
from pullback.conformance.probing._nodes import custom_nodes

__all__ = ["saved"]


@clause(
    why="Tensors kept on the context outside save_for_backward are not checked for later "
    "changes, not moved by saved-tensor hooks, and keep memory alive.",
    breach="when the context is scanned: attributes, containers, dataclasses, closures, and "
    "numpy arrays that share an input's memory.",
    mend="Pass it to `save_for_backward`; intermediates too.",
)
def saved(probe: Probe) -> Finding:
    """Scan every context for tensors that save_for_backward does not know of."""
    leaves = probe.leaves()
    before = tensors_within([probe.subject.target, *probe.inputs.others()])
    handed, _, every = probe.exposed(leaves)
    own = [t for k, t in enumerate(handed) if t.numel() and k not in probe.inputs.owned]
    known = {t.untyped_storage().data_ptr(): "an input" for t in own}
    known |= {t.untyped_storage().data_ptr(): "an output" for t in every if t.numel()}
    for node in custom_nodes([every[k] for k in probe.outputs]):
        for held in context_tensors(node, before):
            path, value = held.path, held.value
            if isinstance(value, torch.Tensor):
                where = value.untyped_storage().data_ptr() if value.numel() else 0
            else:
                where = value.__array_interface__["data"][0]
            if not held.of_the_call and where not in known:
                continue  # an array of its own goes nowhere else; who was there before keeps it
            what = known.get(where, "an intermediate")
            return probe.broken(
                f"{what.capitalize()} reaches backward through {path}, not save_for_backward.",
                expected="no tensor among the attributes of ctx",
                got=f"{path}, {type(value).__name__} of shape {tuple(value.shape)}",
                hint=f"{SAVE} Otherwise a change in place goes unnoticed, saved-tensor hooks and "
                "offloading miss it, and an output kept so leaks.",
                repro=[
                    "ys = outs(); node = ys[0].grad_fn",
                    "print('held by the context:', [(name, value.shape) for name, value in "
                    "vars(node).items() if isinstance(value, torch.Tensor)] or vars(node))",
                    "print('saved for backward:', [t.shape for t in node.saved_tensors])",
                ],
            )
    return probe.holds("The contexts hold no tensor outside save_for_backward.")
