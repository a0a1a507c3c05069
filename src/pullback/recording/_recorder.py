"""Record the custom Functions and operators that a running program applies, with real inputs.

`Recorder` watches the calls of ``torch.autograd.Function.apply``. A call whose shapes, dtypes
and kinds of arguments were seen before costs a few microseconds (``benchmarks/bench_recorder.py``);
a new one is copied before it runs, so that an in-place forward is recorded as it was called, and
kept only when it succeeds. What is kept is bounded in calls and bytes.

This file imports neither torch nor pullback: it is also loaded by path into programs, through
``_bootstrap/sitecustomize.py``, before they import anything. What it needs is loaded by path.
"""

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

__all__ = ["Call", "Limits", "Record", "Recorder", "record_this_process"]

# Functions that torch and pullback build themselves, around compiled graphs, checkpoints, batches.
_NOT_CUSTOM = ("torch.", "pullback.tensor.")
_OWN_BASE = "pullback.tensor._function"  # replaces `apply`, and enters torch below it
_SIGNATURE_LIMIT = 64
_SLOTS = 4096  # of Functions that are counted one by one


@dataclass(frozen=True)
class Limits:
    """How much is kept.

    Arguments:
        calls: calls kept for each Function, of different shapes, dtypes or kinds of arguments.
        call_bytes: bytes of tensors in one call.
        total_bytes: bytes of tensors in all calls together.
    """

    calls: int = 3
    call_bytes: int = 32 * 2**20
    total_bytes: int = 512 * 2**20


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
    locator: Any
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

        inside = _inside_torch()
        inside.never_compile(watch, callees=True)
        for helper in (_signature, _kind, Recorder._see, Recorder._commit):
            inside.never_compile(helper)
        self._watches.append(inside.watch_apply(base, watch))

    def uninstall(self) -> None:
        """End every watch."""
        while self._watches:
            self._watches.pop()()

    def _see(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type
    ) -> tuple[Record, Call] | None:
        with self._lock:
            record = self.records.get(cls)
            operator = _inside_torch().operator_of(cls)
            if record is None:
                named = cls if operator is None else operator
                slot = min(len(self.records), _SLOTS - 1)
                record = self.records[cls] = Record(cls, _locate(named), _script(), slot)
                self.tally[slot] += 1
                if operator is None and cls.__module__.startswith(_NOT_CUSTOM):
                    record.ignored = record.full = True
                else:
                    self._changed()
            if record.full:
                return None
            if operator is not None:
                args, kwargs = args[:-1], {**args[-1].keyword_only_args}
            signature = _signature(args, kwargs, tensor)
            if signature in record.signatures:
                return None
            record.signatures.add(signature)
            if len(record.signatures) >= _SIGNATURE_LIMIT:
                record.full = True
            limit = min(self.limits.call_bytes, self.limits.total_bytes - self.bytes)
            try:
                call = self._copy(args, kwargs, limit)
                if call is None:  # tensors without data: a tracer passes through, nobody calls
                    record.signatures.discard(signature)
                    return None
                return record, call
            except Exception as reason:  # the program must run on whatever the copy meets
                text = str(reason) or type(reason).__name__
                record.reasons[text] = record.reasons.get(text, 0) + 1
                self._changed()
                return None

    def _commit(self, record: Record, call: Call) -> None:
        with self._lock:
            if record.full:
                return
            try:
                self._keep(record, call)
            except Exception as reason:  # a full disk must not end the program
                text = f"the call could not be written: {reason}"
                record.reasons[text] = record.reasons.get(text, 0) + 1
                self._changed()
                return
            record.kept += 1
            self.bytes += call.size
            record.full = record.kept >= self.limits.calls


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


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Leave dispatch modes and torch.func transforms while copying and writing."""
    inside = _inside_torch()
    alone, silent = inside.temporarily_clear_interpreter_stack(), sys.modules["torch"].no_grad()
    with alone, silent, inside.disable_current_modes():
        yield


def record_this_process(directory: str, limits: Limits, inside: str = "") -> None:
    """Record this process into ``directory`` as soon as it imports torch.

    Arguments:
        directory: where calls and counts are written.
        limits: how much is kept.
        inside: a module whose ``finish(records)`` is run when this process ends, on the calls that
            its ``copy_call`` has kept here; an empty text to write the calls instead.
    """
    spool = _sibling("_spool.py").Spool(directory)
    if inside:
        recorder = Recorder(_copies_of(inside), limits=limits, changed=spool.describe)
        # At the end torch takes its operators down, by finalizers. They run where the first one
        # that anybody made is registered, and the last to be registered runs first.
        weakref.finalize(recorder, int)
        atexit.register(_finish, recorder, inside)
    else:

        def keep(record: Record, call: Call) -> None:
            with _plain_torch():
                spool.keep(record, call)

        recorder = Recorder(_encode, keep, limits, spool.describe)
    spool.recorder = recorder
    spool.renew()

    def install(part: Any) -> None:
        try:
            recorder.install(part.Function, sys.modules["torch"].Tensor)
        except Exception as error:  # an unknown torch: the program runs, and the parent says why
            path = os.path.join(directory, f"failed-{os.getpid()}")
            with open(path, "w", encoding="utf-8") as file:
                file.write(str(error))

    # Only when all of torch is there: what it applies by itself is not of interest.
    when_imported = _sibling("../internal/_when_imported.py").WhenImported

    def start(torch: Any) -> None:
        install(torch.autograd)
        _watch_training(directory)

    when_imported("torch", start)
    when_imported(_OWN_BASE, install)


def _encode(args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Call | None:
    """A call as plain data, for a file."""
    _inside_torch()
    codec = _sibling("codec/_encode.py")
    encoder = codec.Encoder(limit)
    with _plain_torch():
        try:
            call = encoder.encode_call(args, kwargs)
        except codec.Traced:
            return None
    return Call(**call, size=encoder.bytes)


def _copies_of(module: str) -> Callable[[tuple[Any, ...], dict[str, Any], int], Call | None]:
    """How a module keeps the calls of the program in the program's own process."""
    # The compiler needs them: once Python has begun to end, they cannot be imported.
    for name in ("concurrent.futures.process", "concurrent.futures.thread"):
        importlib.import_module(name)
    return lambda *call: importlib.import_module(module).copy_call(*call)


