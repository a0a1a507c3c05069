"""The plain path: where nothing but reverse mode is at work, torch runs the rules itself.

The author's rules run on torch's own context, so first order is what torch does, to the bit and in
memory, at nearly its cost. Added are what the contract asks for at first order: nothing keeps an
output alive, and an undeclared change in place is an error. A gradient that can be differentiated
again is one node beside it (`pullback.tensor._gradient`).
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, PullbackError, UnsupportedError
from pullback.internal.torch import (
    FunctionNode,
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
from pullback.tensor._gradient import differentiable_gradient
from pullback.tensor._kept import aside, forget, reclaim
from pullback.tensor._leniency import leniency
from pullback.tensor._mutation import refuse_mutation
from pullback.tensor._places import Places, views_of
from pullback.tensor._structure import (
    ONE,
    Template,
    flatten,
    is_data,
    is_hole,
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
_node: Any = FunctionNode
_unpack: Any = _node.saved_tensors.__get__
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


class _Slot:
    """Stands in an attribute of the context for a saved tensor."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class _Kept:
    """What the node of a plain call keeps beside what its author keeps."""

    __slots__ = (
        "attributes",
        "beyond",
        "dirty",
        "generators",
        "inputs",
        "nested",
        "result",
        "saved",
        "single",
        "template",
    )

    dirty: bool
    inputs: list[Any]  # for each input tensor, its place among the saved ones or a reference
    result: Template
    single: bool
    saved: int  # how many tensors the author saved
    template: Template

    def __init__(self, generators: Any) -> None:
        self.attributes: dict[str, Any] = {}  # that hold tensors, with slots instead
        self.beyond = False  # whether backward runs to be differentiated again
        self.nested = False
        self.generators = generators


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
    draws: bool | None = definition.random or None  # unknown until the first call
    split, check = definition.setup_context, not definition.lenient

    def forward(ctx: Any, *args: Any) -> Any:
        nonlocal draws
        before = None if draws is False else _random.states(args)
        kept = ctx.__pullback__ = _Kept(before)
        versions = versions_of([a for a in args if isinstance(a, torch.Tensor)]) if check else None
        if split is None:
            output = definition.forward(ctx, *args)
        else:
            output = definition.forward(*args)
            split(ctx, args, output)
        if draws is None:
            draws = _random.changed(before)
        kept.template, tensors = flatten(args)
        if versions is not None and versions != versions_of(tensors):
            refuse_mutation(definition, kept.template, tensors, versions, ctx.dirty_tensors or ())
        return _finish(definition, ctx, kept, tensors, output)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if definition.backward is None:
            raise DefinitionError(
                f"{definition.name} has no backward.",
                mend="Define backward(ctx, *cotangents) as a static method.",
            )
        given = tuple(cotangents[0]) if definition.boxed else cotangents
        if torch.is_grad_enabled() or forward_level() >= 0 or _transforming():
            if not definition.direct:
                return _beyond(definition, ctx, given)
        elif not _keeps_graph():
            forget(ctx.__pullback__.inputs)
        return _run_in_batch(definition, ctx, given, _run)

    body = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        "boxed_grads_call": definition.boxed,
        "__module__": __name__,
    }
    plain: Any = type(name, (torch.autograd.Function,), body)
    node_class(plain).saved_tensors = property(_saved_tensors)
    if _buffers is not None:
        node_class(plain).input_grad_buffers = property(_input_grad_buffers)
    # The entry point in C++: torch's own `apply` binds the signature anew for each call.
    return super(torch.autograd.Function, plain).apply


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
        with leniency(name=definition.name, published=False):
            return run(definition, ctx, cotangents)
    except RuntimeError as error:
        if isinstance(error, PullbackError):
            raise
        raise UnsupportedError(
            f"The backward of {definition.name} cannot be batched by is_grads_batched: "
            f"{str(error).splitlines()[0]}",
            mend="Use torch.func.vmap, or take one gradient at a time.",
        ) from error


def _saved_tensors(ctx: Any) -> tuple[Any, ...]:
    saved = _unpack(ctx)
    kept = ctx.__pullback__
    return saved[: kept.saved] if kept.attributes else saved


def _input_grad_buffers(ctx: Any) -> tuple[torch.Tensor | None, ...]:
    """Those of torch, but none where the gradient is differentiated again: it is returned then."""
    beyond = ctx.__pullback__.beyond
    return (None,) * len(ctx.needs_input_grad) if beyond else _buffers.__get__(ctx)


