"""Record the custom Functions and operators that a running program applies, with real inputs.

`Recorder` puts a thin layer over ``torch.autograd.Function.apply``. A call whose shapes, dtypes
and kinds of arguments were seen before costs a few microseconds (``benchmarks/bench_recorder.py``);
a new one is copied before it runs, so that an in-place forward is recorded as it was called, and
kept only when it succeeds. What is kept is bounded in calls and bytes.

This file imports neither torch nor pullback: it is also loaded by path into programs, through
``_bootstrap/sitecustomize.py``, before they import anything.
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

__all__ = ["Call", "Limits", "Record", "Recorder", "record_this_process"]

_TARGET = "torch.autograd.function"
# Functions that torch and pullback build themselves, around compiled graphs, checkpoints, batches.
_NOT_CUSTOM = ("torch.", "pullback.tensor.")
_OWN_BASE = "pullback.tensor._function"  # replaces `apply`, and enters torch below it
_SIGNATURE_LIMIT = 64


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
    """One call: its arguments as they were copied, and their bytes."""

    arguments: Any
    keywords: Any
    tensors: list[Any]
    size: int


@dataclass
class Record:
    """What was seen of one Function."""

    function: type
    locator: Any
    script: str = ""
    applied: int = 0
    full: bool = False
    ignored: bool = False
    kept: int = 0
    signatures: set[Any] = field(default_factory=set)
    reasons: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Records every custom Function that is applied while it is installed.

    Arguments:
        copy: turns ``(args, kwargs, byte limit)`` into a `Call`, or raises an exception
            whose message is the reason why the call cannot be replayed; ``None`` is no call at all.
        keep: receives the record of the Function and the call, once it has succeeded.
        limits: how much to keep.
    """

    def __init__(
        self,
        copy: Callable[[tuple[Any, ...], dict[str, Any], int], Call | None],
        keep: Callable[[Record, Call], None],
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.records: dict[type, Record] = {}
        self.bytes = 0
        self._copy = copy
        self._keep = keep
        self._lock = threading.RLock()
        self._replaced: list[tuple[Any, Any]] = []

    def install(self, base: Any, tensor: type) -> None:
        """Put the layer over ``base.apply``.

        Arguments:
            base: `torch.autograd.Function`, or a base class that replaces its ``apply``.
            tensor: the class of tensors.
        """
        original = base.__dict__["apply"]
        self._replaced.append((base, original))
        call = original.__func__
        records, see = self.records, self._see

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            record = records.get(cls)
            if record is not None:
                record.applied += 1
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

        apply.__qualname__ = call.__qualname__
        apply.__doc__ = call.__doc__
        base.apply = classmethod(apply)

    def uninstall(self) -> None:
        """Take every layer off again."""
        while self._replaced:
            base, original = self._replaced.pop()
            base.apply = original

    def _see(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type
    ) -> tuple[Record, Call] | None:
        with self._lock:
            record = self.records.get(cls)
            operator = _operator(cls)
            if record is None:
                named = cls if operator is None else operator
                record = self.records[cls] = Record(
                    cls, _sibling("locator/_locator.py").Locator.of(named), applied=1
                )
                if operator is None and cls.__module__.startswith(_NOT_CUSTOM):
                    record.ignored = record.full = True
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
                return
            record.kept += 1
            self.bytes += call.size
            record.full = record.kept >= self.limits.calls


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type) -> Any:
    items = [_kind(item, tensor) for item in args]
    if kwargs:
        items.extend((name, _kind(item, tensor)) for name, item in kwargs.items())
    return tuple(items)


