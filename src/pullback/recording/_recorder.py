"""Record the custom Functions and operators that a running program applies, with real inputs.

`Recorder` watches the calls of ``torch.autograd.Function.apply``. A call whose shapes, dtypes
and kinds of arguments were seen before costs a few microseconds (``benchmarks/bench_recorder.py``);
a new one is copied before it runs, so that an in-place forward is recorded as it was called, and
kept only when it succeeds. What is kept is bounded in calls and bytes. A call that has no form in
which it can be kept elsewhere may be kept here, with its objects as they are.

The first numbers of a program show little: a membrane is at rest, the old policy is the new one, an
adapter is zero. So from the 8th, 16th, 32nd call of a pattern on the next one that is alike takes
the place of a kept one, while its numbers are finite.

Which gradients a call asks for is the pattern of ``requires_grad`` among its tensors. A program may
try a Function out without any before it trains, so that the first calls show little: those of each
pattern are kept, and counted, and at the end `choose` takes some of each, the commonest first.
"""

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.internal._launch import Limits
from pullback.internal._setting import PROBING
from pullback.internal.torch import never_compile, operator_of, pytree, watch_apply
from pullback.recording._kinds import HELPERS, given_to_operator, pattern_of, signature_of
from pullback.recording.locator._locator import Locator, absolute

__all__ = ["Call", "Record", "Recorder", "choose", "why_no_call"]

# Functions that torch and pullback build themselves, around compiled graphs, checkpoints, batches.
_NOT_CUSTOM = ("torch.", "pullback.tensor.")
_SIGNATURE_LIMIT = 64
_PATTERN_LIMIT = 16
_EARLY = 8  # calls of a pattern after which their numbers are those of a program under way
_SLOTS = 4096  # of Functions and patterns that are counted one by one


@dataclass
class Call:
    """One call: its arguments as they were copied, their bytes, and on how many ranks it is one.

    The pattern is a digit for each tensor, 1 where it requires a gradient.
    """

    arguments: Any
    keywords: Any
    tensors: list[Any]
    size: int
    ranks: int = 1
    pattern: str = ""
    number: int = 0  # among the calls of its Function that are not alike


_Copy = Callable[[tuple[Any, ...], dict[str, Any], int], Call | None]


@dataclass
class Pattern:
    """The calls of one Function that ask for the same gradients."""

    slot: int
    most: int  # calls that may be chosen of it
    kept: set[Any] = field(default_factory=set)  # the signatures of which a call is kept
    due: set[Any] = field(default_factory=set)  # those of them of which a later one is to be kept


@dataclass
class Record:
    """What was seen of one Function."""

    function: type
    locator: Locator
    script: str = ""
    slot: int = 0
    answered: int = 0  # the slot of how many kept calls had a backward that ran
    named: bool = True  # whether another process finds it by its name
    operator: bool = False  # whether it is what torch makes of an operator
    written: bool = False  # whether a call is kept outside of this process
    full: bool = False
    ignored: bool = False
    calls: list[Call] = field(default_factory=list)
    # the bytes of the call that is kept of each, if any
    signatures: dict[Any, int | None] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    def keep(self, call: Call) -> None:
        """Keep a call, in the place of an earlier one that is alike."""
        others = [one for one in self.calls if one.number != call.number]
        self.calls[:] = sorted([*others, call], key=lambda one: one.number)


