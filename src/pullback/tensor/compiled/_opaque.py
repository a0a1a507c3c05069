"""A Function as one operator in a compiled graph, which runs the author's rules at run time.

Nothing that the rules read is in the graph: when it runs, the operator applies the Function to the
tensors that it is given, as uncompiled code does, and a second operator runs backward through
what the first one left. From the one to the other goes a tensor, the *token*: its memory holds the
graph of autograd as long as anybody holds the memory, and no longer.

When the graph is made, forward runs on tensors without values to tell the shapes of its outputs.
Only these are kept, and a run that finds others refuses.
"""

import itertools
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Never

import torch

from pullback.internal.torch import constant_in_graph, pytree, recording
from pullback.tensor.compiled import _composed
from pullback.tensor.compiled._site import (
    Site,
    apart,
    constant_of,
    find,
    is_tensor,
    keep,
    last_shown,
    show,
)
from pullback.tensor.values._autocast import scope
from pullback.tensor.values._errors import without_frames
from pullback.tensor.values._levels import is_differentiable
from pullback.tensor.values._structure import HOLE

__all__ = ["follow"]

_graphs: weakref.WeakValueDictionary[int, "_Graph"] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class _Graph(bytearray):
    """The memory of a token, which holds what backward runs through."""

    outputs: list[torch.Tensor]
    leaves: list[torch.Tensor]


# What Dynamo traces


def follow(handle: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, composed: bool) -> Any:
    """Put a Function into the graph that Dynamo traces, as an operator.

    Arguments:
        handle: the Function's.
        args: of its forward.
        kwargs: of its forward.
        composed: whether a transform of torch.func is at work around it.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    for leaf in leaves:
        show(leaf)
    places = pytree.tree_unflatten(list(range(len(leaves))), structure)
    key = _begin(handle, places, torch.is_grad_enabled(), composed)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if composed:
        outputs = _composed.transformed(key, *tensors)
    else:
        outputs = torch.ops.pullback.run_forward(key, tensors)
    return _restore(key, outputs, 0)[0]


def _restore(key: str, outputs: Sequence[torch.Tensor], at: int) -> tuple[Any, int]:
    """The output of a Function from its tensors, and where in its outline the next one begins."""
    kind, at = _word(key, at), at + 1
    if kind is None:
        return None, at
    if kind in ("tensor", "constant"):
        output = outputs[_word(key, at)]
        return (output if kind == "tensor" else output.detach()), at + 1
    count, at = _word(key, at), at + 1
    names, entries = [], []
    for _ in range(count):
        if kind == "dict":
            names.append(_word(key, at))
            at += 1
        entry, at = _restore(key, outputs, at)
        entries.append(entry)
    if kind == "dict":
        return dict(zip(names, entries)), at  # noqa: B905 - Dynamo does not know strict
    return (tuple(entries) if kind == "tuple" else entries), at


@constant_in_graph
def _begin(handle: str, places: Any, grad: bool, composed: bool) -> str:
    torch.compiler.allow_in_graph(_composed.transformed)
    numbers, structure = pytree.tree_flatten(places)
    shown = last_shown(len(numbers))
    leaves = [HOLE if is_tensor(leaf) else constant_of(leaf) for leaf in shown]
    fakes = [leaf.as_fake() for leaf in shown if is_tensor(leaf)]
    needs = [is_differentiable(t) if composed else grad and t.requires_grad for t in fakes]
    function = find(handle)
    site = Site(function, (tuple(leaves), structure), tuple(needs))
    function._sites = [*function._sites, site]  # which holds it as long as it lives
    return keep(site)


@constant_in_graph
def _word(key: str, at: int) -> Any:
    """One word of an outline: Dynamo takes no structure for a constant."""
    return find(key).outline[at]


# The operators


@torch.library.custom_op("pullback::run_forward", mutates_args=())
def run_forward(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apply a Function; returns its output tensors, and the token."""
    site = find(key)
    graph = _Graph(next(_numbers).to_bytes(8, sys.byteorder))
    with recording(), torch.set_grad_enabled(any(site.needs)):
        graph.leaves = site.leaves(tensors)
        outline, graph.outputs = site.apply(graph.leaves)
    site.confirm(outline, graph.outputs)
    _graphs[int.from_bytes(graph, sys.byteorder)] = graph
    token = torch.frombuffer(graph, dtype=torch.int64)
    return [*apart([y.detach() for y in graph.outputs], tensors), token]


@run_forward.register_fake
def _(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [*find(key).learn(tensors), torch.empty(1, dtype=torch.int64, device="cpu")]


@torch.library.custom_op("pullback::run_backward", mutates_args=())
def run_backward(
    key: str, token: torch.Tensor, cotangents: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Run backward through what `run_forward` left; one gradient for each tensor that needs it."""
    site, graph = find(key), _graphs[int(token)]
    flowing = [i for i, y in enumerate(graph.outputs) if y.requires_grad]
    with recording(), scope(None):
        gradients = torch.autograd.grad(
            [graph.outputs[i] for i in flowing],
            [leaf for leaf, need in zip(graph.leaves, site.needs, strict=True) if need],
            [cotangents[i] for i in flowing],
            retain_graph=True,  # it goes with the token
            allow_unused=True,
            materialize_grads=True,
        )
    return apart([gradient.contiguous() for gradient in gradients], cotangents)


@run_backward.register_fake
def _(
    key: str, token: torch.Tensor, cotangents: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    following = iter(sizes)
    return [
        torch.empty([next(following) for _ in range(dimensions)], dtype=dtype, device=device)
        for dimensions, dtype, device in find(key).inputs
    ]


def _keep_token(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    ctx.key = inputs[0]
    given = zip(inputs[1], find(ctx.key).needs, strict=True)
    ctx.sizes = [size for tensor, need in given if need for size in tensor.size()]
    ctx.save_for_backward(output[-1])


def _run_backward(ctx: Any, cotangents: list[torch.Tensor]) -> tuple[None, list[Any]]:
    (token,) = ctx.saved_tensors
    gradients = iter(run_backward(ctx.key, token, cotangents[:-1], ctx.sizes))
    return None, [next(gradients) if need else None for need in find(ctx.key).needs]


run_forward.register_autograd(_run_backward, setup_context=_keep_token)


def _keep_name(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    ctx.refusal = find(inputs[0]).refusal("has a second derivative that is not compiled")


def _refuse(ctx: Any, cotangents: list[torch.Tensor]) -> Never:
    raise without_frames(ctx.refusal)


run_backward.register_autograd(_refuse, setup_context=_keep_name)
