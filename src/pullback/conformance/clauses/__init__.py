"""The clauses of the contract, one in each file, in one ordered table."""

from pullback.conformance.clauses._table import CLAUSES, ClauseId

__all__ = ["CLAUSES", "ClauseId"]
