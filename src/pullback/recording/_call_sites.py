"""What a package's own code and tests hand to a Function, read from their source.

``Round.apply(x, 8, True)`` tells the bits and the flag, ``def quantise(x, bits=8)`` around it the
default, and a test the tensors. Nothing is run but the arguments: literals, and calls of torch,
numpy, math and builtins.
"""

import ast
import builtins
import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from pullback.internal._syntax import parse

__all__ = ["call_sites", "sources"]

_ROOTS = ("torch", "numpy", "math")
_PLAIN = ("abs", "bool", "complex", "float", "int", "len", "list", "max", "min", "range", "round",
          "sum", "tuple")  # fmt: skip
_READS_FILES = {"load", "hub", "save", "fromfile", "memmap"}
_ENTRIES = 4096  # more take a check long, and show nothing more
_FILES, _BYTES = 400, 2**20
_WRAPPERS = 4


def sources(root: ModuleType) -> Iterator[Path]:
    """Python files of a package or module, and of the tests that lie in it or beside it."""
    if not root.__file__:
        return
    file = Path(root.__file__)
    package = hasattr(root, "__path__")
    places = [file.parent] if package else []
    beside = file.parent.parent if package else file.parent
    places += [beside / name for name in ("tests", "test")]
    found = itertools.chain(
        [file], *(sorted(place.rglob("*.py")) for place in places if place.is_dir())
    )
    for path in itertools.islice(dict.fromkeys(found), _FILES):
        if path.stat().st_size <= _BYTES:
            yield path


def call_sites(name: str, files: Iterable[Path]) -> Iterator[dict[int, Any]]:
    """What each call of a Function hands over, position to value: first those that tell most.

    Where a function calls it, ``def norm(x, eps): return Norm.apply(x, eps)``, the calls of that
    function tell too.
    """
    files = list(files)
    direct = list(_sites(files, name, "apply"))
    found = [site.arguments() for site in direct]
    around = [(s, s.place) for s in direct if isinstance(s.place, ast.FunctionDef)]
    functions = [(site, place) for site, place in around if not _is_method(place)]
    for wrapper, function in functions[:_WRAPPERS]:
        found += [wrapper.arguments(s.bound(function)) for s in _sites(files, function.name)]
    told = ({k: value for k, value in known.items() if isinstance(k, int)} for known in found)
    yield from sorted(filter(None, told), key=len, reverse=True)


@dataclass(frozen=True)
class _Site:
    """A call in a source."""

    place: ast.Module | ast.FunctionDef  # the file or function that it stands in
    call: ast.Call
    names: Mapping[str, Any]  # what names of the file are

    def arguments(self, given: Mapping[str, Any] = MappingProxyType({})) -> dict[int | str, Any]:
        """Position or keyword to value, where parameters of the place are given."""
        here = {**self.names, **given}
        if isinstance(self.place, ast.FunctionDef):
            here = {**self.names, **_defaults(self.place, self.names), **given}
            inside = ast.walk(self.place)
            _assign([n for n in inside if getattr(n, "lineno", inf) < self.call.lineno], here)
        plain = itertools.takewhile(lambda node: not isinstance(node, ast.Starred), self.call.args)
        named = [(word.arg, word.value) for word in self.call.keywords if word.arg]
        told = [(key, node, _value(node, here)) for key, node in [*enumerate(plain), *named]]
        return {
            key: value
            for key, node, value in told
            # A default of ``None`` often stands for a tensor that is made elsewhere.
            if value is not _UNKNOWN and (value is not None or isinstance(node, ast.Constant))
        }

    def bound(self, function: ast.FunctionDef) -> dict[str, Any]:
        """The parameters of a function that this is a call of."""
        places = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        told = self.arguments().items()
        named = {key: value for key, value in told if isinstance(key, str)}
        return named | {places[k]: v for k, v in told if isinstance(k, int) and k < len(places)}


