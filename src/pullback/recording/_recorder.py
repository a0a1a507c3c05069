"""Record the custom Functions and operators that a running program applies, with real inputs.

`Recorder` watches the calls of ``torch.autograd.Function.apply``. A call whose shapes, dtypes
and kinds of arguments were seen before costs a few microseconds (``benchmarks/bench_recorder.py``);
a new one is copied before it runs, so that an in-place forward is recorded as it was called, and
kept only when it succeeds. What is kept is bounded in calls and bytes.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pullback.internal._launch import Limits
from pullback.internal.torch import never_compile, operator_of, watch_apply
from pullback.recording.locator._locator import Locator

__all__ = ["Call", "Record", "Recorder"]

# Functions that torch and pullback build themselves, around compiled graphs, checkpoints, batches.
_NOT_CUSTOM = ("torch.", "pullback.tensor.")
_SIGNATURE_LIMIT = 64
_SLOTS = 4096  # of Functions that are counted one by one


@dataclass
class Call:
    """One call: its arguments as they were copied, their bytes, and on how many ranks it is one."""

    arguments: Any
    keywords: Any
    tensors: list[Any]
    size: int
    ranks: int = 1


@dataclass
class Record:
    """What was seen of one Function."""

    function: type
    locator: Locator
    script: str = ""
    slot: int = 0
    full: bool = False
    ignored: bool = False
    kept: int = 0
    calls: list[Call] = field(default_factory=list)
    signatures: set[Any] = field(default_factory=set)
    reasons: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Records every custom Function that is applied while it is installed.

    Arguments:
        copy: turns ``(args, kwargs, byte limit)`` into a `Call`, or raises an exception
            whose message is the reason why the call cannot be replayed; ``None`` is no call at all.
        keep: receives the record of the Function and the call, once it has succeeded; the record
            itself keeps the call where there is no other place.
        limits: how much to keep.
        changed: is told when a Function or a reason is new.

    Attributes:
        records: what was seen of each Function.
        tally: how often each was applied, by the slot of its record.
    """

    def __init__(
        self,
        copy: Callable[[tuple[Any, ...], dict[str, Any], int], Call | None],
        keep: Callable[[Record, Call], None] = lambda record, call: record.calls.append(call),
        limits: Limits | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits or Limits()
        self.tally: Any = [0] * _SLOTS
        self._changed = changed
        self.records: dict[type, Record] = {}
        self.bytes = 0
        self._copy = copy
        self._keep = keep
        self._lock = threading.RLock()
        self._watches: list[Callable[[], None]] = []

    def install(self, base: Any, tensor: type) -> None:
        """Watch the calls of ``base.apply``.

        Arguments:
            base: `torch.autograd.Function`, or a base class that replaces its ``apply``.
            tensor: the class of tensors.
        """
        records, see = self.records, self._see

        def watch(
            call: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            record = records.get(cls)
            if record is not None:
                self.tally[record.slot] += 1
                if record.full:
                    return call(cls, *args, **kwargs)
                signature = _signature(args, kwargs, tensor)
                if signature in record.signatures:
                    return call(cls, *args, **kwargs)
            pending = see(cls, args, kwargs, tensor)
            output = call(cls, *args, **kwargs)
            if pending is not None:
                self._commit(*pending)
            return output

        never_compile(watch, callees=True)
        for helper in (_signature, _kind, Recorder._see, Recorder._commit):
            never_compile(helper)
        self._watches.append(watch_apply(base, watch))

    def uninstall(self) -> None:
        """End every watch."""
        while self._watches:
            self._watches.pop()()

    def _see(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type
    ) -> tuple[Record, Call] | None:
        with self._lock:
            operator = operator_of(cls)
            record = self.records.get(cls) or self._meet(cls, operator)
            if record.full:
                return None
            if operator is not None:
                args, kwargs = args[:-1], {**args[-1].keyword_only_args}
            signature = _signature(args, kwargs, tensor)
            if signature in record.signatures:
                return None
            record.signatures.add(signature)
            record.full = len(record.signatures) >= _SIGNATURE_LIMIT
            limit = min(self.limits.call_bytes, self.limits.total_bytes - self.bytes)
            with self._noting(record):
                call = self._copy(args, kwargs, limit)
                if call is not None:
                    return record, call
                # Tensors without data: a tracer passes through, nobody calls.
                record.signatures.discard(signature)
            return None

    def _meet(self, cls: type, operator: Any) -> Record:
        locator = Locator.of(cls if operator is None else operator)
        record = Record(cls, locator, _script(), min(len(self.records), _SLOTS - 1))
        self.records[cls] = record
        self.tally[record.slot] += 1
        if operator is None and cls.__module__.startswith(_NOT_CUSTOM):
            record.ignored = record.full = True
        else:
            self._changed()
        return record

    def _commit(self, record: Record, call: Call) -> None:
        with self._lock:
            if record.full:
                return
            with self._noting(record, "the call could not be written: "):
                self._keep(record, call)
                record.kept += 1
                self.bytes += call.size
                record.full = record.kept >= self.limits.calls

    @contextlib.contextmanager
    def _noting(self, record: Record, what: str = "") -> Iterator[None]:
        """The program must run on whatever a copy meets, a full disk too: the reason is noted."""
        try:
            yield
        except Exception as reason:
            text = what + (str(reason) or type(reason).__name__)
            record.reasons[text] = record.reasons.get(text, 0) + 1
            self._changed()


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type) -> Any:
    items = [_kind(item, tensor) for item in args]
    if kwargs:
        items.extend((name, _kind(item, tensor)) for name, item in kwargs.items())
    return tuple(items)


def _kind(value: Any, tensor: type) -> Any:
    if isinstance(value, tensor):
        return value.shape, value.dtype, value.requires_grad  # type: ignore[attr-defined]
    kind = type(value)
    if kind is bool or kind is int or kind is str or value is None:
        return kind, value
    if kind is list or kind is tuple:
        return kind, tuple([_kind(item, tensor) for item in value])
    return kind


def _script() -> str:
    """The script that runs here; neither a module nor what is installed as a tool.

    Asked while it runs: Python takes its ``__file__`` away before it exits.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    own = getattr(main, "__spec__", None) is None and file.endswith(".py")
    return os.path.abspath(file) if own else ""
