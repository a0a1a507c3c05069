"""The author's rule as it is written, with what it calls, and the same with expressions replaced.

A copy of the rule is compiled in which every expression tells its value before it is used. So an
edit is tried by answering another value there, without compiling anything, and what is printed of
it is the author's source with another expression in its place, compiled and run. In a copy each
call asks what to call, and gets a copy of what the author wrote: a function, a method, what a
decorator wraps, whatever the name is that it is called by. The rule itself and its module stay as
they are. Nothing but words depends on it: of a rule without a source nothing is told.
"""

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from pullback.conformance.source._watch import (
    CALLED,
    HERE,
    OPERATED,
    SEEN,
    WITHIN,
    Asking,
    Telling,
    Watch,
)
from pullback.conformance.source._written import Edit, Written
from pullback.internal._syntax import parse
from pullback.internal.torch import author_of

__all__ = ["Source", "written"]

_OTHERS = (Path(torch.__file__).parent, Path(__file__).parents[2])
_CALLS, _DEPTH = 32, 6  # functions that a rule calls, and how deep calls are followed

_Made = tuple[ast.FunctionDef, Mapping[str, Any]]
"""Another tree of a function, and the names that it reads beside its own."""


@dataclass(eq=False)
class Source:
    """A rule as it is written, and what it calls of the author's, as that is met in its runs."""

    rule: Written
    bound: tuple[Any, ...] = ()  # the class that it is called with first, as a method of it
    # each with how many calls there are between it and the rule, in the order in which they ran
    far: dict[Written, int] = field(default_factory=dict)
    _callers: dict[Written, set[Written]] = field(default_factory=dict)
    _met: dict[CodeType, Written | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add(self.rule, 0)

    @property
    def rules(self) -> Sequence[Written]:
        """It and what it has called."""
        return [*self.far]

    def met(self, function: FunctionType, caller: Written) -> Written | None:
        """A function that is called, if it is one of the author's."""
        code = function.__code__
        if code not in self._met:
            near = len(self.far) <= _CALLS and self.far[caller] < _DEPTH
            own = near and _is_beside(self.rule.function, function)
            found = self._met[code] = _read(function, self.rule.file) if own else None
            if found is not None:
                self._add(found, self.far[caller] + 1)
        found = self._met[code]
        if found is not None:
            self._callers[found].add(caller)
        return found

    def _add(self, rule: Written, far: int) -> None:
        self.far[rule], self._callers[rule] = far, set()
        self._met[rule.function.__code__] = rule

    def watched(self, watch: Watch, some: Collection[Written] | None = None) -> Callable[..., Any]:
        """The rule, each expression of which tells its value.

        Arguments:
            watch: who is told.
            some: of itself and what it calls, those that tell; all if ``None``.
        """

        def made(rule: Written) -> _Made:
            if some is not None and rule not in some:
                return Asking().visit(parse(rule.source).body[0]), {}
            return _telling(rule, watch)

        return self._copied(_Copies(self, made, None if some is None else self._leading_to(some)))

    def replaced(self, edit: Edit) -> Callable[..., Any]:
        """It, with something else written in it, or in what it calls, whoever has read that.

        Raises:
            SyntaxError: that is no code.
        """
        texts = {(rule.function, rule.key(n)[1]): text for (rule, n), text in edit.items()}

        def made(rule: Written) -> _Made:
            own = {n: texts.get((rule.function, k)) for k, n in enumerate(ast.walk(rule.tree))}
            spliced = rule.spliced({n: text for n, text in own.items() if text is not None})
            return Asking().visit(parse(spliced).body[0]), {}

        return self._copied(_Copies(self, made))

    def _copied(self, copies: "_Copies") -> Callable[..., Any]:
        made = copies.of(self.rule, self.rule.function)
        return partial(made, *self.bound) if self.bound else made

    def _leading_to(self, some: Collection[Written]) -> Collection[Written]:
        """These, and what calls them."""
        found = {*some}
        while more := {caller for rule in found for caller in self._callers[rule]} - found:
            found |= more
        return found


@dataclass
class _Copies:
    """Copies of a rule and of what it calls, each made when it is first called."""

    source: Source
    tree: Callable[[Written], _Made]
    some: Collection[Written] | None = None  # what is copied beside the rule; all if ``None``
    compiled: dict[Written, tuple[CodeType, Mapping[str, Any]]] = field(default_factory=dict)
    made: dict[FunctionType, Callable[..., Any]] = field(default_factory=dict)

    def of(self, rule: Written, function: FunctionType) -> Callable[..., Any]:
        """A copy of a function, which is written as a rule."""
        if function not in self.made:
            if rule not in self.compiled:
                tree, extra = self.tree(rule)
                own = {CALLED: partial(self.called, rule), OPERATED: partial(self.operated, rule)}
                self.compiled[rule] = _compiled(rule, tree), {**extra, **own}
            code, extra = self.compiled[rule]
            scope: dict[str, Any] = {"range": _range, **function.__globals__, **extra}
            exec(code, scope)  # noqa: S102 (the author's own source)
            made = scope["__around__"](*(cell.cell_contents for cell in function.__closure__ or ()))
            made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
            self.made[function] = made
        return self.made[function]

    def called(self, caller: Written, value: Any) -> Any:
        """What is called for something that is about to be called."""
        behind = _behind(value)
        if behind is None or CALLED in behind.func.__globals__:  # nothing of Python's, or a copy's
            return value
        rule = self.source.met(behind.func, caller)
        if rule is None or (self.some is not None and rule not in self.some):
            return value
        made = self.of(rule, behind.func)
        return partial(made, *behind.args, **behind.keywords)

    def operated(self, caller: Written, name: str, left: Any, right: Any) -> Any:
        """What an operator answers; a class of the author's may have a method for it."""
        plain = isinstance(left, (torch.Tensor, int, float))
        method = None if plain else inspect.getattr_static(type(left), f"__{name}__", None)
        if isinstance(method, FunctionType):
            found = self.called(caller, MethodType(method, left))(right)
            if found is not NotImplemented:
                return found
        return getattr(operator, name)(left, right)


def _range(*ends: Any) -> range:
    """As numba has it, which takes a whole number of any type."""
    return range(*(int(end) if isinstance(end, float) else end for end in ends))


def _behind(value: Any) -> "partial[Any] | None":
    """The function of Python's that a call runs, and what that is called with first."""
    if isinstance(value, (BuiltinFunctionType, type)):
        return None
    if isinstance(value, torch.nn.Module):
        value = value.forward
    if isinstance(value, (MethodType, partial)):
        given = value.args if isinstance(value, partial) else (value.__self__,)
        named = value.keywords if isinstance(value, partial) else {}
        within = _behind(value.func if isinstance(value, partial) else value.__func__)
        return None if within is None else partial(within, *given, **named)
    with suppress(Exception):  # what answers to any name
        within = author_of(value)
        if not inspect.isgeneratorfunction(within):  # of a context manager, another thing
            value = within
    if isinstance(value, FunctionType):
        return partial(value)
    call = inspect.getattr_static(type(value), "__call__", None)
    return partial(call, value) if isinstance(call, FunctionType) else None


def _telling(rule: Written, watch: Watch) -> _Made:
    """A function each expression of which tells its value."""
    tree = parse(rule.source).body[0]
    numbers = {node: k for k, node in enumerate(ast.walk(tree))}
    own, names = id(rule), rule.function.__globals__

    def seen(number: int, value: Any) -> Any:
        return watch.seen((own, number), value, names)

    def here(number: int, function: int, within: int, scope: Mapping[str, Any]) -> None:
        watch.here((own, number), (own, within), scope, (own, function))

    def within(scope: Mapping[str, Any], number: int, function: int) -> Callable[..., Any]:
        watch.here((own, number), (own, function), scope)
        return seen

    made = Telling(numbers, {e.key[1] for e in rule.expressions}).visit(tree)
    return made, {SEEN: seen, HERE: here, WITHIN: within}


def _compiled(rule: Written, tree: Any) -> CodeType:
    """The code that makes a function, given what the author's takes from around it."""
    tree.decorator_list, tree.returns = [], None
    tree.args.defaults = []
    tree.args.kw_defaults = [None for _ in tree.args.kwonlyargs]
    for arg in ast.walk(tree.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    _spell_private_names(tree, rule.function.__qualname__.split(".")[-2:-1])
    names = rule.function.__code__.co_freevars
    around = parse(f"def __around__({', '.join(names)}):\n    return {tree.name}")
    around.body[0].body.insert(0, tree)  # type: ignore[attr-defined]
    return compile(ast.fix_missing_locations(around), rule.file, "exec")


def _spell_private_names(tree: ast.AST, owner: Sequence[str]) -> None:
    """Write ``self.__name`` as it is read within its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and owner:
            private = not node.attr.endswith("__")
            node.attr = f"_{owner[0].lstrip('_')}{node.attr}" if private else node.attr


def written(function: Any) -> Source | None:
    """The source of a rule; ``None`` where it is not had.

    Arguments:
        function: the rule; decorators that say what they wrap are left out.
    """
    bound = (function.__self__,) if isinstance(function, MethodType) else ()
    rule = _read(author_of(getattr(function, "__func__", function)))
    return None if rule is None else Source(rule, bound)


def _read(function: Any, main: str = "") -> Written | None:
    """A function as it is written, called by a rule in some file if that is given."""
    if not isinstance(function, FunctionType):
        return None
    file = Path(function.__code__.co_filename)
    if any(root in file.parents for root in _OTHERS):
        return None
    try:
        lone = function.__name__ == "<lambda>"
        source, line, indent = (_text_of_lambda if lone else _text)(function)
        tree: Any = parse(source).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef):
        return None
    shown = file.name if main in ("", str(file)) else "/".join(file.parts[-2:])
    return Written(function, str(file), shown, line, indent, source, tree)


def _text(function: FunctionType) -> tuple[str, int, int]:
    """The source of a function, its first line, and how many characters each line has lost."""
    lines, line = inspect.getsourcelines(function.__code__)  # of a decorator its own
    raw = "".join(lines)
    source = textwrap.dedent(raw)
    return source, max(line, 1), len(raw.splitlines()[0]) - len(source.splitlines()[0])


def _text_of_lambda(function: FunctionType) -> tuple[str, int, int]:
    """The same of a lambda, as a function that returns what it does.

    Raises:
        ValueError: there is another such lambda on its line.
    """
    code, file = function.__code__, "".join(inspect.findsource(function)[0])
    (found,) = (
        node
        for node in ast.walk(parse(file))
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
        and tuple(arg.arg for arg in node.args.args) == code.co_varnames[: code.co_argcount]
    )  # fmt: skip
    head = f"def lone({ast.unparse(found.args)}):\n    return ("
    body = ast.get_source_segment(file, found.body)
    return f"{head}{body})", found.body.lineno - 1, found.body.col_offset - len("    return (")


def _is_beside(function: FunctionType, other: FunctionType) -> bool:
    """Whether a function is of the package of another, or of a file in its folder."""
    one, two = (f"{f.__globals__.get('__name__')}".partition(".")[0] for f in (function, other))
    files = (Path(f.__code__.co_filename) for f in (function, other))
    return one == two or len({file.parent for file in files}) == 1
