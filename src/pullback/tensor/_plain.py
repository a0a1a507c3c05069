"""The plain path: where nothing but reverse mode is at work, torch runs the rules itself.

The author's rules run on torch's own context, so first order is what torch does, to the bit and in
memory, at nearly its cost. Added are what the contract asks for at first order: nothing keeps an
output alive, and an undeclared change in place is an error. A gradient that can be differentiated
again is the author's backward, run where autograd sees it (`pullback.tensor._second_order`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, PullbackError, UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    forward_level,
    graph_is_kept,
    is_any_autocast_enabled,
    is_legacy_batchedtensor,
    node_class,
    pytree,
    versions_of,
)
from pullback.tensor import _random
from pullback.tensor._autocast import scope
from pullback.tensor._call import Call
from pullback.tensor._definition import Definition
from pullback.tensor._kept import aside, forget, reclaim
from pullback.tensor._leniency import leniency
from pullback.tensor._mutation import refuse_mutation
from pullback.tensor._places import Places, views_of
from pullback.tensor._second_order import Application, differentiable_gradient
from pullback.tensor._structure import (
    ONE,
    Template,
    flatten,
    is_data,
    is_hole,
    is_plain,
    unflatten,
    without_values,
)

__all__ = ["Nested", "is_flat", "make_plain"]

_CONTAINERS = (list, tuple, dict)
_ATOMS = frozenset({float, int, bool, str, type(None)})
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_FLAT = _ATOMS | set(_TENSORS)
_transforming = are_functorch_transforms_active
_autocasting = is_any_autocast_enabled
_keeps_graph = graph_is_kept
# torch 2.15: what backward may add its gradients to.
_buffers: Any = getattr(torch.autograd.function.FunctionCtx, "input_grad_buffers", None)


class Nested:
    """Stands behind the tensors of a nested output, to give them their structure back."""

    __slots__ = ("single", "template")

    def __init__(self, template: Template, *, single: bool) -> None:
        self.template = template
        self.single = single

    def restore(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The output as forward returned it."""
        entries = unflatten(self.template, tensors)
        return entries[0] if self.single else entries


def is_flat(args: Sequence[Any]) -> bool:
    """Whether no argument holds a tensor inside of a structure."""
    for arg in args:
        if type(arg) not in _FLAT and isinstance(arg, _CONTAINERS) and not is_data(arg):
            return False
    return True


def make_plain(name: str, definition: Definition) -> Any:
    """Make the entry of the torch Function that runs the rules of a definition."""
    # Long: two rules, as torch takes them, that share what is read off the definition once.
    if definition.direct:
        return _make_direct(name, definition)
    split, check = definition.setup_context, not definition.lenient

    def forward(ctx: Any, *args: Any) -> Any:
        template, tensors = flatten(args)
        before = _random.states(tensors)
        versions = versions_of(tensors) if check else None
        if split is None:
            output = definition.forward(ctx, *args)
        else:
            output = definition.forward(*args)
            split(ctx, args, output)
        if versions is not None and versions != versions_of(tensors):
            refuse_mutation(definition, template, tensors, versions, ctx.dirty_tensors or ())
        call = Call(definition, template)
        call.enter = entry
        result = _finish(call, ctx, tensors, output)
        ctx.__pullback__ = call
        # What is plain never runs forward again.
        if definition.random or not (call.plain or not _random.changed(before)):
            call.generators = before
        return result

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if definition.backward is None:
            raise DefinitionError(
                f"{definition.name} has no backward.",
                mend="Define backward(ctx, *cotangents) as a static method.",
            )
        given = tuple(cotangents[0]) if definition.boxed else cotangents
        if torch.is_grad_enabled() or forward_level() >= 0 or _transforming():
            return _beyond(definition, ctx, given)
        if not _keeps_graph():
            forget(ctx.__pullback__.kept)
        return _run_in_batch(definition, ctx, given, _run)

    body = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        "boxed_grads_call": definition.boxed,
        "__module__": __name__,
    }
    plain: Any = type(name, (torch.autograd.Function,), body)
    if _buffers is not None:
        node_class(plain).input_grad_buffers = property(_input_grad_buffers)
    # The entry point in C++: torch's own `apply` binds the signature anew for each call.
    entry = super(torch.autograd.Function, plain).apply
    return entry