def _finish(recorder: Recorder, module: str) -> None:
    recorder.uninstall()
    os.environ.pop("PULLBACK_RECORD_DIRECTORY", None)  # what the check starts is not recorded
    if recorder.records:
        importlib.import_module(module).finish(recorder.records)


def _watch_training(directory: str) -> Any:
    """Watch how this process trains, and write it as it is known: its end may not come.

    Returns:
        The watch, or ``None`` where there is none.
    """
    write_data = _sibling("_spool.py").write_data
    training = _sibling("training/_finding.py").Training

    def write() -> None:
        if os.path.isdir(directory) and (watch.steps or watch.fault):
            found = training(watch.findings, watch.steps, watch.fault)
            with contextlib.suppress(OSError):  # a full disk must not end the program
                write_data(directory, "training", asdict(found))

    try:
        _inside_torch()
        _sibling("training/_flow.py")
        watch = _sibling("training/_watch.py").TrainingWatch(looked=write)
    except Exception as error:  # an unknown torch: the program runs, and the parent says why
        write_data(directory, "training", asdict(training(fault=str(error))))
        return None
    watch.__enter__()
    atexit.register(write)
    if hasattr(os, "register_at_fork"):  # a loader's worker trains nothing
        os.register_at_fork(after_in_child=watch.leave)
    return watch


def _inside_torch() -> Any:
    return _sibling("../internal/torch.py")


def _locate(function: type) -> Any:
    return _sibling("locator/_locator.py").Locator.of(function)


def _script() -> str:
    """The script that runs here; neither a module nor what is installed as a tool.

    Asked while it runs: Python takes its ``__file__`` away before it exits.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    own = getattr(main, "__spec__", None) is None and file.endswith(".py")
    return os.path.abspath(file) if own else ""


@functools.cache
def _sibling(file: str) -> Any:
    """Load a file by its path from this folder: pullback need not be installed in the program."""
    path = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), file))
    name = f"_pullback_{os.path.basename(file).strip('_').removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their module up
    # A file that imports another gets the copy, whether the program has pullback or not.
    with _named(_LOADED):
        spec.loader.exec_module(module)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parts = os.path.relpath(path, package).removesuffix(".py").split(os.sep)
    _LOADED[".".join(("pullback", *parts))] = module
    return module


_LOADED: dict[str, ModuleType] = {}  # by the name that it has in pullback


@contextlib.contextmanager
def _named(modules: dict[str, ModuleType]) -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is not None:
                sys.modules[name] = module
            else:
                del sys.modules[name]
