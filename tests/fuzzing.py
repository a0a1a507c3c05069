"""How many examples the property tests try: `make fuzz` asks for more."""

import os
from collections.abc import Sequence
from typing import TypeVar

from pullback.conformance.clauses import CLAUSES

__all__ = ["clauses_of", "examples", "spread"]

T = TypeVar("T")

_FACTOR = int(os.environ.get("PULLBACK_FUZZ", "1"))


def examples(count: int) -> int:
    """The number of examples of a property test that tries ``count`` in `make test`."""
    return count * _FACTOR


def spread(items: Sequence[T], every: int) -> list[T]:
    """All of them in `make fuzz`; in `make test` each of so many, the first one among them.

    For tables of combinations: neighbours differ in one thing alone, and each of these has its
    turn. ``every`` shares no factor with the length of any part of the table.
    """
    return list(items if _FACTOR > 1 else items[::every])


def clauses_of(number: int) -> list[str]:
    """The clauses that the check of a case tries, by the place of the case among the others.

    All of them in `make fuzz` and in `benchmarks.shipped`, whose table the tests read; in `make
    test` every eighth one, another eighth for the next case. `compile` takes 20 seconds, where all
    others take 3 together: there each room compiles its own, and the clause its specimens.
    """
    every = [clause.id for clause in CLAUSES]
    if _FACTOR > 1:
        return every
    return [name for name in every if name != "compile"][number % 8 :: 8]
