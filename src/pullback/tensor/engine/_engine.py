"""The engine: one `torch.autograd.Function` in split form that runs every Function.

torch demands much of a Function before its transforms work: the split form, residuals as
outputs, a jvp, a vmap rule, nothing on ``ctx`` but what was saved. The engine meets the demands
once. It takes a `Call` and tensors, runs what the author wrote, and returns the outputs and,
beside them, the residuals: tensors that forward saved without returning them, which each level of
transforms must carry. The rules that the author left out are derived:

- ``jvp`` by transposing the backward (`pullback.tensor.rules._forward_mode`);
- the derivative of a gradient or a tangent by running the author's rules where autograd sees them
  (`pullback.tensor.rules._second_order`);
- ``vmap`` by torch's generated rule over the engine, or item by item
  (`pullback.tensor.rules._batching`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    custom_function_call,
    forward_level,
    is_any_autocast_enabled,
    is_batchedtensor,
    is_view,
    unwrap_if_dead,
)
from pullback.tensor.call._application import Application, Nested
from pullback.tensor.call._call import Call, zeros
from pullback.tensor.call._definition import Definition
from pullback.tensor.engine._plain import make_plain
from pullback.tensor.rules._batching import batch_by_rule, batched, batching, share_batch
from pullback.tensor.rules._forward_mode import push
from pullback.tensor.rules._second_order import differentiable_gradient
from pullback.tensor.values._autocast import cast_inputs, forward_state, scope
from pullback.tensor.values._levels import alive, is_differentiable, is_differentiated
from pullback.tensor.values._structure import flatten, may_hold
from pullback.tensor.watch._watch import watching

__all__ = ["apply", "make_engine"]

_transforming = are_functorch_transforms_active
_autocasting = is_any_autocast_enabled
_is_batched = is_batchedtensor
_unwrap_if_dead = unwrap_if_dead


def apply(
    engine: Any, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a Function: the one way in, under every transform."""
    watch = watching()
    if watch is not None:
        return watch.apply(lambda *a, **k: apply(engine, definition, a, k), args, kwargs)
    count = definition.positional
    values, names = args, ()
    if kwargs or not (count is None or count == len(args)):
        values, names = definition.bind(args, kwargs)
    if _transforming() or forward_level() >= 0:
        return _transform(engine, definition, values, names)
    flat = None if names or (engine.casts and _autocasting()) else _flat(values)
    output = engine.plain(*flat) if flat is not None else _nested(engine, definition, values, names)
    if type(output) is tuple and output and type(output[-1]) is Nested:
        return output[-1].restore(output[:-1])
    return output


def _flat(args: Sequence[Any]) -> list[Any] | None:
    """The arguments as torch takes them; ``None`` where one is nested."""
    flat = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            flat.append(_unwrap_if_dead(arg))
        elif type(arg) in _ATOMS or not may_hold(arg):
            flat.append(arg)
        else:
            return None
    return flat


_ATOMS = frozenset({float, int, bool, str, type(None)})


def _nested(
    engine: Any, definition: Definition, values: tuple[Any, ...], names: tuple[str, ...]
) -> Any:
    """Apply a Function to arguments that torch cannot take as they are, or cast by autocast."""
    call, tensors = _call(definition, values, names)
    call.given = values
    with _scope(definition):
        return engine.nested(call, *map(_unwrap_if_dead, tensors))


def _transform(
    engine: Any, definition: Definition, values: tuple[Any, ...], names: tuple[str, ...]
) -> Any:
    """Apply a Function below transforms of torch.func, or to dual numbers."""
    call, tensors = _call(definition, values, names)
    call.transformed, call.grad_enabled = True, torch.is_grad_enabled()
    if _transforming():
        call.needs = [is_differentiated(tensor) for tensor in tensors]
        results = custom_function_call(engine, call, *tensors)
    else:
        call.needs = [True] * len(tensors)
        results = engine.enter(call, *map(_unwrap_if_dead, tensors))
    return call.restore(results[: call.count])


