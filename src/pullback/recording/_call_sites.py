"""What a package's own code and tests hand to a Function, read from their source.

``Round.apply(x, 8, True)`` tells the bits and the flag, ``def quantise(x, bits=8)`` around it the
default, and a test the tensors. Nothing is run but the arguments: literals, and calls of torch,
numpy, math and builtins.
"""

import ast
import builtins
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

__all__ = ["call_sites", "sources"]

_ROOTS = ("torch", "numpy", "math")
_PLAIN = ("abs", "bool", "complex", "float", "int", "len", "list", "max", "min", "range", "round",
          "sum", "tuple")  # fmt: skip
_READS_FILES = {"load", "hub", "save", "fromfile", "memmap"}
_ENTRIES = 4096  # more take a check long, and show nothing more
_FILES, _BYTES = 400, 2**20
_WRAPPERS = 4


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

    Where a function calls it, ``def norm(x, eps): return Norm.apply(x, eps)``, the calls of that
    function tell too.

    Arguments:
        name: the name of the class.
        files: where calls are looked for.

    Yields:
        Position to value, for each call that tells any; those that tell most first.
    """
    files = list(files)
    found: list[dict[int, Any]] = []
    around: list[tuple[_Site, ast.FunctionDef]] = []
    for tree in _trees(files, name):
        for site in _sites(tree, _applies(tree, name)):
            found.append(site.told())
            if isinstance(site.place, ast.FunctionDef) and not _is_method(site.place):
                around.append((site, site.place))
    for wrapper, place in around[:_WRAPPERS]:
        for tree in _trees(files, place.name):
            for site in _sites(tree, lambda func, name=place.name: _last_word(func) == name):
                found.append(wrapper.told(site.bound(place)))
    told = [known for known in found if known]
    yield from sorted(told, key=len, reverse=True)


def _trees(files: Iterable[Path], word: str) -> Iterator[ast.Module]:
    """The syntax of those files that have a word."""
    for file in files:
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            text = file.read_text(encoding="utf-8")
            if word in text:
                yield ast.parse(text)


@dataclass(frozen=True)
class _Site:
    """A call in a source.

    Arguments:
        place: the file or function that it stands in.
        call: the call.
        names: what names of the file are.
    """

    place: ast.AST
    call: ast.Call
    names: Mapping[str, Any]

    def told(self, given: Mapping[str, Any] = MappingProxyType({})) -> dict[int, Any]:
        """Position to value, where parameters of the place are given."""
        return dict(_arguments(self.call, self._here(given)))

    def bound(self, function: ast.FunctionDef) -> dict[str, Any]:
        """The parameters of a function that this is a call of."""
        places = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        here = self._here({})
        told = {places[k]: v for k, v in _arguments(self.call, here) if k < len(places)}
        named = {word.arg: _value(word.value, here) for word in self.call.keywords if word.arg}
        return told | {name: value for name, value in named.items() if value is not _UNKNOWN}

    def _here(self, given: Mapping[str, Any]) -> dict[str, Any]:
        here = {**self.names, **_defaults(self.place, self.names), **given}
        if isinstance(self.place, ast.FunctionDef):
            line = self.call.lineno
            _bind_assigned([n for n in ast.walk(self.place) if getattr(n, "lineno", line) < line],
                           here)  # fmt: skip
        return here


def _sites(tree: ast.Module, is_meant: Callable[[ast.AST], bool]) -> Iterator[_Site]:
    names: dict[str, Any] = {word: getattr(builtins, word) for word in _PLAIN}
    for node in ast.walk(tree):
        _bind_import(node, names)
    _bind_assigned(tree.body, names)
    for place in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))):
        for call in _own_calls(place):
            if is_meant(call.func):
                yield _Site(place, call, names)


def _applies(tree: ast.Module, name: str) -> Callable[[ast.AST], bool]:
    """Whether what is called is the ``apply`` of a class, by another name too."""
    aliases = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_apply(node.value, name)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return lambda func: _is_apply(func, name) or (isinstance(func, ast.Name) and func.id in aliases)


def _is_method(function: ast.FunctionDef) -> bool:
    return any(item.arg in ("self", "cls", "ctx") for item in function.args.args[:1])


def _last_word(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


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