def _finish(
    definition: Definition, ctx: Any, kept: _Kept, tensors: Sequence[torch.Tensor], output: Any
) -> Any:
    """Keep what a second derivative needs, and give torch an output that it can take."""
    for name, value in ctx.__dict__.items():
        if type(value) not in _ATOMS and name != "__pullback__":
            _stash(ctx, kept)
            break
    saved = ctx.to_save
    kept.dirty = ctx.dirty_tensors is not None
    if kept.dirty:
        places = Places(tensors, ())
        for tensor in ctx.dirty_tensors:
            places.dirty_place(tensor, definition.name)
    kept.inputs = aside(definition, tensors, saved, refused=kept.dirty)
    marked = ctx.non_differentiable
    if type(output) is torch.Tensor and marked is None:
        kept.result, kept.single = ONE, True
        return output
    kept.single = not isinstance(output, tuple) or hasattr(output, "_fields")
    kept.result, outputs = flatten((output,) if kept.single else output)
    if marked is not None:  # torch would give a view a history all the same
        ids = set(map(id, marked))
        fresh = {id(t): t.detach() for t in outputs if id(t) in ids}
        ctx.mark_non_differentiable(*fresh.values())
        outputs = [fresh.get(id(t), t) for t in outputs]
    outputs = views_of(outputs, ())
    if kept.result[1] is not None or (kept.single and kept.result is not ONE and not outputs):
        kept.nested = True
        return (*outputs, Nested(kept.result, single=kept.single))
    entries = unflatten(kept.result, outputs)
    return entries[0] if kept.single else entries


def _stash(ctx: Any, kept: _Kept) -> None:
    """Save the tensors among the attributes of the context, so that no output is kept alive."""
    saved = list(ctx.to_save or ())
    kept.saved = len(saved)

    def strip(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or vars(leaf) or leaf.is_inference():
            return leaf
        saved.append(leaf)
        return _Slot(len(saved) - 1)

    for name, value in list(ctx.__dict__.items()):
        if name == "__pullback__" or is_data(value):
            continue
        if isinstance(value, (torch.Tensor, *_CONTAINERS)):
            kept.attributes[name] = ctx.__dict__[name] = pytree.tree_map(strip, value)
    if len(saved) > kept.saved:
        ctx.save_for_backward(*saved)


@contextlib.contextmanager
def _filled(ctx: Any) -> Any:
    """Put the saved tensors back into the attributes of the context while backward runs."""
    stripped = ctx.__pullback__.attributes
    saved = _unpack(ctx)
    for name, value in stripped.items():
        ctx.__dict__[name] = pytree.tree_map(
            lambda leaf: saved[leaf.place] if isinstance(leaf, _Slot) else leaf, value
        )
    try:
        yield
    finally:
        ctx.__dict__.update(stripped)


def _run(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """Run the author's backward on torch's context."""
    kept = ctx.__pullback__
    versions = None if definition.lenient else versions_of(cotangents)
    given = cotangents
    if kept.nested:
        given = unflatten(without_values(kept.result, None), cotangents[:-1])
    given = (list(given),) if definition.boxed else given
    outside = _autocasting() and definition.autocast != "ambient"
    if kept.attributes or outside:
        with _filled(ctx), scope(None) if outside else _NOTHING:
            result = definition.backward(ctx, *given)  # type: ignore[misc]
    else:
        result = definition.backward(ctx, *given)  # type: ignore[misc]
    if versions is not None and versions != versions_of(cotangents):
        raise DefinitionError(
            f"The backward of {definition.name} changes its cotangent in place.",
            expected="cotangents are left as they are: other code holds them too",
            mend="Compute out of place, or on cotangent.clone().",
        )
    return result


_NOTHING = contextlib.nullcontext()


def _beyond(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """The gradients where they can be differentiated in turn."""
    kept = ctx.__pullback__
    places = [i for i, hole in enumerate(kept.template[0]) if is_hole(hole)]
    needs = [ctx.needs_input_grad[i] for i in places]
    call = _call(definition, kept, needs)
    inputs = reclaim(definition, kept.inputs, _unpack(ctx))
    call.dirty = list(inputs) if kept.dirty else []
    last = cotangents[:-1] if kept.nested else cotangents
    mixed = not kept.nested and len(kept.result[0]) == len(last)
    flowing = [i for i, hole in enumerate(kept.result[0]) if is_hole(hole)] if mixed else None
    given = last if flowing is None else [last[i] for i in flowing]

    def compute(saved: Any, every: Any) -> list[torch.Tensor | None]:
        spread = list(last)
        for i, cotangent in zip(flowing or range(len(last)), every, strict=True):
            spread[i] = cotangent
        kept.beyond = True
        try:
            result = _run(definition, ctx, [*spread, None] if kept.nested else spread)
        finally:
            kept.beyond = False
        return call.matched(result)

    gradients = differentiable_gradient(call, inputs, given, needs, compute)
    every: list[Any] = [None] * len(kept.template[0])
    for place, gradient in zip(places, gradients, strict=True):
        every[place] = gradient
    return tuple(every)


def _call(definition: Definition, kept: _Kept, needs: Sequence[bool]) -> Call:
    """The general form of a plain call, for what is derived from it."""
    call = Call(definition, kept.template, (), needs, None, transformed=False)
    call.result, call.single = kept.result, kept.single
    call.count = sum(map(is_hole, kept.result[0]))
    call.generators, call.materialize = kept.generators, False
    call.dirty, call.non_differentiable = [], []
    return call
