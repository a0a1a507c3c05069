"""The plain path: where nothing but reverse mode is at work, torch runs the rules itself.

The author's rules run on torch's own context, so first order is what torch does, to the bit and in
memory, at nearly its cost. Added are what the contract asks for at first order: nothing keeps an
output alive, and an undeclared change in place is an error. A gradient that can be differentiated
again is the author's backward, run where autograd sees it (`pullback.tensor.rules._second_order`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from pullback.errors import DefinitionError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    forward_level,
    graph_is_kept,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    node_class,
    pytree,
    saved_tensors_are_hooked,
    version_of,
    versions_of,
)
from pullback.tensor.call._application import (
    Nested,
    OnNode,
    aside,
    forget,
    run,
    run_in_batch,
    running_on,
)
from pullback.tensor.call._call import Call
from pullback.tensor.call._definition import Definition
from pullback.tensor.call._refusals import refuse_mutation, refuse_written
from pullback.tensor.rules._batching import gradients_by_item
from pullback.tensor.rules._second_order import differentiable_gradient
from pullback.tensor.values import _random
from pullback.tensor.values._autocast import scope
from pullback.tensor.values._places import Places, views_of
from pullback.tensor.values._structure import (
    ONE,
    flatten,
    is_mask,
    is_plain,
    of_tensors,
    unflatten,
)

__all__ = ["make_plain"]

_transforming = are_functorch_transforms_active
_autocasting = is_any_autocast_enabled
_keeps_graph = graph_is_kept
_dispatch_modes = len_torch_dispatch_stack
_node: Any = torch.autograd.function.BackwardCFunction
_needs_of_torch, _saved_of_torch = _node.needs_input_grad, _node.saved_tensors
# torch 2.15: what backward may add its gradients to.
_buffers: Any = getattr(torch.autograd.function.FunctionCtx, "input_grad_buffers", None)


def make_plain(name: str, definition: Definition, *, nested: bool = False) -> Any:
    """Make the entry of the torch Function that runs the rules of a definition.

    It takes the arguments of forward. Where these are nested, given by name or cast by autocast,
    which torch does not know of, it takes a `Call` and the tensors among them.
    """
    # Long: two rules, as torch takes them, that share what is read off the definition once.
    if definition.direct and not nested:
        return _make_direct(name, definition)
    split, check = definition.setup_context, not definition.lenient

    def forward(ctx: Any, *args: Any) -> Any:
        call = None
        if nested:
            call, *tensors = args
            ctx.__pullback__, template = call, call.template
            (args, copied), names = call.take_given(tensors), call.names
        else:
            template, tensors = flatten(args)
            names, copied = (), False
        before = None if _dispatch_modes() else _random.states(tensors, template[0])
        versions = versions_of(tensors) if check else None
        if split is None:
            output = definition.call(args, names, ctx)
        else:
            output = definition.call(args, names)
            split(ctx, args, output)
        if versions is not None and versions != versions_of(tensors):
            refuse_mutation(definition, template, tensors, versions, ctx.dirty_tensors or ())
        if copied:
            refuse_written(definition, template, tensors, args)
        if call is None:
            call = Call(definition, template)
        else:
            del ctx.__pullback__
        call.enter = again
        result = _finish(call, ctx, tensors, output, before)
        ctx.__pullback__ = call
        return result

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if definition.backward is None:
            raise DefinitionError(
                f"{definition.name} has no backward.",
                mend="Define backward(ctx, *cotangents) as a static method.",
            )
        given = tuple(cotangents[0]) if definition.boxed else cotangents
        if torch.is_grad_enabled() or forward_level() >= 0 or _transforming():
            call, gradients = ctx.__pullback__, _beyond(ctx, given)
            return (None, *gradients) if nested else unflatten(call.template, gradients, None)
        if not _keeps_graph():
            forget(ctx.__pullback__.kept)
        result = run_in_batch(definition, ctx, given, run)
        return (None, *ctx.__pullback__.matched(result)) if nested else result

    def again(call: Call, tensors: Sequence[torch.Tensor]) -> Any:
        if not nested:
            return entry(*unflatten(call.template, tensors))
        other = Call(definition, call.template)
        other.names, other.autocast = call.names, call.autocast
        return entry(other, *tensors)

    rules = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        "boxed_grads_call": definition.boxed,
        "clear_saved_tensors_on_access": definition.clears,
        "__module__": __name__,
    }
    plain: Any = type(name, (torch.autograd.Function,), rules)
    _let_nodes_answer(node_class(plain), nested=nested)
    # The entry point in C++: torch's own `apply` binds the signature anew for each call.
    entry = super(torch.autograd.Function, plain).apply
    return entry


def _let_nodes_answer(node: Any, *, nested: bool) -> None:
    """Give a class of nodes what its author reads there otherwise than torch has it."""
    node.__pullback__ = None  # while forward runs, which may read what it has saved
    node.saved_tensors = property(_saved)
    if _buffers is not None:
        node.input_grad_buffers = property(_input_grad_buffers)
    if nested:
        node.needs_input_grad = property(_needs_by_argument)


def _needs(ctx: Any) -> Sequence[bool]:
    """For each input tensor, whether its gradient is wanted."""
    every = _needs_of_torch.__get__(ctx)
    if type(ctx).needs_input_grad is not _needs_of_torch:
        return every[1:]
    return of_tensors(ctx.__pullback__.template, every)


def _needs_by_argument(ctx: Any) -> tuple[bool, ...]:
    return ctx.__pullback__.by_argument(_needs(ctx))


def _saved(ctx: Any) -> tuple[Any, ...]:
    """The saved tensors; where they are read to be differentiated, they are the ones read before.

    Checkpointing gives each of them once, and a hook gives another one each time.
    """
    call = ctx.__pullback__
    if call is None:
        return _saved_of_torch.__get__(ctx)
    application = running_on(ctx)
    read = _saved_of_torch.__get__(ctx) if application is None else application.read
    return read if call.own is None else read[: call.own]


def _make_direct(name: str, definition: Definition) -> Any:
    """Make the entry of a Function that promises what is looked for elsewhere: see `Function`."""
    split: Any = definition.setup_context

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if not torch.is_grad_enabled():
            return run_in_batch(definition, ctx, cotangents, _run_direct)

        def compute(given: Sequence[Any]) -> tuple[Any, ...]:
            found = _run_direct(definition, ctx, given)
            return found if isinstance(found, tuple) else (found,)

        # A Function that backward applies to a batch of cotangents would get no history.
        return tuple(gradients_by_item(compute, cotangents))

    body = {
        "forward": staticmethod(definition.forward),
        "setup_context": staticmethod(split),
        "backward": staticmethod(backward),
        "__module__": __name__,
    }
    plain: Any = type(name, (torch.autograd.Function,), body)
    return super(torch.autograd.Function, plain).apply


def _run_direct(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """Run the author's backward without the autocast that may be on where it runs."""
    rule: Any = definition.backward
    if _autocasting():
        with scope(None):
            return rule(ctx, *cotangents)
    return rule(ctx, *cotangents)


