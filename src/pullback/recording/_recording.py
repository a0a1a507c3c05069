"""`Recording`: the Functions that a program applied and the calls it made, on disk and off.

The file is what ``torch.save`` makes of plain containers and tensors. It is read with
``torch.load(weights_only=True)`` and nothing else, so that opening a recording from a stranger
executes nothing.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pullback.errors import ArgumentError, RecordingError
from pullback.recording.codec import EXPRESSION, decode
from pullback.recording.locator import Locator, find, load_module

__all__ = ["RecordedCall", "RecordedFunction", "Recording", "load_call"]

_FORMAT = "pullback recording"
_VERSION = 2


@dataclass(frozen=True)
class RecordedCall:
    """One call of a Function: its arguments as plain data, and the tensors they refer to."""

    arguments: list[Any]
    keywords: list[tuple[str, Any]]
    tensors: list[torch.Tensor]

    @property
    def differentiates(self) -> bool:
        """Whether a tensor of the call required a gradient in the program."""
        return _requires_grad(self.arguments) or _requires_grad(self.keywords)


@dataclass
class RecordedFunction:
    """A Function that was applied.

    Arguments:
        locator: where it is defined.
        paths: ``sys.path`` of the program.
        applied: how often the program applied it; 0 if the program was killed.
        calls: the kept calls, of different shapes, dtypes or kinds of arguments.
        reasons: reason -> how many calls were not kept for it.
    """

    locator: Locator
    paths: list[str] = field(default_factory=list)
    applied: int = 0
    calls: list[RecordedCall] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``"package.module:Name"``; the script's file in place of ``__main__``."""
        return self.locator.name

    def load(self) -> Any:
        """Import the Function.

        Raises:
            RecordingError: it cannot be found, with the reason.
        """
        self._extend_path()
        try:
            return find(self.locator)
        except ArgumentError as error:
            raise RecordingError(
                error.what, given=error.given, expected=error.expected, mend=error.mend
            ) from error

    def arguments(self, number: int, path: str = "") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return fresh positional and keyword arguments of one call.

        Arguments:
            number: which of the calls.
            path: the file of the recording, for the repro of a finding.

        Raises:
            RecordingError: something that the call names cannot be found or remade.
        """
        self._extend_path()
        call = self.calls[number]
        nodes = [*call.arguments, *(item for _, item in call.keywords)]
        values = decode(nodes, call.tensors, self._load_module)
        for place, value in enumerate(values):
            if path and "<" in getattr(value, "__qualname__", ""):
                source = f"load_call({path!r}, {self.name!r}, {number})[1][{place}]"
                module = "__import__('importlib').import_module('pullback.recording')"
                setattr(value, EXPRESSION, f"{module}.{source}")
        count = len(call.arguments)
        names = (name for name, _ in call.keywords)
        return tuple(values[:count]), dict(zip(names, values[count:], strict=True))

    def _load_module(self, name: str) -> ModuleType:
        return load_module(name, self.locator.file if name == self.locator.module else "")

    def _extend_path(self) -> None:
        for entry in self.paths:
            if entry not in sys.path and os.path.exists(entry):
                sys.path.append(entry)


@dataclass
class Recording:
    """What a program applied.

    Attributes:
        program: the command line that was recorded.
        functions: the Functions, in the order of their names.
    """

    program: list[str] = field(default_factory=list)
    functions: list[RecordedFunction] = field(default_factory=list)

    def __iter__(self) -> Iterator[RecordedFunction]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def save(self, path: str | Path) -> None:
        """Write the recording to one file.

        Raises:
            RecordingError: the file cannot be written.
        """
        functions = [
            {
                "locator": item.locator.to_data(),
                "paths": item.paths,
                "applied": item.applied,
                "reasons": item.reasons,
                "calls": [
                    {"arguments": c.arguments, "keywords": c.keywords, "tensors": c.tensors}
                    for c in item.calls
                ],
            }
            for item in self.functions
        ]
        data = {
            "format": _FORMAT,
            "version": _VERSION,
            "program": list(self.program),
            "functions": functions,
        }
        try:
            torch.save(data, path)
        except (OSError, RuntimeError) as error:
            raise RecordingError(
                f"The recording cannot be written to {path}.",
                given=str(error),
                mend="Name a file in a folder that exists and can be written.",
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> "Recording":
        """Read a recording without executing anything of it.

        Raises:
            RecordingError: the file is missing, not a recording, or holds more than plain data.
        """
        data = _read(Path(path))
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise RecordingError(
                f"{path} is not a recording.",
                given="a file that torch can read, of another form",
                mend="Make one with: pullback record -o calls.pt -- python train.py",
            )
        if data.get("version") != _VERSION:
            raise RecordingError(
                f"{path} was written by another version of pullback.",
                given=f"version {data.get('version')!r}",
                expected=f"version {_VERSION}",
                mend="Record again with this version.",
            )
        try:
            functions = [_read_function(item) for item in data["functions"]]
            program = [str(word) for word in data["program"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(
                f"{path} is malformed.",
                given=f"{type(error).__name__}: {error}",
                mend="Record again with this version.",
            ) from error
        return cls(program, functions)

    @classmethod
    def collect(cls, directory: str | Path, program: list[str]) -> "Recording":
        """Put together what the processes of a program have left in ``directory``."""
        functions: dict[Locator, RecordedFunction] = {}
        folder = Path(directory)
        for file in sorted(folder.glob("counts-*.json")):
            for item in json.loads(file.read_text(encoding="utf-8")):
                entry = _entry(functions, item)
                entry.applied += item["applied"]
                for reason, count in item["reasons"].items():
                    entry.reasons[reason] = entry.reasons.get(reason, 0) + count
        for file in sorted(folder.glob("call-*.pt")):
            item = _read(file)
            _entry(functions, item).calls.append(_read_call(item))
        ordered = sorted(functions.values(), key=lambda item: item.name)
        return cls(list(program), ordered)


def load_call(path: str | Path, name: str, number: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """Return a recorded Function and the arguments of one of its calls, for a repro.

    Arguments:
        path: a recording.
        name: the Function as `RecordedFunction.name` writes it.
        number: which call.

    Raises:
        RecordingError: the recording, the Function or the call cannot be had.
    """
    for item in Recording.load(path):
        if item.name == name and number < len(item.calls):
            args, keywords = item.arguments(number)
            if keywords:
                raise RecordingError(f"Call {number} of {name} has keyword arguments.")
            return item.load(), args
    raise RecordingError(f"{path} holds no call {number} of {name}.", mend="Record again.")


def _read(path: Path) -> Any:
    if not path.is_file():
        raise RecordingError(
            f"There is no recording at {path}.",
            mend="Make one with: pullback record -o calls.pt -- python train.py",
        )
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        unsafe = "WeightsUnpickler" in str(error) or "weights_only" in str(error).lower()
        raise RecordingError(
            f"{path} holds more than plain data and was not opened."
            if unsafe
            else f"{path} cannot be read.",
            given=str(error).strip().splitlines()[0][:160],
            mend="Open only recordings made by pullback record; it never writes such data.",
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise RecordingError(
            f"{path} cannot be read.",
            given=f"{type(error).__name__}: {str(error)[:160]}",
            mend="Make one with: pullback record -o calls.pt -- python train.py",
        ) from error


def _entry(functions: dict[Locator, RecordedFunction], item: dict[str, Any]) -> RecordedFunction:
    locator = Locator.from_data(item["locator"])
    if locator not in functions:
        functions[locator] = RecordedFunction(locator, [str(entry) for entry in item["paths"]])
    return functions[locator]


def _read_function(item: dict[str, Any]) -> RecordedFunction:
    reasons = {str(reason): int(count) for reason, count in item["reasons"].items()}
    calls = [_read_call(call) for call in item["calls"]]
    entry = _entry({}, item)
    return RecordedFunction(entry.locator, entry.paths, int(item["applied"]), calls, reasons)


def _read_call(item: dict[str, Any]) -> RecordedCall:
    tensors = list(item["tensors"])
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise TypeError("a recorded tensor is not a tensor")
    keywords = [(str(name), value) for name, value in item["keywords"]]
    return RecordedCall(list(item["arguments"]), keywords, tensors)


def _requires_grad(node: Any) -> bool:
    if isinstance(node, (list, tuple)):
        if len(node) == 5 and node[0] == "tensor":
            return bool(node[2])
        return any(_requires_grad(item) for item in node)
    return False
