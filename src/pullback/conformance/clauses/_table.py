"""The one ordered table of clauses: an id here is a file beside, with one clause."""

from importlib import import_module
from typing import Literal, get_args

from pullback.conformance._clause import Clause

__all__ = ["CLAUSES", "ClauseId"]

# In the order of the contract.
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
    "reference",
    "distributed",
]


def _clause(id_: str) -> Clause:
    """The clause in the file of its name."""
    module = import_module(f"pullback.conformance.clauses.{id_.replace('-', '_')}")
    [name] = module.__all__
    found: Clause = getattr(module, name)
    return found


CLAUSES: tuple[Clause, ...] = tuple(map(_clause, get_args(ClauseId)))