def _sites(files: Iterable[Path], *ends: str) -> Iterator[_Site]:
    """The calls of what is called by these words, or by another name that a file gives to it."""
    for file in files:
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            text = file.read_text(encoding="utf-8")
            if ends[0] in text:
                yield from _sites_in(parse(text), ends)


def _sites_in(tree: ast.Module, ends: tuple[str, ...]) -> Iterator[_Site]:
    nodes = list(ast.walk(tree))
    names: dict[str, Any] = {word: getattr(builtins, word) for word in _PLAIN}
    names.update(item for node in nodes for item in _imported(node))
    _assign(tree.body, names)
    aliases = {
        (target.id,)
        for node in nodes
        if isinstance(node, ast.Assign) and _words(node.value)[-len(ends) :] == ends
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for place in (tree, *(node for node in nodes if isinstance(node, ast.FunctionDef))):
        for call in _own_calls(place):
            words = _words(call.func)
            if words[-len(ends) :] == ends or words in aliases:
                yield _Site(place, call, names)


def _words(node: ast.AST) -> tuple[str, ...]:
    """``module.Name.apply`` as its words."""
    return tuple(ast.unparse(node).split(".")) if isinstance(node, ast.Attribute | ast.Name) else ()


def _is_method(function: ast.FunctionDef) -> bool:
    return any(item.arg in ("self", "cls", "ctx") for item in function.args.args[:1])


def _own_calls(place: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function or file, those of functions within it aside."""
    for node in ast.iter_child_nodes(place):
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _own_calls(node)


def _imported(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """What an import binds of torch, numpy and math."""
    for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
        home = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        top = home.partition(".")[0]
        if top in _ROOTS and alias.name not in _READS_FILES:
            with suppress(ImportError, AttributeError):
                module = importlib.import_module(home)
                if isinstance(node, ast.ImportFrom):
                    yield alias.asname or alias.name, getattr(module, alias.name)
                else:
                    yield alias.asname or top, module if alias.asname else sys.modules[top]


def _assign(nodes: Iterable[ast.AST], names: dict[str, Any]) -> None:
    """Bind what statements assign, where it can be had; a name that is assigned twice, the last."""
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        value = _value(node.value, names)
        for target in node.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            values = [value] if parts == [target] else list(value or ())
            for part, item in zip(parts, values, strict=False):
                if isinstance(part, ast.Name) and item is not _UNKNOWN:
                    names[part.id] = item


def _defaults(function: ast.FunctionDef, names: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with a default, and those that a test is parametrised with."""
    given = function.args
    places = [*given.posonlyargs, *given.args]
    pairs = [*zip(reversed(places), reversed(given.defaults), strict=False),
             *zip(given.kwonlyargs, given.kw_defaults, strict=True)]  # fmt: skip
    found = {place.arg: _value(node, names) for place, node in pairs if node is not None}
    for made in function.decorator_list:
        if isinstance(made, ast.Call) and _words(made.func)[-1:] == ("parametrize",):
            words, values = (_value(node, names) for node in made.args[:2])
            with suppress(TypeError, IndexError, AttributeError):
                several = words.replace(" ", "").split(",") if isinstance(words, str) else words
                found |= dict(zip(several, values[0] if len(several) > 1 else [values[0]],
                                  strict=True))  # fmt: skip
    return {name: value for name, value in found.items() if value is not _UNKNOWN}


class _Unknown(tuple[Any, ...]):
    """A value that the source does not tell."""


_UNKNOWN = _Unknown()


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What an expression is; `_UNKNOWN` where it calls what is not known, or is too large."""
    read = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    called = {item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)}
    if not read <= set(names) or called & _READS_FILES:
        return _UNKNOWN
    try:
        value = eval(compile(ast.Expression(node), "<call site>", "eval"), dict(names))  # noqa: S307 - calls of torch, numpy, math and builtins alone
    except Exception:  # whatever it raises: another call may tell
        return _UNKNOWN
    large = isinstance(value, torch.Tensor) and value.numel() > _ENTRIES
    return _UNKNOWN if large or callable(value) else value