def _input_grad_buffers(ctx: Any) -> tuple[torch.Tensor | None, ...]:
    """Those of torch, but none where the gradient is nested, or differentiated again."""
    needs = ctx.needs_input_grad
    as_given = needs == _needs_of_torch.__get__(ctx) and running_on(ctx) is None
    return _buffers.__get__(ctx) if as_given else (None,) * len(needs)


def _finish(
    call: Call, ctx: Any, tensors: Sequence[torch.Tensor], output: Any, before: _random.States
) -> Any:
    """Keep what a second derivative needs, and give torch an output that it can take."""
    dirty, marked = ctx.dirty_tensors, ctx.non_differentiable
    call.materialize = False  # torch gives its context the cotangents that the author wants
    if dirty:
        places = Places(tensors, ())
        call.dirty = [places.dirty_place(tensor, call.definition.name) for tensor in dirty]
    outputs = call.read(output, marked or ())
    beside = _beside(call, ctx, tensors, outputs)
    call.plain = all(map(is_mask, beside))
    call.seen = call.plain or all(isinstance(each, torch.Tensor) for each in beside)
    # Where nothing stands beside inputs and outputs, forward does not run again.
    if call.definition.random or (beside and _random.changed(before)):
        call.generators = before
    again = bool(beside) and dirty is None  # forward may run again for a second derivative
    if again:
        outputs = _apart(ctx, outputs)
        if call.definition.keep_inputs and not call.plain and saved_tensors_are_hooked():
            _save_inputs(call, ctx, tensors)
    call.kept = aside(
        call.definition, tensors, ctx.to_save, refused=dirty is not None, weak=call.plain
    )
    if marked is not None:  # torch would give a view a history all the same
        ids = set(map(id, marked))
        fresh = {id(t): t.detach() for t in outputs if id(t) in ids}
        ctx.mark_non_differentiable(*fresh.values())
        outputs = [fresh.get(id(t), t) for t in outputs]
    outputs = views_of(outputs, ())
    if again:
        call.returned = [(TensorWeakRef(output), version_of(output)) for output in outputs]
    if call.result is ONE:
        return outputs[0]
    if call.result[1] is not None or (call.single and call.result is not ONE and not outputs):
        call.nested = True
        return (*outputs, Nested(call.result, single=call.single))
    return call.restore(outputs)


def _beside(
    call: Call, ctx: Any, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> list[Any]:
    """What is kept for backward and is no input, no output with a derivative, and no plain data."""
    known = set(map(id, tensors))
    given, found = call.template[0], []
    for value in ctx.__dict__.values():
        if id(value) not in known and not is_plain(value, given):
            leaves = (leaf for leaf in pytree.tree_leaves(value) if id(leaf) not in known)
            found += [leaf for leaf in leaves if not is_plain(leaf, given)]
    for tensor in ctx.to_save or ():
        if tensor is not None and id(tensor) not in known:
            same = (i for i, output in enumerate(outputs) if output is tensor)
            if next(same, -1) in (-1, *call.non_differentiable):
                found.append(tensor)
    return found


def _save_inputs(call: Call, ctx: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Save what would be kept aside behind the author's tensors, for hooks to decide where it lies.

    They keep it as they keep these: elsewhere, or by running the region of a checkpoint again.
    """
    saved = ctx.to_save or ()
    known = set(map(id, saved))
    call.own = len(saved)
    ctx.save_for_backward(*saved, *(t for t in tensors if id(t) not in known))


def _apart(ctx: Any, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs, as other objects where the context holds them: that would keep itself alive."""
    held = set(map(id, pytree.tree_leaves(list(ctx.__dict__.values()))))
    return [t.detach() if id(t) in held else t for t in outputs]


def _beyond(ctx: Any, cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
    """The gradients where they can be differentiated in turn."""
    call = ctx.__pullback__
    call.needs = _needs(ctx)
    application = OnNode(call, ctx, cotangents, _saved_of_torch.__get__(ctx))
    with application:
        return differentiable_gradient(application, application.given, call.needs)
