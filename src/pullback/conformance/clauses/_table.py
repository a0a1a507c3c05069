"""The one ordered table of clauses."""

from typing import Literal

from pullback.conformance._clause import Clause
from pullback.conformance.clauses.alias import alias
from pullback.conformance.clauses.autocast import autocast
from pullback.conformance.clauses.batch import batch
from pullback.conformance.clauses.checkpoint import checkpoint
from pullback.conformance.clauses.compile import compiles
from pullback.conformance.clauses.compositions import compositions
from pullback.conformance.clauses.cotangent import cotangent
from pullback.conformance.clauses.cuda_graph import cuda_graph
from pullback.conformance.clauses.derivative import derivative
from pullback.conformance.clauses.deterministic import deterministic
from pullback.conformance.clauses.double import double
from pullback.conformance.clauses.dtype import dtype
from pullback.conformance.clauses.fake import fake
from pullback.conformance.clauses.first_call import first_call
from pullback.conformance.clauses.form import form
from pullback.conformance.clauses.forward import forward
from pullback.conformance.clauses.forward_over_forward import forward_over_forward
from pullback.conformance.clauses.hooks import hooks
from pullback.conformance.clauses.index_width import index_width
from pullback.conformance.clauses.layout import layout
from pullback.conformance.clauses.leak import leak
from pullback.conformance.clauses.linear import linear
from pullback.conformance.clauses.memory import memory
from pullback.conformance.clauses.mutation import mutation
from pullback.conformance.clauses.needs_input_grad import needs_input_grad
from pullback.conformance.clauses.non_differentiable import non_differentiable
from pullback.conformance.clauses.once import once
from pullback.conformance.clauses.rank import rank
from pullback.conformance.clauses.registration import registration
from pullback.conformance.clauses.repeated import repeated
from pullback.conformance.clauses.retain import retain
from pullback.conformance.clauses.saved import saved
from pullback.conformance.clauses.sizes import sizes
from pullback.conformance.clauses.stale import stale
from pullback.conformance.clauses.state import state
from pullback.conformance.clauses.structure import structure
from pullback.conformance.clauses.transforms import transforms
from pullback.conformance.clauses.undefined import undefined
from pullback.conformance.clauses.values import values
from pullback.conformance.clauses.vmap import vmap

__all__ = ["CLAUSES", "ClauseId"]

# A type checker reads no table: the ids once more, which a test compares.
ClauseId = Literal[
    "derivative",
    "linear",
    "double",
    "once",
    "forward",
    "forward-over-forward",
    "transforms",
    "vmap",
    "saved",
    "leak",
    "stale",
    "mutation",
    "cotangent",
    "layout",
    "form",
    "needs-input-grad",
    "undefined",
    "non-differentiable",
    "alias",
    "deterministic",
    "state",
    "retain",
    "checkpoint",
    "hooks",
    "dtype",
    "autocast",
    "fake",
    "compile",
    "sizes",
    "values",
    "compositions",
    "structure",
    "registration",
    "cuda-graph",
    "first-call",
    "rank",
    "repeated",
    "batch",
    "index-width",
    "memory",
]

CLAUSES: tuple[Clause, ...] = (
    derivative,
    linear,
    double,
    once,
    forward,
    forward_over_forward,
    transforms,
    vmap,
    saved,
    leak,
    stale,
    mutation,
    cotangent,
    layout,
    form,
    needs_input_grad,
    undefined,
    non_differentiable,
    alias,
    deterministic,
    state,
    retain,
    checkpoint,
    hooks,
    dtype,
    autocast,
    fake,
    compiles,
    sizes,
    values,
    compositions,
    structure,
    registration,
    cuda_graph,
    first_call,
    rank,
    repeated,
    batch,
    index_width,
    memory,
)
