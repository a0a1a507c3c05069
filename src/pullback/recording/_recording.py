"""`Recording`: the Functions that a program applied and the calls it made, on disk and off.

The file is what ``torch.save`` makes of plain containers and tensors. It is read with
``torch.load(weights_only=True)`` and nothing else, so that opening a recording from a stranger
executes nothing.
"""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pullback.errors import ArgumentError, RecordingError
from pullback.internal._defaults import PLAIN
from pullback.internal._files import write_whole
from pullback.recording._archive import MAKE, read_archive
from pullback.recording._recorder import choose
from pullback.recording._spool import read_counts
from pullback.recording.codec import Keywords, Loader, StrictLoader, decode_call, describe_fault
from pullback.recording.locator import Locator
from pullback.recording.training import Training

__all__ = ["RecordedCall", "RecordedFunction", "Recording", "calls_on_ranks", "load_call"]

_FORMAT = "pullback recording"
_VERSION = 2
_AGAIN = "Record again with this version."


@dataclass(frozen=True)
class RecordedCall:
    """One call of a Function: its arguments as plain data, and the tensors they refer to.

    On several ranks ``place`` is the rank, of how many, and the number of the call on that rank.
    The pattern says which tensors required a gradient.
    """

    arguments: list[Any]
    keywords: list[tuple[str, Any]]
    tensors: list[torch.Tensor]
    place: tuple[int, int, int] | None = None
    pattern: str = ""

    @property
    def signature(self) -> str:
        """What two calls have in common that show the same of a Function: all but the numbers."""
        kinds = [(tensor.shape, tensor.dtype) for tensor in self.tensors]
        return repr((self.arguments, self.keywords, kinds, self.place and self.place[0]))

    @property
    def differentiates(self) -> bool:
        """Whether a tensor of the call required a gradient, and a graph was built."""
        if self.pattern and not self.pattern.strip("0"):
            return False
        return _requires_grad(self.arguments) or _requires_grad(self.keywords)