def _operator(cls: type) -> Any:
    """The `torch.library.custom_op` whose autograd torch made this class for, or ``None``.

    An operator that takes lists of tensors, or that a `torch.library.Library` defines, is none:
    no name in a module leads back to it.
    """
    if cls.__module__ != "torch._library.autograd":
        return None
    forward: Any = vars(cls).get("forward")
    cells = getattr(getattr(forward, "__func__", forward), "__closure__", None) or ()
    for cell in cells:
        if type(cell.cell_contents).__name__ == "OpOverload":
            made = sys.modules["torch._library.custom_ops"].OPDEFS
            return made.get(cell.cell_contents._schema.name)
    return None


def _kind(value: Any, tensor: type) -> Any:
    if isinstance(value, tensor):
        return value.shape, value.dtype, value.requires_grad  # type: ignore[attr-defined]
    kind = type(value)
    if kind is bool or kind is int or kind is str or value is None:
        return kind, value
    if kind is list or kind is tuple:
        return kind, tuple([_kind(item, tensor) for item in value])
    return kind


class _WhenImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs an action right after one module has been imported, and then steps aside."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._loader is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        sys.meta_path.remove(self)
        self._action(module)


class _Spool:
    """Writes each kept call to a file of its own.

    Nothing piles up in memory, and a program that is killed leaves what it had recorded.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._number = 0
        self.recorder: Recorder | None = None

    def keep(self, record: Record, call: Call) -> None:
        import torch

        self._number += 1
        path = os.path.join(self._directory, f"call-{os.getpid()}-{self._number:04d}.pt")
        with _plain_torch(torch):
            torch.save(
                {
                    "locator": record.locator.to_data(),
                    "paths": _paths(),
                    "script": record.script,
                    "arguments": call.arguments,
                    "keywords": call.keywords,
                    "tensors": call.tensors,
                },
                path + ".part",
            )
        os.replace(path + ".part", path)

    def finish(self) -> None:
        """Write what was counted; the calls themselves are written already."""
        if self.recorder is None or not os.path.isdir(self._directory):
            return
        counts = [
            {
                "locator": record.locator.to_data(),
                "paths": _paths(),
                "script": record.script,
                "applied": record.applied,
                "reasons": record.reasons,
            }
            for record in self.recorder.records.values()
            if not record.ignored
        ]
        path = os.path.join(self._directory, f"counts-{os.getpid()}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(counts, file)
        os.replace(path + ".part", path)


def _plain_torch(torch: Any) -> Any:
    """Leave dispatch modes and torch.func transforms while copying and writing."""
    stack = contextlib.ExitStack()
    functorch = torch._functorch.pyfunctorch
    stack.enter_context(functorch.temporarily_clear_interpreter_stack())
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
    return stack


def record_this_process(directory: str, limits: Limits) -> None:
    """Record this process into ``directory`` as soon as it imports torch."""
    spool = _Spool(directory)

    def encode(args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Call | None:
        import torch

        codec = _sibling("codec/_encode.py")
        encoder = codec.Encoder(limit)
        with _plain_torch(torch):
            try:
                arguments = [encoder.encode(item) for item in args]
                keywords = [(name, encoder.encode(item)) for name, item in kwargs.items()]
            except codec.Traced:
                return None
        return Call(arguments, keywords, encoder.tensors, encoder.bytes)

    recorder = spool.recorder = Recorder(encode, spool.keep, limits)

    def install(module: ModuleType) -> None:
        # torch itself is only half imported here, but its extension module is there.
        recorder.install(module.Function, sys.modules["torch._C"].TensorBase)

    sys.meta_path.insert(0, _WhenImported(_TARGET, install))
    sys.meta_path.insert(0, _WhenImported(_OWN_BASE, install))
    atexit.register(spool.finish)


def _paths() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _script() -> str:
    """The script that runs here; neither a module nor what is installed as a tool."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    own = getattr(main, "__spec__", None) is None and file.endswith(".py")
    return os.path.abspath(file) if own else ""


@functools.cache
def _sibling(file: str) -> Any:
    """Load a file of this folder by path: pullback need not be installed in the program."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
    name = f"_pullback_{os.path.basename(file).strip('_').removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module
