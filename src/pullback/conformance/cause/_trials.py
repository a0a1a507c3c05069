"""Try what nobody has run, and leave the process as it was, or end it.

Edits of a rule are tried in the very process, where it harms nobody: a copy for each would take
longer. What ends that process, or leaves it in such a state that the code answers otherwise, as an
edit does that writes into what calls share, is tried again in copies of the next one.
"""

from collections.abc import Callable
from typing import Any

from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._failure import attempt
from pullback.conformance.process._forked import alone, unharmed

__all__ = ["are_alike", "tried"]


def tried(probe: Probe, work: Callable[[], Any], otherwise: Any) -> Any:
    """What is found, as plain data, by what nobody has run yet and may end the process."""
    if probe.brief:
        return otherwise
    if probe.trying is None or probe.in_copies:
        return unharmed(work, otherwise)
    probe.trying(probe.clause)
    before = None if probe.erratic else attempt(probe.answer, None)
    return alone(
        work, lambda: before is None or are_alike(probe, before, attempt(probe.answer, None))
    )


def are_alike(probe: Probe, before: Tensors, after: Tensors | None) -> bool:
    """Whether the same is answered, but for rounding; ``None`` is no answer."""
    if after is None or len(after) != len(before):
        return False
    return probe.differ(after, before, 1e4) is None
