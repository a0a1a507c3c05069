"""`Recording`: the Functions that a program applied and the calls it made, on disk and off.

The file is what ``torch.save`` makes of plain containers and tensors. It is read with
``torch.load(weights_only=True)`` and nothing else, so that opening a recording from a stranger
executes nothing.
"""

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pullback.conformance._program import load_function, load_module
from pullback.conformance._restore import restore
from pullback.errors import RecordingError
from pullback.tensor import complete

__all__ = ["RecordedCall", "RecordedFunction", "Recording", "load_call"]

_FORMAT = "pullback recording"
_VERSION = 1
_IDENTITY = {
    "module": str,
    "qualname": str,
    "file": (str, type(None)),
    "run_as": (str, type(None)),
    "path": list,
    "completed": bool,
}


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

    def live(self, identity: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return fresh positional and keyword arguments.

        Raises:
            RecordingError: something that the call names cannot be found or remade.
        """
        values = restore(
            [*self.arguments, *(item for _, item in self.keywords)],
            self.tensors,
            lambda name: load_module(name, identity),
        )
        count = len(self.arguments)
        names = (name for name, _ in self.keywords)
        return tuple(values[:count]), dict(zip(names, values[count:], strict=True))


@dataclass
class RecordedFunction:
    """A Function that was applied.

    Attributes:
        identity: where it is defined: module, qualname, file, run_as, path.
        applied: how often the program applied it; 0 if the program was killed.
        calls: the kept calls, of different shapes, dtypes or kinds of arguments.
        reasons: reason -> how many calls were not kept for it.
    """

    identity: dict[str, Any]
    applied: int = 0
    calls: list[RecordedCall] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``"package.module:Name"``; the script's file in place of ``__main__``."""
        module = self.identity["module"]
        if module == "__main__":
            module = self.identity["run_as"] or self.identity["file"] or module
        suffix = " (completed)" if self.identity["completed"] else ""
        return f"{module}:{self.identity['qualname']}{suffix}"

    def load(self) -> Any:
        """Import the Function.

        Raises:
            RecordingError: it cannot be found, with the reason.
        """
        function = load_function(self.identity)
        if not self.identity["completed"]:
            return function
        return complete(function)


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
                **item.identity,
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
        functions: dict[tuple[Any, ...], RecordedFunction] = {}
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
            args, keywords = item.calls[number].live(item.identity)
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


def _entry(
    functions: dict[tuple[Any, ...], RecordedFunction], item: dict[str, Any]
) -> RecordedFunction:
    key = tuple(item[name] for name in ("module", "qualname", "file", "run_as", "completed"))
    if key not in functions:
        functions[key] = RecordedFunction({name: item[name] for name in _IDENTITY})
    return functions[key]


def _read_function(item: dict[str, Any]) -> RecordedFunction:
    for name, kind in _IDENTITY.items():
        if not isinstance(item[name], kind):
            raise TypeError(f"{name} is a {type(item[name]).__name__}")
    identity = {name: item[name] for name in _IDENTITY}
    identity["path"] = [str(entry) for entry in identity["path"]]
    reasons = {str(reason): int(count) for reason, count in item["reasons"].items()}
    calls = [_read_call(call) for call in item["calls"]]
    return RecordedFunction(identity, int(item["applied"]), calls, reasons)


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
