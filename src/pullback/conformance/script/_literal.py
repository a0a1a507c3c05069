"""The arguments of a call, and tensors, as Python source for the script of a finding.

Small tensors are written as numbers, larger ones packed, so that they come again; functions and
classes are named. What has no such form is taken from the call as it was recorded, where a script
has that again.
"""

import ast
import base64
import contextlib
import itertools
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._tree import field_names, sparse_source, tensors
from pullback.conformance.inputs._vectors import least_move, scale
from pullback.internal._sparse import is_sparse
from pullback.recording.codec import EXPRESSION
from pullback.recording.locator import only_defines

__all__ = ["IMPORT", "CallSource", "Literals", "drawn_by", "found", "name_of", "steps_drawn_by"]

# Entries written as numbers; and entries of all together that are packed.
_WRITTEN = 64
_PACKED = 4096
# Entries of a matrix that are written row by row.
_ROWS = 12
_COLUMNS = 96
_UNPACK = """
def unpack(text, shape, dtype):
    data = bytearray(zlib.decompress(base64.b85decode(''.join(text.split()))))
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()
"""
_RECORDED = "RECORDED"
_HOW = "how = {'dtype': torch.float64, 'generator': torch.Generator().manual_seed(seed)}"
# As `Probe.spread` and `Probe.cotangents` draw, one tensor after the other.
_DRAW = {
    "spread": f"""
def spread(seed, *shapes):
    {_HOW}
    size, sign = [(torch.rand(s, **how) + 0.5, torch.rand(s, **how)) for s in shapes][-1]
    return torch.where(sign < 0.5, -size, size)
""",
    "normal": f"""
def normal(seed, *shapes):
    {_HOW}
    return [torch.randn(shape, **how) for shape in shapes][-1]
""",
}
_OTHER = (
    "# The tensors judged have {:,} entries together, of which {:,} at most are written here. The\n"
    "# others are drawn at random in the same range: numbers are not those of the finding.\n"
)


class Literals:
    """Writes the tensors of one script.

    Example:
        >>> Literals().of(torch.tensor([1.0, 2.0]))
        'torch.tensor([1.0, 2.0], dtype=torch.float32)'
    """

    def __init__(self) -> None:
        self._data: dict[str, str] = {}
        self._entries = 0
        self._left = _PACKED
        self._exact = True
        self._recorded = ""
        self._drawn: set[str] = set()

    @property
    def head(self) -> list[str]:
        """The lines that the expressions need before them."""
        names = [f"{name} = {name!r}" for name in self._data]
        unpack = ["import base64", "import zlib", _UNPACK, *names] if names else []
        recorded = [f"{_RECORDED} = {self._recorded}"] if self._recorded else []
        return [*unpack, *recorded, *(_DRAW[name] for name in sorted(self._drawn))]

    def of(self, value: torch.Tensor, source: str = "") -> str:
        """An expression for a tensor: its numbers, or how else they are had where it is large.

        Drawn as they were drawn in the check (`drawn_by`), packed, or from a recording by its
        ``source``; else random entries in the same range.

        Raises:
            ValueError: it is too large, and random entries would be of another kind.
        """
        how = getattr(value, EXPRESSION, "")
        value = value.detach().cpu().resolve_conj().resolve_neg()
        self._entries += value.numel()
        if value.numel() <= _WRITTEN:
            return _written(value)
        first, raw = value.reshape(-1)[0], value.contiguous().reshape(-1).view(torch.uint8)
        entries = raw.reshape(value.numel(), -1)
        if first.isfinite() and bool((entries == entries[0]).all()):  # a zero has a sign
            return f"torch.full({tuple(value.shape)}, {first.item()!r}, dtype={value.dtype})"
        if how:
            self._drawn.add(how.partition("(")[0])
            return how if value.dtype == torch.float64 else f"{how}.to({value.dtype})"
        if value.numel() <= self._left:
            self._left -= value.numel()
            name = f"DATA_{len(self._data)}"
            packed = zlib.compress(raw.numpy().tobytes(), 9)
            self._data[name] = base64.b85encode(packed).decode()
            return f"unpack({name}, {tuple(value.shape)}, {value.dtype})"
        if source:
            file, tensors, rest = source.rpartition("['tensors']")
            if not file:
                return source
            self._recorded = file + tensors
            return f"{_RECORDED}{rest}"
        self._exact = False
        return _alike(value)

    def finish(self, script: str) -> str:
        """The script laid out, with the packed tensors and what is to be said of the others."""
        for name, text in self._data.items():
            block = "\n".join(textwrap.wrap(text, _COLUMNS, break_on_hyphens=False))
            script = script.replace(f"{name} = {name!r}", f'{name} = """\n{block}\n"""')
        return script if self._exact else _OTHER.format(self._entries, _PACKED) + script


