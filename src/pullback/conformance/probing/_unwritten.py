"""Memory that nothing has written, seen by what it is filled with and not by luck.

What `torch.empty` gives is whatever was there before: often the very numbers that a call of the
same shape has just left, which are right. So it is filled, with NaN first, which most Functions
show nothing of. Where something is not finite then, it is filled with a number: an entry that is
NaN by the one and not by the other is one that nothing has written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from pullback.conformance.inputs._vectors import Tensors, are_finite, wide
from pullback.conformance.probing._probe import Probe
from pullback.conformance.process._limits import NoEnd
from pullback.internal.torch import Observing, set_deterministic
from pullback.report import Finding

__all__ = ["filled", "run_filled", "tell_unwritten", "unwritten"]

_T = TypeVar("_T")
_settings: Any = torch.utils.deterministic
_NUMBER = 0.75
_aten = torch.ops.aten
_FRESH = (
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty,
    _aten.new_empty_strided,
)  # fmt: skip


class _Filling(Observing):
    """Fills fresh floating memory with a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", None) in _FRESH and found.is_floating_point():
            found.fill_(_NUMBER)
        return found


@contextmanager
def filled() -> Iterator[None]:
    """Let torch fill what it allocates with NaN: the same in every process, call after call.

    Example:
        >>> with filled():
        ...     bool(torch.empty(3).isnan().all())
        True
    """
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


def run_filled(run: Callable[[], _T]) -> _T:
    """What a run gives with memory `filled`, or as it is where the code refuses that.

    torch fills memory where algorithms are to be deterministic, and some kernels have none.
    """
    try:
        with filled():
            return run()
    except NoEnd:
        raise
    except Exception:  # whoever asks judges what it raises by itself
        return run()


def unwritten(found: Tensors, again: Callable[[], Tensors]) -> int | None:
    """The position of the first tensor that holds what nothing has written, or ``None``.

    Example:
        >>> def run(): return [torch.zeros(2), torch.empty(2), torch.full((2,), torch.nan)]
        >>> with filled():
        ...     found = run()
        >>> unwritten(found, run)
        1
    """
    if are_finite(found):
        return None
    try:
        with _Filling():
            other = again()
    except Exception:  # some code takes no such mode
        return None
    pairs = zip(map(wide, found), map(wide, other), strict=True)
    return next((k for k, (a, b) in enumerate(pairs) if (a.isnan() & ~b.isnan()).any()), None)


def tell_unwritten(probe: Probe, what: str, place: str) -> Finding:
    """The finding that what is returned holds memory that nothing has written."""
    return probe.broken(
        f"{what[:1].upper()}{what[1:]} holds memory that nothing has written.",
        expected="a number in every entry",
        got="what was in memory before (NaN where torch fills fresh memory with it)",
        place=place,
        hint="Write every entry, or allocate with torch.zeros: what lies beyond the last whole "
        "block is an entry, too.",
        repro=[
            "torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory",
            "print(outs(), torch.autograd.grad(outs(), xs, [torch.ones_like(y) for y in outs()]))",
        ],
    )  # fmt: skip
