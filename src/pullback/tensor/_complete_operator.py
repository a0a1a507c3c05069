"""Make a Function of an operator, from the rules that were registered for it.

An operator made by `torch.library.custom_op`, or defined in a `torch.library.Library`, is run by
torch's dispatcher. Below `torch.func` torch refuses to differentiate it, and in forward mode it
drops the tangent without a word. Its rules have the shape of a Function in split form, so they are
put into one, and `pullback.complete` derives the rest.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Never

import torch

from pullback.errors import UnsupportedError
from pullback.internal._operator import (
    Rules,
    definer,
    operator_name,
    registered_rules,
    resolve,
    signature,
    written,
)
from pullback.internal.torch import (
    FunctionMode,
    OpOverload,
    OpOverloadPacket,
    are_functorch_transforms_active,
    forward_level,
    pytree,
    schema_of,
)
from pullback.tensor.values._levels import tracking_level

__all__ = ["complete_operator"]

_Inside = Callable[[], AbstractContextManager[Any]]

# For each operator the rules that it had, and what was made of them.
_known: weakref.WeakKeyDictionary[Any, tuple[Rules, Any]] = weakref.WeakKeyDictionary()


def complete_operator(
    op: Any, complete: Callable[..., Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A callable with the values and gradients of an operator that takes every transform.

    Arguments:
        op: an overload.
        complete: completes a Function class.
        options: its keyword arguments. Without any, the same callable is returned for as long as
            the registered rules stay the same.

    Returns:
        A callable with the operator's signature; its Function is its attribute ``function``. An
        operator that torch differentiates through its parts is returned as it is.

    Raises:
        UnsupportedError: the operator writes into its arguments, or its gradient was not
            registered by `torch.library.register_autograd`.
    """
    name = operator_name(op)
    if written(op):
        raise UnsupportedError(
            f"The operator {name} writes into its arguments, and torch registers no gradient for "
            "such an operator.",
            given=f"written into: {', '.join(written(op))}",
            mend="Register a functional operator that returns what this one writes.",
        )
    rules = registered_rules(op)
    if rules.kind == "composite":
        return op
    if rules.kind == "foreign":
        raise UnsupportedError(
            f"The gradient of the operator {name} is a kernel of its own, which cannot be read.",
            expected="rules registered by torch.library.register_autograd",
            mend="Register backward and setup_context, or write a pullback.Function around it.",
        )
    known = _known.get(op) if not options else None
    if known is not None and known[0] == rules:
        return known[1]
    call = _call(op, _function(op, name, rules, complete, options or {}))
    if not options:
        _known[op] = rules, call
    return call


class _CompletedInside(FunctionMode):
    """Complete each operator that a rule calls below a transform, where torch loses its rules."""

    def __init__(self, complete: Callable[..., Any]) -> None:
        super().__init__()
        self._complete = complete

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_packet = isinstance(func, OpOverloadPacket) and len(func.overloads()) == 1
        op = resolve(func) if is_packet else func
        strange = isinstance(op, OpOverload) and op.namespace not in _OF_TORCH and not written(op)
        if strange and registered_rules(op).kind in ("registered", "none"):
            func = complete_operator(op, self._complete)
        return func(*args, **(kwargs or {}))


_OF_TORCH = ("aten", "prims", "prim")


def _is_transformed() -> bool:
    return are_functorch_transforms_active() or forward_level() >= 0


def _call(op: Any, function: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function.apply(*args, **kwargs)

    described: Any = call
    call.__name__ = call.__qualname__ = operator_name(op)
    call.__doc__, call.__module__ = function.__doc__, function.__module__
    described.__signature__ = signature(op)
    described.__wrapped__ = op
    described.function = function
    described.gradient = function.gradient
    return call


def _function(
    op: Any, name: str, rules: Rules, complete: Callable[..., Any], options: Mapping[str, Any]
) -> Any:
    author = definer(op) or rules.backward
    count = sum(not argument.kwarg_only for argument in schema_of(op).arguments)
    finished: list[Any] = []

    def inside() -> AbstractContextManager[Any]:
        return _CompletedInside(complete) if _is_transformed() else nullcontext()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_tracked, pytree.tree_leaves((args, kwargs)))):
            # Run again, to differentiate what setup_context computed of the output.
            return finished[0].apply(*args, **kwargs)
        return op(*args, **kwargs)

    described: Any = forward
    described.__signature__ = signature(op)
    body: dict[str, Any] = {
        "__module__": getattr(author, "__module__", __name__),
        "__doc__": getattr(author, "__doc__", None),
        "forward": staticmethod(forward),
        "setup_context": staticmethod(_setup(op, rules.setup_context, count, inside)),
        "backward": staticmethod(_backward(op, rules.backward or _refuse(name), count, inside)),
    }
    finished.append(complete(type(name, (torch.autograd.Function,), body), **options))
    return finished[0]


def _setup(
    op: Any, rule: Callable[..., Any] | None, count: int, inside: _Inside
) -> Callable[..., None]:
    keyword = [a.name for a in schema_of(op).arguments if a.kwarg_only]
    lists = _lists(op)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if rule is None:
            return
        seen = _Seen(ctx, _lengths(inputs, lists)) if lists else ctx
        named = dict(zip(keyword, inputs[count:], strict=True))
        more = {"keyword_only_inputs": named} if keyword else {}
        with inside():
            rule(ctx=seen, inputs=tuple(inputs[:count]), output=output, **more)
        if lists:
            ctx.lengths_of_lists = seen.lengths

    return setup_context


def _backward(op: Any, rule: Callable[..., Any], count: int, inside: _Inside) -> Callable[..., Any]:
    lists = _lists(op)
    beyond = (None,) * (len(schema_of(op).arguments) - count)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        seen = _Seen(ctx, getattr(ctx, "lengths_of_lists", {})) if lists else ctx
        with inside():
            gradients = rule(seen, *cotangents)
        return (*(gradients if isinstance(gradients, tuple) else (gradients,)), *beyond)

    return backward


def _refuse(name: str) -> Callable[..., Never]:
    def backward(ctx: Any, *cotangents: Any) -> Never:
        raise UnsupportedError(
            f"No gradient is registered for the operator {name}.",
            mend="Register one with torch.library.register_autograd.",
        )

    return backward


def _lists(op: Any) -> list[int]:
    return [k for k, a in enumerate(schema_of(op).arguments) if "List[" in str(a.real_type)]


def _lengths(inputs: Sequence[Any], lists: Sequence[int]) -> dict[int, int]:
    holds = {k: inputs[k] for k in lists if isinstance(inputs[k], (list, tuple))}
    return {
        k: len(value)
        for k, value in holds.items()
        if any(isinstance(entry, torch.Tensor) for entry in value)
    }


class _Seen:
    """The context as torch shows it to the rules of an operator that takes lists of tensors.

    There ``needs_input_grad`` has a list of flags for each of them.
    """

    def __init__(self, ctx: Any, lengths: dict[int, int]) -> None:
        object.__setattr__(self, "ctx", ctx)
        object.__setattr__(self, "lengths", lengths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        flags = self.ctx.needs_input_grad
        return tuple(
            [flag] * self.lengths[k] if k in self.lengths else flag for k, flag in enumerate(flags)
        )


def _tracked(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.requires_grad or tracking_level(leaf) > 0)
