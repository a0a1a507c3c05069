"""The engine: one `torch.autograd.Function` in split form that runs every Function.

torch demands much of a Function before its transforms work: the split form, residuals as
outputs, a jvp, a vmap rule, nothing on ``ctx`` but what was saved. The engine meets the demands
once. It takes a `Call` and tensors, runs what the author wrote, and returns the outputs and,
beside them, the residuals. The rules that the author left out are derived:

- ``jvp`` by transposing the backward (`pullback.tensor._forward_mode`);
- the derivative of residuals by running forward again (`pullback.tensor._residuals`);
- ``vmap`` by torch's generated rule over the engine, or item by item (`pullback.tensor._batching`).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active as _transforming
from pullback.internal.torch import custom_function_call, forward_level
from pullback.internal.torch import is_any_autocast_enabled as _autocasting
from pullback.internal.torch import len_torch_dispatch_stack as _dispatch_modes
from pullback.internal.torch import unwrap_if_dead as _unwrap_if_dead
from pullback.tensor._autocast import cast_inputs, forward_state, scope
from pullback.tensor._batching import batch_by_rule, batched, share_batch
from pullback.tensor._call import Call
from pullback.tensor._definition import Definition
from pullback.tensor._forward_mode import push
from pullback.tensor._levels import is_differentiated
from pullback.tensor._refusal import guard
from pullback.tensor._residuals import pull_residuals, pull_seen_through
from pullback.tensor._structure import ONE, flatten

__all__ = ["apply", "make_engine"]


def apply(
    engine: Any, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a Function: the one way in, under every transform."""
    if kwargs or len(args) != definition.positional:
        values, names = definition.bind(args, kwargs)
    elif engine.direct is not None and _is_plain(definition):
        args = tuple([_unwrap_if_dead(x) if isinstance(x, torch.Tensor) else x for x in args])
        return engine.direct(*args) if torch.is_grad_enabled() else definition.forward(*args)
    else:
        values, names = args, ()
    template, tensors = flatten(values)
    state = None
    if _autocasting():
        tensors = cast_inputs(definition.autocast, tensors)
        state = forward_state(definition.autocast, tensors)
    if _transforming():
        needs = [is_differentiated(tensor) for tensor in tensors]
        call = Call(definition, template, names, needs, state, transformed=True)
        results = custom_function_call(engine, call, *tensors)
    else:
        tensors = [_unwrap_if_dead(tensor) for tensor in tensors]
        dual = forward_level() >= 0
        needs = [dual or tensor.requires_grad for tensor in tensors]
        call = Call(definition, template, names, needs, state, transformed=dual)
        if not (dual or (call.grad_enabled and True in needs)):
            return _in_scope(definition, call.run_alone, tensors)
        results = engine.enter(call, *tensors)
    if call.single and call.result is ONE:
        return results[0]
    return call.restore(results[: call.count])


def make_engine(name: str, definition: Definition) -> Any:
    """Make the engine class of one Function; nodes of the graph carry its name."""
    by_rule = definition.vmap is not None
    body: dict[str, Any] = {"generate_vmap_rule": not by_rule, "__module__": __name__}
    if by_rule:
        body["vmap"] = staticmethod(batch_by_rule)
    engine: Any = type(name, (_Engine,), body)
    engine.enter = _entry(engine)
    engine.direct = None
    if definition.direct:
        names = ("forward", "setup_context", "backward")
        rules = {rule: staticmethod(getattr(definition, rule)) for rule in names}
        engine.direct = _entry(type(name, (torch.autograd.Function,), rules))
    return engine


def _entry(function: Any) -> Any:
    # The entry point in C++: torch's own `apply` binds the signature anew for each call.
    return super(torch.autograd.Function, function).apply


def _is_plain(definition: Definition) -> bool:
    """Whether nothing is at work but reverse mode, of which torch alone takes care."""
    return not (
        _transforming()
        or forward_level() >= 0
        or (_autocasting() and definition.autocast != "inherit")
        or torch.compiler.is_compiling()
        or _dispatch_modes()
    )


class _Engine(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        run = call.run_forward
        if _transforming():
            run = batched(run, call.definition)
        results = _in_scope(call.definition, run, tensors)
        if call.dirty:
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
        pool = (*tensors, *output)
        needed = [pool[place] for place in call.needed]
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*needed)
        if forward_level() >= 0 or _transforming():
            ctx.save_for_forward(*needed)
        if call.dirty:
            ctx.mark_dirty(*(tensors[place] for place in call.dirty))
        if call.non_differentiable:
            ctx.mark_non_differentiable(*(output[i] for i in call.non_differentiable))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call: Call = ctx.call
        saved = dict(zip(call.needed, ctx.saved_tensors, strict=True))
        needs = ctx.needs_input_grad[1:]
        count = call.count
        of_outputs, of_residuals = cotangents[:count], cotangents[count:]
        gradients: list[torch.Tensor | None] = [None] * len(needs)
        if any(cotangent is not None for cotangent in of_outputs):
            gradients = _pull(call, saved, of_outputs, needs)
        if any(cotangent is not None for cotangent in of_residuals):
            more = pull_residuals(call, saved, of_residuals, needs)
            gradients = [_add(a, b) for a, b in zip(gradients, more, strict=True)]
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> tuple[Any, ...]:
        call: Call = ctx.call
        saved = dict(zip(call.needed, ctx.saved_tensors, strict=True))
        run = functools.partial(push, call)
        if _transforming():
            run = batched(run, call.definition)
        return run(saved, grad_inputs[1:])


def _in_scope(definition: Definition, run: Callable[[Any], Any], tensors: Any) -> Any:
    """Run forward, under the caller's autocast or without any."""
    if definition.autocast in ("inherit", "ambient"):
        return run(tensors)
    with scope(None):
        return run(tensors)


def _pull(
    call: Call, saved: dict[int, Any], cotangents: Any, needs: Any
) -> list[torch.Tensor | None]:
    definition = call.definition
    run = call.pull
    if call.own_graph:
        return guard(run(saved, cotangents, needs), cotangents, call.refuse_own_graph())
    if definition.lenient and torch.is_grad_enabled() and definition.batching != "loop":
        run = functools.partial(pull_seen_through, call)
    if _transforming():
        run = batched(run, definition)
    if definition.once:
        with torch.no_grad():
            gradients = run(saved, cotangents, needs)
        return guard(gradients, [*cotangents, *saved.values()], _once(definition.name))
    return run(saved, cotangents, needs)


def _once(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"The backward of {name} is declared once_differentiable, and its derivative was asked "
        "for.",
        mend="Write backward in differentiable torch operations and drop once_differentiable.",
    )


def _unalias(result: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    expanded = 0 in result.stride() and result.numel() > 1
    if expanded or result._is_view() or any(result is tensor for tensor in tensors):
        return result.clone(memory_format=torch.contiguous_format)
    return result


def _add(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """Add the gradient of the residuals, which has the shape of the input.

    The author's gradient may have a shape that autograd sums to it, and must be summed before.
    """
    if first is None or second is None:
        return second if first is None else first
    if first.shape != second.shape and first.dim() >= second.dim():
        first = first.sum_to_size(second.shape)
    return first + second
