"""The author's functions as they are written: the source of a rule, and of what it calls."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from pullback.conformance._calls import is_copy, reads_private
from pullback.conformance._written import Written, names_in
from pullback.internal._syntax import parse
from pullback.internal.torch import author_of

__all__ = ["follow", "written"]

_OTHERS = (Path(torch.__file__).parent, Path(__file__).parents[1])
_CALLS = 32  # functions that a rule calls, of which the author's are read
_FAR = 7  # how deep calls are followed that are seen as they run


def written(
    function: Any, depth: int = 3, main: str = "", kinds: Sequence[type] | None = None
) -> Written | None:
    """The source of a rule and of what it calls of the author's; ``None`` where it is not had.

    Arguments:
        function: the rule; decorators that say what they wrap are left out.
        depth: how deep calls are followed.
        main: the file of the rule that calls it, if any.
        kinds: the classes of objects whose methods are followed; those of the module by default.
    """
    if isinstance(function, MethodType):  # of the class
        found = written(function.__func__, depth, main, kinds)
        return found and replace(found, bound=function.__self__)
    function = author_of(function)
    if not isinstance(function, FunctionType) or "<lambda>" in function.__qualname__:
        return None
    file = Path(function.__code__.co_filename)
    if any(root in file.parents for root in _OTHERS):
        return None
    try:
        lines, line = inspect.getsourcelines(function)
        raw = "".join(lines)
        source = textwrap.dedent(raw)
        tree: Any = parse(source).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef):
        return None
    indent = len(raw.splitlines()[0]) - len(source.splitlines()[0])
    main = main or str(file)
    shown = file.name if main == str(file) else "/".join(file.parts[-2:])
    helpers = dict(_helpers(function, tree, depth, main, kinds)) if depth else {}
    return Written(function, str(file), shown, max(line, 1), indent, source, tree, helpers)


def follow(
    source: Written, run: Callable[[Callable[..., Any]], object]
) -> Callable[[], None] | None:
    """Add to a rule, and to what it calls, the author's functions that they call as they run.

    Arguments:
        source: the rule.
        run: runs a rule.

    Returns:
        What takes them away again; ``None`` where there are none.
    """
    came = [(rule.helpers, dict(rule.helpers)) for rule in source.rules]
    depths = {rule.function: 0 for rule in source.rules}
    made: dict[FunctionType, Written | None] = {}
    for depth in range(1, _FAR):
        called: dict[tuple[Written, Any], None] = {}
        run(source.telling(partial(_tell, called)))
        known = len(depths)
        for rule, function in called:
            if any(function is helper.function for helper in rule.helpers.values()):
                continue
            if function not in made:
                made[function] = _followed(rule, function) if len(depths) <= _CALLS else None
            helper = made[function]
            if helper is not None and depths.setdefault(function, depth) > depths[rule.function]:
                path = f".{function.__module__}.{function.__qualname__}"
                rule.helpers[path] = helper  # type: ignore[index]
        if len(depths) == known:
            break
    if not any(made.values()):
        return None

    def undo() -> None:
        for helpers, before in came:
            helpers.clear()  # type: ignore[attr-defined]
            helpers.update(before)  # type: ignore[attr-defined]

    return undo


def _tell(called: dict[tuple[Written, Any], None], rule: Written, function: Any) -> None:
    if isinstance(function, FunctionType):
        called[rule, function] = None


def _followed(rule: Written, function: Any) -> Written | None:
    """The source of a function that a rule was seen to call."""
    if not isinstance(function, FunctionType) or is_copy(function) or reads_private(function):
        return None
    found = written(function, 0, rule.file) if _is_beside(rule.function, function) else None
    return found and replace(found, compiled=bool(found.tree.decorator_list))


def _helpers(
    function: FunctionType, tree: ast.AST, depth: int, main: str, kinds: Sequence[type] | None
) -> Iterator[tuple[str, Written]]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    paths = dict.fromkeys(".".join(names_in(func)) for func in calls if names_in(func))
    for path in [p for p in paths if p.count(".") < 2][:_CALLS]:
        name, _, attribute = path.partition(".")
        owner = value = function.__globals__.get(name)
        if attribute:
            value = inspect.getattr_static(owner, attribute, None)
            plain = isinstance(value, (FunctionType, classmethod, staticmethod))
            value = getattr(owner, attribute) if plain else value  # a property is not computed
        own = getattr(value, "__func__", value)
        if callable(value) and own is not function and _is_beside(function, own):
            helper = written(value, depth - 1, main, kinds)
            if helper is not None:
                yield path, helper
    for kind, attribute in [*_methods(function, calls, kinds)][:_CALLS]:
        # Of what an object calls, its own methods alone: any layer may be within any other, and
        # the ways through a module of sixty would be two hundred thousand.
        helper = written(vars(kind)[attribute], depth - 1, main, (kind,))
        if helper is not None:
            yield f".{kind.__module__}.{kind.__qualname__}.{attribute}", helper


def _methods(
    function: FunctionType, calls: Sequence[ast.AST], kinds: Sequence[type] | None
) -> Iterator[tuple[type, str]]:
    """The methods that a call of an object's may be, of the classes that its module names."""
    names = function.__globals__
    methods = [f for f in calls if isinstance(f, ast.Attribute)]
    called = {f.attr for f in methods if not (names_in(f) and names_in(f)[0] in names)}
    classes = [k for k in names.values() if isinstance(k, type)] if kinds is None else kinds
    for kind in dict.fromkeys(classes):
        if _is_beside(function, kind):
            for attribute in sorted(called & vars(kind).keys()):
                method = vars(kind)[attribute]
                if isinstance(method, FunctionType) and method is not function:
                    yield kind, attribute


def _is_beside(function: FunctionType, value: Any) -> bool:
    """Whether something is of the package of a function, or of a file in its folder."""
    value = author_of(value)
    own, other = (f"{getattr(f, '__module__', '')}".partition(".")[0] for f in (function, value))
    if own == other:
        return True
    code = getattr(value, "__code__", None)
    if code is None:
        return False
    return Path(code.co_filename).parent == Path(function.__code__.co_filename).parent
