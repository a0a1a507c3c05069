"""What the rules of a Function take and read, told from their source before they run.

`torch.compile` can take a Function into its graph whole where the rules compute on tensors and
numbers that are arguments; what else they need, Dynamo follows where it traces them.
"""

import ast
import contextvars
import inspect
import textwrap
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.internal.torch import is_compiled, pytree
from pullback.tensor._reach import by_name, codes, functions, named

__all__ = [
    "calls_compiled",
    "reads_a_tensor",
    "reads_what_changes",
    "rules_and_helpers",
    "takes_an_object",
]

_FAR = 1000  # calls from a rule to a helper
_base: Any = torch.autograd.Function
# What tensors and the other values that a graph takes have themselves.
_GRAPHED = (torch.Tensor, torch.Size, torch.dtype, torch.device, int, float, complex, str)
# Seeds that are set within, and settings of the process that a graph has no guard for.
_UNGUARDED = {"manual_seed", "fork_rng", "set_rng_state", "set_state", "Generator"}
_UNGUARDED |= {"environ", "getenv", "backends", "storage_offset"}
_UNGUARDED |= {"is_anomaly_enabled", "is_inference_mode_enabled"}
_CHANGING = (threading.local, contextvars.ContextVar, Iterator)
_KNOWN = frozenset(name for kind in (*_GRAPHED, list, tuple, dict, slice) for name in dir(kind))


def rules_and_helpers(function: Any) -> list[types.FunctionType]:
    """The rules, and the functions of the same module that they refer to by name."""
    rules = _rules(function)
    modules = {inspect.unwrap(rule).__module__ for rule in rules} - {_base.__module__}
    return functions(rules, lambda found: found.__module__ in modules, _FAR)


def takes_an_object(function: Any, reached: Sequence[types.FunctionType]) -> bool:
    """Whether a rule calls an argument of forward, or looks into one that is no tensor.

    `torch.compile` can put tensors and numbers into a graph, not functions, modules or objects. A
    Function that takes one is traced rule by rule, as torch does without pullback. An argument is
    followed onto the context, and into the helpers that it is handed to by its name.
    """
    split = function.setup_context is not _base.setup_context
    names = set(list(inspect.signature(function.forward).parameters)[0 if split else 1 :])
    nodes = [node for rule in _rules(function) for node in _syntax(rule)]
    return _looks_into(nodes, names, _bound(reached), set())


def reads_a_tensor(reached: Sequence[types.FunctionType]) -> bool:
    """Whether a rule reads a tensor that is no argument: a global, or one of an outer function.

    In a graph that takes the Function whole it could only be a constant, wrong as soon as it
    changes. A Function that reads one is traced too: Dynamo makes it an input, and guards it.
    """
    return any(
        isinstance(value, torch.nn.Module)
        or (
            isinstance(value, (torch.Tensor, list, tuple, dict))
            and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
        )
        for rule in reached
        for value in named(rule)
    )


def calls_compiled(function: Any, reached: Sequence[types.FunctionType]) -> bool:
    """Whether a rule, or a function that it refers to, is compiled already.

    It would run on tensors without values, which its kernels cannot read. Dynamo traces it.
    """
    helpers = [value for rule in reached for value in named(rule)]
    return any(map(is_compiled, [*_rules(function), *helpers]))


def reads_what_changes(reached: Sequence[types.FunctionType]) -> bool:
    """Whether a rule reads what may be another value at each call, and nothing tells of a change.

    A variable of a thread or a context, an iterator, the environment, a seed that the rule sets: a
    graph that takes the Function whole would keep the first value.
    """
    names = {n for rule in reached for code in codes(rule.__code__) for n in code.co_names}
    values = (value for rule in reached for value in named(rule))
    return not names.isdisjoint(_UNGUARDED) or any(isinstance(v, _CHANGING) for v in values)


def _rules(function: Any) -> tuple[Any, ...]:
    return function.forward, function.setup_context, function.backward


def _syntax(rule: Any) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(rule))))))
    except (OSError, TypeError, SyntaxError):
        return []


def _bound(reached: Sequence[types.FunctionType]) -> dict[str, types.FunctionType]:
    """The helpers by the names that rules and helpers have for them."""
    known = {id(helper) for helper in reached}
    values = [item for rule in reached for item in by_name(inspect.unwrap(rule)).items()]
    return {name: value for name, value in values if id(value) in known}


def _looks_into(
    nodes: Sequence[ast.AST],
    names: set[str],
    helpers: Mapping[str, types.FunctionType],
    seen: set[tuple[str, str]],
) -> bool:
    looked = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr not in _KNOWN]
    called = [node for node in nodes if isinstance(node, ast.Call)]
    looked += [c for c in called if getattr(c.func, "id", None) == "getattr" and c.args]
    if any(getattr(_looked_at(node), "id", None) in names for node in looked):
        return True
    for node in nodes:  # ctx.tree = tree
        if isinstance(node, ast.Assign) and getattr(node.value, "id", None) in names:
            names |= {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
    # A method that tensors have is theirs: x.dim() beside ctx.dim = dim.
    if any(
        getattr(c.func, "id", None) in names or getattr(c.func, "attr", None) in names - _KNOWN
        for c in called
    ):
        return True
    for call in called:
        helper = helpers.get(getattr(call.func, "id", ""))
        if helper is None:
            continue
        fresh = {n for n in _handed(call, helper, names) if (helper.__name__, n) not in seen}
        seen |= {(helper.__name__, name) for name in fresh}
        if fresh and _looks_into(_syntax(helper), fresh, helpers, seen):
            return True
    return False


def _looked_at(node: Any) -> ast.AST:
    return node.value if isinstance(node, ast.Attribute) else node.args[0]


def _handed(call: ast.Call, helper: types.FunctionType, names: set[str]) -> Iterator[str]:
    """The parameters of a helper that a call gives one of these names."""
    given = [*zip(inspect.signature(helper).parameters, call.args, strict=False)]
    given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
    return (name for name, value in given if getattr(value, "id", None) in names)
