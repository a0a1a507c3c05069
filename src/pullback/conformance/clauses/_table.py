"""The one ordered table of clauses."""

from pullback.conformance._clause import Clause
from pullback.conformance.clauses.alias import alias
from pullback.conformance.clauses.batching import vmap
from pullback.conformance.clauses.checkpoint import checkpoint
from pullback.conformance.clauses.demand import needs_input_grad, undefined
from pullback.conformance.clauses.derivative import derivative
from pullback.conformance.clauses.form import form, non_differentiable
from pullback.conformance.clauses.forward import forward, forward_over_forward
from pullback.conformance.clauses.graph import cuda_graph
from pullback.conformance.clauses.layout import layout
from pullback.conformance.clauses.linear import linear
from pullback.conformance.clauses.memory import hooks, leak, saved
from pullback.conformance.clauses.mutation import cotangent, mutation, stale
from pullback.conformance.clauses.precision import autocast, dtype
from pullback.conformance.clauses.runs import deterministic, retain, state
from pullback.conformance.clauses.second import double, once
from pullback.conformance.clauses.structure import structure
from pullback.conformance.clauses.tracing import compiles, fake
from pullback.conformance.clauses.transforms import transforms

__all__ = ["CLAUSES"]

_TORCH = "Let forward and backward take any tensor that torch hands them, and fail by name."

CLAUSES: tuple[Clause, ...] = (
    Clause("derivative", "backward is the derivative of forward", derivative, _TORCH),
    Clause("linear", "backward is linear in the cotangent, zero maps to zero", linear, _TORCH),
    Clause("double", "the second derivative is right, or refused", double, _TORCH),
    Clause("once", "once_differentiable is loud, under autograd and torch.func", once, _TORCH),
    Clause("forward", "the tangent is the transpose of backward", forward, _TORCH),
    Clause(
        "forward-over-forward", "nested forward mode is right, or refused", forward_over_forward,
        _TORCH,
    ),
    Clause("transforms", "grad, vjp, jacrev and hessian agree with autograd", transforms, _TORCH),
    Clause("vmap", "a batched call equals a loop, forward and backward", vmap, _TORCH),
    Clause("saved", "tensors reach backward only through save_for_backward", saved, _TORCH),
    Clause("leak", "nothing keeps inputs or outputs alive", leak, _TORCH),
    Clause("stale", "a saved tensor that is changed later is noticed", stale, _TORCH),
    Clause("mutation", "an input changed in place is declared", mutation, _TORCH, gradient=False),
    Clause("cotangent", "the incoming cotangent is never changed", cotangent, _TORCH),
    Clause("layout", "any strides and sizes give the same numbers", layout, _TORCH),
    Clause("form", "gradients have their input's shape, dtype and device", form, _TORCH),
    Clause(
        "needs-input-grad", "unneeded gradients are not computed, needed ones do not change",
        needs_input_grad, _TORCH,
    ),
    Clause("undefined", "an undefined cotangent counts as zero", undefined, _TORCH),
    Clause(
        "non-differentiable", "outputs marked so carry no history, the others do",
        non_differentiable, _TORCH, gradient=False,
    ),
    Clause("alias", "an output that shares memory is handled", alias, _TORCH),
    Clause("deterministic", "same inputs, same bits", deterministic, _TORCH, gradient=False),
    Clause("state", "live calls and threads do not share state", state, _TORCH),
    Clause("retain", "two backward passes over a retained graph agree", retain, _TORCH),
    Clause("checkpoint", "works under activation checkpointing", checkpoint, _TORCH),
    Clause("hooks", "hooks see every saved tensor; buffers are freed", hooks, _TORCH),
    Clause("dtype", "every precision gives the same gradient", dtype, _TORCH),
    Clause("autocast", "forward under autocast, backward outside", autocast, _TORCH),
    Clause("fake", "fake tensors get the right shapes", fake, _TORCH),
    Clause("compile", "compiled code equals eager", compiles, _TORCH),
    Clause("structure", "nested and keyword arguments are differentiated", structure, _TORCH),
    Clause("cuda-graph", "capture and replay equal eager", cuda_graph, _TORCH),
)  # fmt: skip