def drawn_by(
    name: str, seed: int, like: Sequence[torch.Tensor], found: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Note on each tensor how a script draws it: after those before it, by one generator."""
    if not any(tensor.is_complex() for tensor in like):
        shapes = [tuple(tensor.shape) for tensor in like]
        for k, tensor in enumerate(found):
            before = ", ".join(map(repr, shapes[: k + 1]))
            setattr(tensor, EXPRESSION, f"{name}({seed}, {before})")
    return found


def steps_drawn_by(
    seed: int,
    points: Sequence[torch.Tensor],
    drawn: list[torch.Tensor],
    found: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Note on steps how a script has them, of the numbers that were drawn: those without structure.

    In a script ``xs`` are the points.
    """
    drawn_by("spread", seed, points, drawn)
    for k, (x, numbers, step) in enumerate(zip(points, drawn, found, strict=True)):
        how = getattr(numbers, EXPRESSION, "")
        plain = bool(how) and x.dtype == torch.float64 and bool(x.isfinite().all())
        if plain and torch.equal(step, numbers * scale(x)):
            moves = f"(xs[{k}].detach().abs() + {least_move(x)!r})"
            setattr(step, EXPRESSION, f"{how} * {moves}")
    return found


def _written(value: torch.Tensor) -> str:
    if value.ndim > 1 and value.numel() > _ROWS:  # nested lists would take a line for each row
        return f"{_written(value.reshape(-1))}.reshape{tuple(value.shape)}"
    if value.dtype == torch.float64 and value.isfinite().all():
        # What came from float32 takes nine digits, not seventeen.
        rounded = value.clone().apply_(lambda entry: float(f"{entry:.9g}"))
        same = torch.equal(rounded.float().double(), value)
        if same and not torch.equal(rounded, value):
            return f"torch.tensor({rounded.tolist()!r}, dtype=torch.float32).double()"
    return f"torch.tensor({_entries(value)}, dtype={value.dtype})"


def _entries(value: torch.Tensor) -> str:
    entries = repr(value.tolist())
    for name in ("nan", "inf"):
        entries = entries.replace(name, f"float({name!r})")
    return entries


def _alike(value: torch.Tensor) -> str:
    shape = tuple(value.shape)
    if value.is_complex():
        return f"torch.randn({shape}, dtype={value.dtype})"
    if value.dtype == torch.bool:
        return f"(torch.rand({shape}) < {float(value.double().mean()):.3g})"
    low, high = float(value.min()), float(value.max())
    if not value.is_floating_point():
        return f"torch.randint({int(low)}, {int(high) + 1}, {shape}, dtype={value.dtype})"
    if value.ndim >= 2 and value.shape[-1] == value.shape[-2] and torch.equal(value, value.mT):
        raise ValueError(f"no source for a symmetric matrix of shape {shape}")
    return f"({low!r} + {high - low!r} * torch.rand({shape}, dtype={value.dtype}))"


# How an expression gets at what a module holds.
IMPORT = "__import__('importlib').import_module('{}')"


class CallSource:
    """Writes the arguments of one call, in order: positional, and by keyword.

    Example:
        >>> CallSource(Arguments.of(()), Literals()).of((2.0, [torch.float32]), "args")
        '(2.0, [torch.float32])'
    """

    def __init__(self, inputs: Arguments, literals: Literals) -> None:
        self._inputs = inputs
        self._literals = literals
        self._slots = itertools.count()

    def of(self, value: Any, path: str) -> str:
        """Python source for a value at a path.

        Raises:
            ValueError: there is none.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, next(self._slots))
        if isinstance(value, (Mapping, list, tuple)) or field_names(value):
            try:
                return self._container(value, path)
            except ValueError:
                if tensors(value):  # they are counted: entry by entry, or not at all
                    raise
        if isinstance(value, (torch.dtype, torch.device)):
            return repr(value) if isinstance(value, torch.dtype) else f"torch.{value!r}"
        if isinstance(value, torch.Generator):
            return f"torch.Generator().manual_seed({value.initial_seed()})"
        for source in (_plain, _named):
            with contextlib.suppress(ValueError):
                return source(value)
        taken, dtype = self._taken(path), self._inputs.modules_in
        if isinstance(value, torch.nn.Module) and dtype is not None:
            return f"{IMPORT.format('copy')}.deepcopy({taken}).to({dtype})"
        return taken

    def _tensor(self, value: torch.Tensor, path: str, position: int) -> str:
        """A tensor among the arguments, with the numbers that it has now."""
        inputs, write = self._inputs, self._literals.of
        if position in inputs.owned and inputs.recorded:  # whose owner reads this very one
            return self._taken(path)
        text = write(inputs.values[position], inputs.source(position))
        text += ".requires_grad_()" * (position in inputs.differentiable)
        if is_sparse(value):
            held = f"({name_of(position, inputs.paths[position])} := {text})"
            return sparse_source(value, write, held)
        return text

    def _container(self, value: Any, path: str) -> str:
        """A dict, list or tuple, one of a class of its own, or a dataclass, of the same class."""
        mapping, kind = isinstance(value, Mapping), type(value)
        if names := field_names(value):
            held = [f"{name}={self.of(getattr(value, name), f'{path}.{name}')}" for name in names]
            return f"{_named(kind)}({', '.join(held)})"
        pairs = value.items() if mapping else enumerate(value)
        items = {_plain(key): self.of(item, f"{path}[{key!r}]") for key, item in pairs}
        texts = [f"{key}: {item}" for key, item in items.items()] if mapping else items.values()
        begin, end = "{}" if mapping else "[]" if isinstance(value, list) else "()"
        text = f"{begin}{', '.join(texts)}{',' * (begin == '(' and len(items) == 1)}{end}"
        if kind in (dict, list, tuple):
            return text
        # A script makes classes of its own, in which a Function does not see those that it knows.
        own = Subject.of(kind).locator.module == "__main__" and self._inputs.recorded
        made = f"type({self._taken(path)})" if own else _named(kind)
        return f"{made}{text}" if hasattr(kind, "_fields") else f"{made}({text})"

    def _taken(self, path: str) -> str:
        """What the script takes from the call as it was recorded.

        Raises:
            ValueError: it has no such call.
        """
        text = self._inputs.taken(path)
        if not text:
            raise ValueError(f"no source for {path}")
        return text


def _plain(value: Any) -> str:
    """Python source for plain data; raises ValueError where it is none."""
    text = repr(value)
    try:
        ast.literal_eval(text)
    except SyntaxError as error:
        raise ValueError(f"no source for {text}") from error
    return text


def _named(value: Any) -> str:
    """An expression that finds a function or class; raises ValueError where there is none."""
    if not callable(value):
        raise ValueError(f"no name leads to {value!r}")
    return found(Subject.of(value))


def name_of(position: int, path: str) -> str:
    """How a differentiated tensor is called: values of a sparse one have a name of their own."""
    return f"v{position}" if path.endswith(".values()") else path


def found(subject: Subject) -> str:
    """An expression that finds a function or class at the top level of a module or script.

    Raises:
        ValueError: there is none.
    """
    locator = subject.locator
    if not subject.importable() or (locator.module == "__main__" and not locator.file):
        raise ValueError(f"no source for {subject.target!r}")
    if locator.module != "__main__":
        torchs = locator.module == "torch"
        return f"{'torch' if torchs else IMPORT.format(locator.module)}.{locator.qualname}"
    first, *rest = locator.qualname.split(".")
    run = f"{IMPORT.format('runpy')}.run_path({locator.file!r})[{first!r}]"
    if not only_defines(locator.file):
        load = IMPORT.format("pullback.recording")
        run = f"{load}.load_script({locator.file!r}, {first!r}).{first}"
    return ".".join([run, *rest])