@dataclass(eq=False)
class Recorder:
    """Records every custom Function that is applied while it is installed.

    Arguments:
        copy: turns ``(args, kwargs, byte limit)`` into a `Call`, or raises an exception
            whose message is the reason why the call cannot be replayed; ``None`` is no call at all.
        keep: receives the record of the Function and the call, once it has succeeded; the record
            itself keeps the call where there is no other place.
        limits: how much to keep.
        changed: is told when a Function or a reason is new.
        live: copies, likewise, what ``copy`` refuses, or of a Function that has no name to be found
            by: for a check in this process. The record itself keeps it.
        guarded: makes of an action one that raises nothing, whatever the program has made of what
            it needs.

    Attributes:
        records: what was seen of each Function.
        tally: how often each was applied, by the slot of its record, and of each of its patterns.
    """

    copy: _Copy
    keep: Callable[[Record, Call], None] = Record.keep
    limits: Limits = field(default_factory=Limits)
    changed: Callable[[], None] = lambda: None
    live: _Copy | None = None
    guarded: Callable[[Any], Any] = field(default=lambda action: action, kw_only=True)

    def __post_init__(self) -> None:
        self.records: dict[type, Record] = {}
        self.tally: Any = [0] * _SLOTS
        self.bytes = self._slots = 0
        self._lock = threading.RLock()
        self._watches: list[Callable[[], None]] = []

    def install(self, base: Any) -> None:
        """Watch the calls of ``base.apply``.

        Arguments:
            base: `torch.autograd.Function`, or a base class that replaces its ``apply``.
        """
        records = self.records
        see, commit, hear = map(self.guarded, (self._see, self._commit, self._hear))

        def watch(
            call: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            record = records.get(cls)
            if record is not None:
                self.tally[record.slot] += 1
                if record.ignored:
                    return call(cls, *args, **kwargs)
                pattern = record.patterns.get(pattern_of(args, kwargs))
                if pattern is not None:
                    count = self.tally[pattern.slot] = self.tally[pattern.slot] + 1
                    if not count & (count - 1) and count >= _EARLY:  # a power of two
                        pattern.due = {*pattern.kept}
                    full = record.full or len(pattern.kept) >= pattern.most
                    if full and not pattern.due:
                        return call(cls, *args, **kwargs)
                    signature = signature_of(args, kwargs, operator=record.operator)
                    seen = full or signature in record.signatures
                    if seen and signature not in pattern.due:
                        return call(cls, *args, **kwargs)
            pending = see(cls, args, kwargs)
            output = call(cls, *args, **kwargs)
            if pending is not None:
                commit(*pending)
                hear(pending[0], output)
            return output

        never_compile(watch, callees=True)
        own = (Recorder._see, Recorder._commit, Recorder._hear, see, commit, hear)
        for helper in (*HELPERS, *own):
            never_compile(helper)
        self._watches.append(watch_apply(base, watch))

    def settle(self) -> None:
        """Keep of each record the calls that are chosen, where they are kept in it."""
        for record in self.records.values():
            counts = {name: self.tally[each.slot] for name, each in record.patterns.items()}
            record.calls = choose(record.calls, counts, self.limits.calls)

    def uninstall(self) -> None:
        """End every watch."""
        while self._watches:
            self._watches.pop()()

    def _see(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Record, Any, Call | None, Call | None] | None:
        if PROBING.get():
            return None
        with self._lock:
            record = self.records.get(cls) or self._meet(cls)
            if record.ignored:
                return None
            name = pattern_of(args, kwargs)
            pattern = record.patterns.get(name) or self._meet_pattern(record, name)
            if pattern is None:
                return None
            signature = signature_of(args, kwargs, operator=record.operator)
            if record.operator:
                args, kwargs = given_to_operator(args)
            earlier = record.signatures.get(signature)
            if signature in pattern.due:
                pattern.due.remove(signature)
            elif record.full or len(pattern.kept) >= pattern.most or signature in record.signatures:
                return None
            record.signatures.setdefault(signature)
            record.full = len(record.signatures) >= _SIGNATURE_LIMIT
            left = self.limits.total_bytes - self.bytes + (earlier or 0)
            limit = min(self.limits.call_bytes, left)
            call = live = None
            with self._noting(record):
                call = self.copy(args, kwargs, limit)
                if call is None:  # tensors without data: a tracer passes through, nobody calls
                    if earlier is None:
                        del record.signatures[signature]
                    return None
            if self.live is not None and not (call and record.named):
                with contextlib.suppress(Exception):  # why is noted
                    live = self.live(args, kwargs, limit)
            for each in filter(None, (call, live)):
                each.pattern, each.number = name, [*record.signatures].index(signature)
            if earlier is not None and not all(_is_finite(one) for one in (call, live) if one):
                return None
            return (record, signature, call, live) if call or live else None

    def _meet(self, cls: type) -> Record:
        operator = operator_of(cls)
        applied = cls if operator is None else operator
        locator = Locator.of(applied)
        record = Record(cls, locator, _script(), self._slot(), self._slot())
        record.named, record.operator = locator.names(applied), operator is not None
        self.records[cls] = record
        self.tally[record.slot] += 1
        if not record.operator and str(cls.__module__).startswith(_NOT_CUSTOM):
            record.ignored = record.full = True
        else:
            self.changed()
        return record

    def _meet_pattern(self, record: Record, name: str) -> Pattern | None:
        """A new pattern, counted from now on; ``None`` where there are many.

        Each of those before it is to have a call, which leaves it so many fewer.
        """
        before = len(record.patterns)
        if before == _PATTERN_LIMIT:
            return None
        pattern = Pattern(self._slot(), max(1, self.limits.calls - before))
        record.patterns[name] = pattern
        self.tally[pattern.slot] += 1
        self.changed()
        return pattern

    def _slot(self) -> int:
        self._slots += 1
        return min(self._slots, _SLOTS) - 1

    def _commit(self, record: Record, signature: Any, call: Call | None, live: Call | None) -> None:
        with self._lock:
            kept = [each for each in (call, live) if each is not None]
            pattern, earlier = record.patterns[kept[0].pattern], record.signatures[signature]
            if earlier is None and len(pattern.kept) >= pattern.most:
                return
            with self._noting(record, "the call could not be written: "):
                if call is not None:
                    self.keep(record, call)
                    record.written = True
                if live is not None:
                    record.keep(live)
                size = record.signatures[signature] = sum(each.size for each in kept)
                self.bytes += size - (earlier or 0)
                pattern.kept.add(signature)
                if earlier is None and not record.named:
                    self._note(record, _why_lost(record.locator))

    def _hear(self, record: Record, output: Any) -> None:
        """Count a backward: what ran here and fails alone needs more than its arguments."""
        outputs = (y for y in pytree.tree_leaves(output) if isinstance(y, torch.Tensor))
        node = next((y.grad_fn for y in outputs if y.grad_fn is not None), None)

        def ran(*_: Any) -> None:
            self.tally[record.answered] += 1

        if node is not None:
            never_compile(ran)
            node.register_hook(ran)

    @contextlib.contextmanager
    def _noting(self, record: Record, what: str = "") -> Iterator[None]:
        """The program must run on whatever a copy meets, a full disk too: the reason is noted."""
        try:
            yield
        except Exception as reason:
            self._note(record, what + (str(reason) or type(reason).__name__))

    def _note(self, record: Record, text: str) -> None:
        record.reasons[text] = record.reasons.get(text, 0) + 1
        self.changed()


def why_no_call(reasons: Mapping[str, int]) -> str:
    """Why there is no call of a Function to check it with, in one line.

    Example:
        >>> why_no_call({"it is too large": 2}), why_no_call({})
        ('it is too large (2 calls)', 'no call of it with tensors that hold data succeeded')
    """
    counted = [f"{text} ({count} calls)" if count > 1 else text for text, count in reasons.items()]
    return "; ".join(counted) or "no call of it with tensors that hold data succeeded"


def _is_finite(call: Call) -> bool:
    """Whether no number of a call is infinite or none."""
    leaves = (*call.tensors, *pytree.tree_leaves((call.arguments, call.keywords)))
    with contextlib.suppress(Exception):  # of a class of its own
        return all(bool(x.isfinite().all()) for x in leaves if isinstance(x, torch.Tensor))
    return False


def _why_lost(locator: Locator) -> str:
    outer, inner, _ = locator.qualname.partition(".<locals>")
    where = f"it is defined inside {outer}: " if inner else ""
    return f"{where}no name leads to it in another process"


def choose(calls: Iterable[Any], counts: Mapping[str, int], most: int) -> list[Any]:
    """Some calls of one Function: one of each pattern, the commonest first, and so on in turn.

    One that asks for no gradient comes last: beside others it is not looked at.

    Arguments:
        calls: what has a pattern, in the order of the program.
        counts: how often the program made a call of each pattern.
        most: how many are chosen.

    Example:
        >>> calls = [Call([], [], [], 0, pattern=pattern) for pattern in ("00", "11", "11", "01")]
        >>> [call.pattern for call in choose(calls, {"00": 9, "11": 2, "01": 3}, 4)]
        ['01', '11', '00', '11']
    """
    by_pattern: dict[str, list[Any]] = {}
    for call in calls:
        by_pattern.setdefault(call.pattern, []).append(call)
    ordered = sorted(by_pattern, key=lambda name: ("1" not in name, -counts.get(name, 0)))
    turns = itertools.zip_longest(*(by_pattern[name] for name in ordered))
    return [call for turn in turns for call in turn if call is not None][:most]


def _script() -> str:
    """The script that runs here; neither a module nor what is installed as a tool.

    Asked while it runs: Python takes its ``__file__`` away before it exits.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    own = getattr(main, "__spec__", None) is None and file.endswith(".py")
    return absolute(file) if own else ""
