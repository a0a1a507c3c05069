"""What nobody writes: memory that torch has filled with NaN, and that holds it still."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from pullback.conformance._probe import Probe
from pullback.conformance._screen import Run
from pullback.conformance._vectors import are_finite
from pullback.internal.torch import set_deterministic

__all__ = ["fresh_memory", "is_unwritten", "unwritten"]

_settings: Any = torch.utils.deterministic


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Let torch fill what it allocates with NaN, so that what nobody writes is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _settings.fill_uninitialized_memory
    try:
        set_deterministic(True, warn_only=True)
        _settings.fill_uninitialized_memory = True
        yield
    finally:
        set_deterministic(before, warn_only=warn_only)
        _settings.fill_uninitialized_memory = fill


def unwritten(probe: Probe, run: Run) -> str | None:
    """What holds NaN only because torch filled fresh memory with it."""
    if are_finite(run.every):
        return None
    plain = Run.of(probe, run.cotangents)
    for k, (one, other) in enumerate(zip(run.every, plain.every, strict=True)):
        if bool((one.isnan() & ~other.isnan()).any()):
            return probe.place(k, len(run.outputs))
    return None


def is_unwritten(probe: Probe) -> bool:
    """Whether something is never written here, as where lengths that were made are too short."""
    with suppress(Exception):  # refused
        with fresh_memory():
            run = Run.of(probe)
        return unwritten(probe, run) is not None
    return False
