"""The clauses of the contract, one file for each family, in one ordered table."""

from pullback.conformance.clauses._table import CLAUSES

__all__ = ["CLAUSES"]