def _call(
    definition: Definition, values: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[Call, list[torch.Tensor]]:
    template, tensors = flatten(values)
    call = Call(definition, template)
    call.names = names
    if _autocasting():
        tensors = cast_inputs(definition.autocast, tensors)
        call.autocast = forward_state(definition.autocast, tensors)
    return call, tensors


def make_engine(function: type, definition: Definition) -> Any:
    """Make the engine class of one Function; nodes of the graph carry its name."""
    name = function.__name__
    by_rule = definition.vmap is not None
    body: dict[str, Any] = {"generate_vmap_rule": not by_rule, "__module__": __name__}
    if by_rule:
        body["vmap"] = staticmethod(batch_by_rule)
    engine: Any = type(name, (_Engine,), body)
    engine.enter = super(torch.autograd.Function, engine).apply  # see `make_plain`
    engine.plain = make_plain(name, definition)
    engine.nested = make_plain(name, definition, nested=True)
    engine.casts = definition.autocast != ("inherit" if definition.direct else "ambient")
    return engine


class _Engine(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        run = call.run_forward
        if _transforming():
            run = batched(run, call)
        with _scope(call.definition):
            results = run(tensors)
        if call.dirty:
            if batching():
                raise _refuse_batch(call.definition.name)
            return results
        if _transforming():
            flowing = [i for i in range(call.count) if i not in call.non_differentiable]
            return share_batch(results, flowing, tensors)
        if forward_level() >= 0:
            # A view would need a tangent that is a view of the input's tangent.
            results = tuple(_unalias(result, tensors) for result in results)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        call = inputs[0]
        tensors = inputs[1:]
        every = (*tensors, *output)
        needed = [every[place] for place in call.needed]
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*needed)
        ctx.save_for_forward(*needed)
        if call.dirty:
            if call.residuals and any(is_view(tensors[place]) for place in call.dirty):
                raise _refuse_view(call.definition.name)
            ctx.mark_dirty(*(tensors[place] for place in call.dirty))
        # Under vmap torch adds outputs of its own, and would count them.
        declared = call.output_grad_dtypes is not None and not batching()
        if declared and hasattr(ctx, "set_output_grad_dtype"):
            ctx.set_output_grad_dtype(*call.output_grad_dtypes, *([None] * call.residuals))
        if call.non_differentiable:
            ctx.mark_non_differentiable(*(output[i] for i in call.non_differentiable))
            if batching():  # torch marks the wrapper, and does not know of the output
                ctx.unmarked = [i for i in call.non_differentiable if _is_batched(output[i])]

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call: Call = ctx.call
        saved = dict(zip(call.needed, map(alive, ctx.saved_tensors), strict=True))
        needs = ctx.needs_input_grad[1:]
        unmarked = getattr(ctx, "unmarked", ())
        every = enumerate(cotangents[: call.count])
        given = [None if i in unmarked else alive(cotangent) for i, cotangent in every]
        if all(cotangent is None for cotangent in given):
            return (None, *([None] * len(needs)))
        beyond = torch.is_grad_enabled() or forward_level() >= 0
        if not beyond and not _transforming():
            return (None, *call.pull(saved, given, needs))

        def run(kept: Any, cotangents: Any) -> Any:
            return differentiable_gradient(Application(call, kept, needs), cotangents, needs)

        if _transforming():
            run = batched(run, call)
        return (None, *run(saved, given))

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> tuple[Any, ...]:
        call: Call = ctx.call
        saved = dict(zip(call.needed, ctx.saved_tensors, strict=True))
        results = push(call, saved, grad_inputs[1:])
        for i in getattr(ctx, "unmarked", ()):
            results[i] = zeros(call.outputs[i])
        first = len(call.needs) + call.count
        residuals = [saved[first + i] for i in range(call.residuals)]
        return (*results, *map(_constant, residuals))


def _scope(definition: Definition) -> AbstractContextManager[Any]:
    """Run forward under the caller's autocast, or without any."""
    keep = definition.autocast in ("inherit", "ambient")
    return nullcontext() if keep else scope(None)


def _refuse_batch(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} changes its input in place and has no vmap rule: torch.vmap runs it on a tensor "
        "of its own, and nobody would see the change.",
        mend="Apply it to a clone out of place, or define vmap.",
    )


def _refuse_view(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} changes a view in place and saves what it computed, which torch.func would have "
        "to return beside it: torch takes one output alone where a view is changed.",
        mend="Apply it to a clone of the view.",
    )


def _constant(residual: torch.Tensor) -> torch.Tensor | None:
    return torch.zeros_like(residual) if is_differentiable(residual) else None


def _unalias(result: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    expanded = 0 in result.stride() and result.numel() > 1
    if expanded or is_view(result) or any(result is tensor for tensor in tensors):
        return result.clone(memory_format=torch.contiguous_format)
    return result
