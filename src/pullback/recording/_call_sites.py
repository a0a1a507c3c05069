"""What a package's own code and tests hand to a Function, read from their source.

``Round.apply(x, 8, True)`` tells the bits and the flag, ``def quantise(x, bits=8)`` around it the
default, and a test the tensors. Nothing is run but the arguments: literals, and calls of torch,
numpy, math and builtins.
"""

import ast
import builtins
import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["call_sites", "sources"]

_ROOTS = ("torch", "numpy", "math")
_PLAIN = ("abs", "bool", "complex", "float", "int", "len", "list", "max", "min", "range", "round",
          "sum", "tuple")  # fmt: skip
_READS_FILES = {"load", "hub", "save", "fromfile", "memmap"}
_ENTRIES = 4096  # more take a check long, and show nothing more
_FILES, _BYTES = 400, 2**20


def sources(root: ModuleType) -> Iterator[Path]:
    """Python files of a package or module, and of the tests that lie in it or beside it.

    Arguments:
        root: the package or module.
    """
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
    """What each call of a Function hands over, as far as the source tells.

    Arguments:
        name: the name of the class.
        files: where calls are looked for.

    Yields:
        Position to value, for each call that tells any; those that tell most first.
    """
    found: list[dict[int, Any]] = []
    for file in files:
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            text = file.read_text(encoding="utf-8")
            if name in text:
                found += _in_file(ast.parse(text), name)
    told = [known for known in found if known]
    yield from sorted(told, key=len, reverse=True)


def _in_file(tree: ast.Module, name: str) -> Iterator[dict[int, Any]]:
    names: dict[str, Any] = {word: getattr(builtins, word) for word in _PLAIN}
    for node in ast.walk(tree):
        _bind_import(node, names)
    _bind_assigned(tree.body, names)
    aliases = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_apply(node.value, name)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for place in (tree, *functions):
        own = names if place is tree else {**names, **_defaults(place, names)}
        for call in _own_calls(place):
            known_by_name = isinstance(call.func, ast.Name) and call.func.id in aliases
            if _is_apply(call.func, name) or known_by_name:
                before = [n for n in ast.walk(place) if getattr(n, "lineno", 0) < call.lineno]
                here = dict(own)
                _bind_assigned(before if place is not tree else [], here)
                yield dict(_arguments(call, here))


def _own_calls(place: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function or file, those of functions within it aside."""
    for node in ast.iter_child_nodes(place):
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _own_calls(node)


def _is_apply(node: ast.AST, name: str) -> bool:
    words = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else []
    return words[-1:] == ["apply"] and words[-2:-1] == [name]


def _bind_import(node: ast.AST, names: dict[str, Any]) -> None:
    with suppress(ImportError, AttributeError):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _ROOTS:
                    module = importlib.import_module(alias.name)
                    top = importlib.import_module(alias.name.partition(".")[0])
                    names[alias.asname or top.__name__] = module if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _ROOTS:
            for alias in node.names:
                module = importlib.import_module(node.module or "")
                names[alias.asname or alias.name] = getattr(module, alias.name)


def _bind_assigned(nodes: Iterable[ast.AST], names: dict[str, Any]) -> None:
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


def _defaults(function: ast.AST, names: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with a default, and those that a test is parametrised with."""
    if not isinstance(function, ast.FunctionDef):
        return {}
    given = function.args
    places = [*given.posonlyargs, *given.args]
    pairs = [*zip(reversed(places), reversed(given.defaults), strict=False),
             *zip(given.kwonlyargs, given.kw_defaults, strict=True)]  # fmt: skip
    found = {place.arg: _value(node, names) for place, node in pairs if node is not None}
    for made in function.decorator_list:
        if isinstance(made, ast.Call) and ast.unparse(made.func).endswith("parametrize"):
            words, values = (_value(node, names) for node in made.args[:2])
            with suppress(TypeError, IndexError, AttributeError):
                several = words.replace(" ", "").split(",") if isinstance(words, str) else words
                found |= dict(zip(several, values[0] if len(several) > 1 else [values[0]],
                                  strict=True))  # fmt: skip
    return {name: value for name, value in found.items() if value is not _UNKNOWN}


def _arguments(call: ast.Call, names: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    for position, node in enumerate(call.args):
        if isinstance(node, ast.Starred):
            return
        value = _value(node, names)
        # A default of ``None`` often stands for a tensor that is made elsewhere.
        if value is not _UNKNOWN and (value is not None or isinstance(node, ast.Constant)):
            yield position, value


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