@dataclass
class RecordedFunction:
    """A Function that was applied.

    Arguments:
        locator: where it is defined.
        paths: ``sys.path`` of the program.
        script: the script that was run, or an empty text where that was a module or a tool.
        applied: how often the program applied it; 0 if the program was killed.
        calls: the kept calls, of different shapes, dtypes or kinds of arguments.
        reasons: reason -> how many calls were not kept for it.
        defaults: the dtype and the device of new tensors of the program, when it was first applied.
        patterns: which tensors of a call required a gradient -> how often; see `RecordedCall`.
        answered: how many backwards of the kept calls ran in the program.
        loader: what may be loaded; nothing but the harmless by default.
        index: which of a recording it is.
    """

    locator: Locator
    paths: list[str] = field(default_factory=list)
    script: str = ""
    applied: int = 0
    calls: list[RecordedCall] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    defaults: tuple[str, str] = PLAIN
    patterns: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    loader: Loader = field(default_factory=StrictLoader, repr=False, compare=False)
    index: int = field(default=0, repr=False, compare=False)

    @property
    def name(self) -> str:
        """``"package.module:Name"``; the script's file in place of ``__main__``."""
        return self.locator.name

    def _add(self, other: "RecordedFunction", *, alike: bool) -> None:
        """Take in what another process says of it, and its calls, if alike or if they are new."""
        self.applied += other.applied
        self.answered += other.answered
        for name, count in other.patterns.items():
            self.patterns[name] = self.patterns.get(name, 0) + count
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        known = () if alike else {call.signature for call in self.calls}
        self.calls += [call for call in other.calls if call.signature not in known]

    def _choose(self, most: int) -> None:
        """Keep so many calls of each rank, some of each pattern."""
        ranks: dict[Any, list[RecordedCall]] = {}
        for call in self.calls:
            ranks.setdefault(call.place and call.place[0], []).append(call)
        chosen = (choose(some, self.patterns, most) for some in ranks.values())
        self.calls = [call for some in chosen for call in some]

    def load(self) -> Any:
        """Import the Function.

        Raises:
            RecordingError: it cannot be found, with the reason.
        """
        try:
            return self.loader.function(self.locator)
        except ArgumentError as e:
            raise RecordingError(e.what, given=e.given, expected=e.expected, mend=e.mend) from e

    def arguments(self, number: int, path: str = "") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return fresh positional and keyword arguments of one call.

        Arguments:
            number: which of the calls.
            path: the file of the recording, for the repro of a finding.

        Raises:
            RecordingError: something that the call names cannot be found or remade.
        """
        self.load()  # what is no Function is given no arguments
        call = self.calls[number]
        place = f"['functions'][{self.index}]['calls'][{number}]['tensors']"
        where = f"torch.load({path!r}, weights_only=True){place}" if path else ""
        args, keywords = decode_call(
            call.arguments, call.keywords, call.tensors, self.loader, where
        )
        what = f"{path!r}, {self.name!r}, {number}{self.loader.options}"
        return args, Keywords(keywords, f"load_call({what})" * bool(path))


@dataclass
class Recording:
    """What a program applied.

    Attributes:
        program: the command line that was recorded.
        functions: the Functions, in the order of their names.
        training: what was seen of its training; it is not kept in a file.
        answers: what the program's own processes have said of their Functions, by name; nor is it.
    """

    program: list[str] = field(default_factory=list)
    functions: list[RecordedFunction] = field(default_factory=list)
    training: Training = field(default_factory=Training)
    answers: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, item in enumerate(self.functions):
            item.index = index

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
            {name: value for name, value in vars(item).items() if name not in ("loader", "index")}
            | {"locator": item.locator.to_data(), "calls": [dict(vars(c)) for c in item.calls]}
            for item in self.functions
        ]
        data = {"format": _FORMAT, "version": _VERSION, "program": list(self.program),
                "functions": functions}  # fmt: skip
        written = io.BytesIO()  # torch.save itself does not say why a file cannot be written
        torch.save(data, written)
        try:
            write_whole(Path(path), written.getbuffer())
        except OSError as error:
            raise RecordingError(
                f"The recording cannot be written to {path}; what was there is as it was.",
                given=getattr(error, "strerror", None) or str(error),
                mend="Make room, or name a file in a folder that exists and can be written.",
            ) from error

    @classmethod
    def load(
        cls, path: str | Path, *, scripts: Iterable[str | Path] = (), trust: bool = False
    ) -> "Recording":
        """Read a recording without executing anything of it.

        Arguments:
            path: the file.
            scripts: programs of yours; what they and the modules beside them define may be loaded.
            trust: load whatever the recording names. Only for a recording that you made.

        Raises:
            RecordingError: the file is missing, not a recording, or holds more than plain data.
            ArgumentError: there is no such script.
        """
        StrictLoader(scripts)  # a script that is not there is the first thing to hear of
        data = read_archive(Path(path))
        if type(data) is not dict or not _is(data.get("format"), _FORMAT):
            given = "a file that torch can read, of another form"
            raise RecordingError(f"{path} is not a recording.", given=given, mend=MAKE)
        version = data.get("version")
        if not _is(version, _VERSION):
            raise RecordingError(
                f"{path} was written by another version of pullback.",
                given=f"version {version}" if type(version) is int else None,
                expected=f"version {_VERSION}",
                mend=_AGAIN,
            )
        try:
            functions = list(map(_read_function, data["functions"]))
            program = [_text(word) for word in data["program"]]
        except Exception as error:  # data of any other form fails in some way or other
            given = describe_fault(error)
            raise RecordingError(f"{path} is malformed.", given=given, mend=_AGAIN) from error
        for item in functions:
            package = "" if item.locator.script else item.locator.module.partition(".")[0]
            item.loader = Loader(item.paths) if trust else StrictLoader(scripts, package)
        return cls(program, functions)

    @classmethod
    def collect(
        cls, directory: str | Path, program: list[str], calls: int | None = None
    ) -> "Recording":
        """Put together what the processes of a program of ours have left in ``directory``.

        Arguments:
            directory: their files.
            program: the command line.
            calls: the most calls of one Function that are kept, of all processes together.
        """
        functions: dict[Locator, RecordedFunction] = {}
        files = sorted(Path(directory).glob("call-*.pt"))
        for found in map(_read_function, [*read_counts(directory), *map(read_archive, files)]):
            entry = functions.setdefault(found.locator, found)
            if entry is not found:
                entry._add(found, alike=calls is None)
        for entry in functions.values():
            own = entry.locator.script  # what a package calls may be anything of its own
            flags = ("--script", entry.script) if own else ("--trust",)
            entry.loader = Loader(entry.paths, flags)
            if calls is not None:
                entry._choose(calls)
        ordered = sorted(functions.values(), key=lambda item: item.name)
        told = [json.loads(p.read_text("utf-8")) for p in Path(directory).glob("answer-*.json")]
        answers = {item["name"]: item for item in told}
        return cls(list(program), ordered, Training.collect(directory), answers)


def load_call(
    path: str | Path,
    name: str,
    number: int = 0,
    *,
    scripts: Iterable[str | Path] = (),
    trust: bool = False,
) -> tuple[Any, tuple[Any, ...]]:
    """Return a recorded Function and the arguments of one of its calls, for a repro.

    Arguments:
        path: a recording.
        name: the Function as `RecordedFunction.name` writes it.
        number: which call.
        scripts: programs of yours that define what the call needs.
        trust: load whatever the recording names.

    Raises:
        RecordingError: the recording, the Function or the call cannot be had.
    """
    for item in Recording.load(path, scripts=scripts, trust=trust):
        if item.name == name and number < len(item.calls):
            args, keywords = item.arguments(number)
            if keywords:
                raise RecordingError(f"Call {number} of {name} has keyword arguments.")
            return item.load(), args
    raise RecordingError(f"{path} holds no call {number} of {name}.", mend="Record again.")


def calls_on_ranks(function: RecordedFunction) -> list[dict[int, int]]:
    """The calls that every rank of the program has made and kept.

    Ranks run one program: the third call of a Function on one is the third on each.

    Arguments:
        function: as it was recorded.

    Returns:
        For each such call, which of the recorded calls each rank has made.
    """
    found: dict[tuple[int, int], dict[int, int]] = {}
    for k, call in enumerate(function.calls):
        if call.place is not None:
            rank, count, number = call.place
            found.setdefault((number, count), {})[rank] = k
    return [by_rank for (_, count), by_rank in sorted(found.items()) if len(by_rank) == count > 1]


def _read_function(item: dict[str, Any]) -> RecordedFunction:
    dtype, device = map(_text, item.get("defaults", PLAIN))
    return RecordedFunction(
        Locator.from_data(item["locator"]),
        [_path(entry) for entry in item["paths"]],
        _path(item["script"]),
        int(item["applied"]),
        list(map(_read_call, item["calls"])),
        {_text(reason): int(count) for reason, count in item["reasons"].items()},
        (dtype, device),
        {_text(name): int(count) for name, count in item.get("patterns", {}).items()},
        int(item.get("answered", 0)),
    )


def _read_call(item: dict[str, Any]) -> RecordedCall:
    tensors = list(item["tensors"])
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            raise TypeError("a recorded tensor is not a plain tensor")
    keywords = [(_text(name), value) for name, value in item["keywords"]]
    rank, count, number = item.get("place") or (0, 0, 0)
    place = (int(rank), int(count), int(number)) if count else None
    pattern = _text(item.get("pattern", ""))
    return RecordedCall(list(item["arguments"]), keywords, tensors, place, pattern)


def _is(value: Any, expected: str | int) -> bool:
    return type(value) is type(expected) and value == expected


def _text(value: Any) -> str:
    """A text as it is: what else stands there is not even printed."""
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__} in the place of a text")
    # A terminal obeys control characters.
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value)


def _path(value: Any) -> str:
    """A path as it is, to the letter: whoever prints it makes it fit for that."""
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__} in the place of a path")
    return value


def _requires_grad(node: Any) -> bool:
    if isinstance(node, (list, tuple)):
        if len(node) == 5 and node[0] == "tensor":
            return bool(node[2])
        return any(_requires_grad(item) for item in node)
    return False