def _make_direct(name: str, definition: Definition) -> Any:
    """Make the entry of a Function that promises what is looked for elsewhere: see `Function`."""
    split: Any = definition.setup_context

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return _run_in_batch(definition, ctx, cotangents, _run_direct)

    body = {
        "forward": staticmethod(definition.forward),
        "setup_context": staticmethod(split),
        "backward": staticmethod(backward),
        "__module__": __name__,
    }
    plain: Any = type(name, (torch.autograd.Function,), body)
    return super(torch.autograd.Function, plain).apply


def _run_direct(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    rule: Any = definition.backward
    if _autocasting() and definition.autocast != "ambient":
        with scope(None):
            return rule(ctx, *cotangents)
    return rule(ctx, *cotangents)


def _run_in_batch(
    definition: Definition,
    ctx: Any,
    cotangents: Sequence[Any],
    run: Callable[[Definition, Any, Sequence[Any]], Any],
) -> Any:
    """Run a backward on cotangents that may be a batch of `is_grads_batched`."""
    for cotangent in cotangents:
        if cotangent is not None and is_legacy_batchedtensor(cotangent):
            break
    else:
        return run(definition, ctx, cotangents)
    try:
        with leniency({}, name=definition.name):
            return run(definition, ctx, cotangents)
    except RuntimeError as error:
        if isinstance(error, PullbackError):
            raise
        raise UnsupportedError(
            f"The backward of {definition.name} cannot be batched by is_grads_batched: "
            f"{str(error).splitlines()[0]}",
            mend="Use torch.func.vmap, or take one gradient at a time.",
        ) from error


def _input_grad_buffers(ctx: Any) -> tuple[torch.Tensor | None, ...]:
    """Those of torch, but none where the gradient is differentiated again: it is returned then."""
    again = ctx.__pullback__.again
    return (None,) * len(ctx.needs_input_grad) if again else _buffers.__get__(ctx)


def _finish(call: Call, ctx: Any, tensors: Sequence[torch.Tensor], output: Any) -> Any:
    """Keep what a second derivative needs, and give torch an output that it can take."""
    dirty, marked = ctx.dirty_tensors, ctx.non_differentiable
    if dirty:
        places = Places(tensors, ())
        call.dirty = [places.dirty_place(tensor, call.definition.name) for tensor in dirty]
    outputs = call.read(output, marked or ())
    call.plain = _is_all_plain(call, ctx, tensors, outputs)
    call.kept = aside(
        call.definition, tensors, ctx.to_save, refused=dirty is not None, weak=call.plain
    )
    if not call.plain and dirty is None:
        outputs = _apart(ctx, outputs)
    if call.result is ONE and marked is None:
        return outputs[0]
    if marked is not None:  # torch would give a view a history all the same
        ids = set(map(id, marked))
        fresh = {id(t): t.detach() for t in outputs if id(t) in ids}
        ctx.mark_non_differentiable(*fresh.values())
        outputs = [fresh.get(id(t), t) for t in outputs]
    outputs = views_of(outputs, ())
    if call.result[1] is not None or (call.single and call.result is not ONE and not outputs):
        call.nested = True
        return (*outputs, Nested(call.result, single=call.single))
    return call.restore(outputs)


def _is_all_plain(
    call: Call, ctx: Any, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> bool:
    """Whether all that can reach backward is seen there: inputs, outputs, and no other number."""
    known = set(map(id, tensors))
    given = call.template[0]
    for value in ctx.__dict__.values():
        if id(value) not in known and not is_plain(value, given):
            leaves = (leaf for leaf in pytree.tree_leaves(value) if id(leaf) not in known)
            if not all(is_plain(leaf, given) for leaf in leaves):
                return False
    known.update(id(t) for i, t in enumerate(outputs) if i not in call.non_differentiable)
    return all(t is None or id(t) in known for t in ctx.to_save or ())


def _apart(ctx: Any, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs, as other objects where the context holds them: that would keep itself alive."""
    held = set(map(id, pytree.tree_leaves(list(ctx.__dict__.values()))))
    return [t.detach() if id(t) in held else t for t in outputs]


def _run(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """Run the author's backward on torch's context."""
    call = ctx.__pullback__
    # Where it is watched, a change in place is made pure.
    check = not (definition.lenient or call.again)
    versions = versions_of(cotangents) if check else None
    given = cotangents
    if call.nested:
        given = unflatten(without_values(call.result, None), cotangents[:-1])
    given = (list(given),) if definition.boxed else given
    rule: Any = definition.backward
    if _autocasting() and definition.autocast != "ambient":
        with scope(None):
            result = rule(ctx, *given)
    else:
        result = rule(ctx, *given)
    if versions is not None and versions != versions_of(cotangents):
        raise DefinitionError(
            f"The backward of {definition.name} changes its cotangent in place.",
            expected="cotangents are left as they are: other code holds them too",
            mend="Compute out of place, or on cotangent.clone().",
        )
    return result


def _beyond(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """The gradients where they can be differentiated in turn."""
    call = ctx.__pullback__
    places = [i for i, hole in enumerate(call.template[0]) if is_hole(hole)]
    call.needs = [ctx.needs_input_grad[i] for i in places]
    application = _OnNode(call, ctx, cotangents)
    call.again = True
    try:
        gradients = differentiable_gradient(application, application.given, call.needs)
    finally:
        call.again = False
    every: list[Any] = [None] * len(call.template[0])
    for place, gradient in zip(places, gradients, strict=True):
        every[place] = gradient
    return tuple(every)


class _OnNode(Application):
    """An application whose context is torch's own node."""

    def __init__(self, call: Call, ctx: Any, cotangents: Sequence[Any]) -> None:
        self.node, self.call = ctx, call
        last = cotangents[:-1] if call.nested else cotangents
        mixed = not call.nested and len(call.result[0]) == len(last)
        holes = [i for i, hole in enumerate(call.result[0]) if is_hole(hole)]
        self._places = holes if mixed else list(range(len(last)))  # of the output tensors
        self._cotangents = cotangents
        self.given = [last[i] for i in self._places]

    def pull(self, cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
        """Run the author's backward on what forward kept."""
        every = list(self._cotangents)
        for i, cotangent in zip(self._places, cotangents, strict=True):
            every[i] = cotangent
        result = _run_in_batch(self.call.definition, self.node, every, _run)
        return self.call.matched(result)

    def saved(self) -> list[torch.Tensor]:
        """The tensors that were saved."""
        kept = [entry[0] for entry in self.call.kept if isinstance(entry, tuple)]
        found = [*self.node.saved_tensors, *(map(_behind, kept))]
        return [tensor for tensor in found if tensor is not None]

    def inputs(self) -> list[torch.Tensor]:
        """The inputs, with their history."""
        found = reclaim(self.call.definition, self.call.kept, self.node.saved_tensors)
        return list(found.values())

    def reaches_inputs(self) -> bool:
        """Whether the tensors that are left have a history that leads to each input."""
        saved = [tensor for tensor in self.node.saved_tensors if tensor is not None]
        if any(tensor.grad_fn is self.node for tensor in saved):
            return True
        kept = zip(self.call.kept, self.call.needs, strict=True)
        held = (isinstance(k, int) or _behind(k[0]) is not None for k, need in kept if need)
        return all(held)

    def outputs(self) -> list[torch.Tensor]:
        """The outputs of one more application: the node holds none that its author did not save."""
        output = self.call.enter(*unflatten(self.call.template, self.inputs()))
        if type(output) is tuple and output and type(output[-1]) is Nested:
            return list(output[:-1])
        return flatten(self.call.entries(output))[1]

    def attributes(self) -> dict[str, Any]:
        """What the context has now, that its author has put there."""
        return {name: v for name, v in self.node.__dict__.items() if name != "__pullback__"}


def _behind(reference: Any) -> Any:
    return reference if isinstance(reference, torch.Tensor) else reference()
