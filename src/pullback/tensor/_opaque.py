"""A Function as one operator in a compiled graph, which runs the author's rules when the graph runs.

Nothing that the rules read is in the graph: when it runs, the operator applies the Function to the
tensors that it is given, as uncompiled code does, and a second operator runs backward through
what the first one left. From the one to the other goes a tensor, the *token*: its memory holds the
graph of autograd as long as anybody holds the memory, and no longer.

When the graph is made, forward runs on tensors without values to tell the shapes of its outputs. Only
the shapes are kept; a graph run finds others refuses. Where shapes depend on values, torch says so.
"""

import contextlib
import enum
import itertools
import sys
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal._generators import rewind_shared
from pullback.internal.torch import (
    FakeTensor,
    FakeTensorMode,
    constant_in_graph,
    disable_current_modes,
    pytree,
    recording,
    storage_of,
    version_of,
)
from pullback.tensor._autocast import forward_state, scope

from pullback.tensor._shown import constant_of, is_tensor, last_shown, show

__all__ = ["follow", "function_of", "register"]

_functions: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_sites: weakref.WeakValueDictionary[str, "_Site"] = weakref.WeakValueDictionary()
_graphs: weakref.WeakValueDictionary[int, "_Graph"] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class _Hole(enum.Enum):
    TENSOR = "the place of a tensor"


class _Site:
    """One place in a compiled graph where a Function is applied.

    Arguments:
        function: the class; it holds the site, so that the site lives as long as it does.
        holed: positional and keyword arguments, with holes for the tensors.
        needs: for each tensor, whether a gradient is asked for.
    """

    def __init__(self, function: Any, holed: Any, needs: tuple[bool, ...]) -> None:
        self.function = weakref.ref(function)
        self.holed = holed
        self.needs = needs
        self.autocast = forward_state("ambient", ())
        self.inputs: list[Any] = []  # what is known of those that need a gradient
        self.outputs: list[Any] = []
        self.outline: list[Any] = []  # how the outputs are nested

    def apply(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """Apply the Function as uncompiled code does, to leaves of a graph of autograd."""
        pairs = zip(tensors, self.needs, strict=True)
        with recording(), torch.set_grad_enabled(any(self.needs)), scope(self.autocast):
            leaves = [tensor.detach().requires_grad_(need) for tensor, need in pairs]
            following = iter(leaves)
            args, kwargs = pytree.tree_map(
                lambda leaf: next(following) if leaf is _Hole.TENSOR else leaf, self.holed
            )
            versions = list(map(version_of, leaves))
            output = self.function().apply(*args, **kwargs)  # type: ignore[union-attr]
            if versions != list(map(version_of, leaves)):
                raise self.refusal("changes an argument in place")
        return output, leaves

    def refusal(self, what: str) -> UnsupportedError:
        name = getattr(self.function(), "__name__", "A Function that is gone")
        return UnsupportedError(
            f"{name} {what}, and it stands as one operator in a compiled graph, since "
            "torch.compile cannot trace its rules.",
            mend="Apply it outside of what is compiled, or write rules that can be traced.",
        )


class _Graph(bytearray):
    """The memory of a token, which holds what backward runs through."""

    outputs: list[torch.Tensor]
    leaves: list[torch.Tensor]


# What Dynamo traces


def register(function: Any) -> str:
    """Give a Function a handle that compiled code can refer to it by."""
    # Not a number: graphs are cached on disk, and another process has other Functions.
    handle = uuid.uuid4().hex
    _functions[handle] = function
    return handle


def function_of(handle: str) -> Any:
    """The Function of a handle."""
    return _functions[handle]


def follow(handle: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put a Function into the graph that Dynamo traces, as an operator."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    for leaf in leaves:
        show(leaf)
    grad = torch.is_grad_enabled()
    key = _begin(handle, pytree.tree_unflatten(list(range(len(leaves))), structure), grad)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    outputs = torch.ops.pullback.run_forward(key, tensors)
    return _restore(key, outputs, 0)[0]


def _restore(key: str, outputs: list[torch.Tensor], at: int) -> tuple[Any, int]:
    """The output of a Function from its tensors, and where in its outline the next one begins."""
    kind, at = _word(key, at), at + 1
    if kind is None:
        return None, at
    if kind == "tensor" or kind == "constant tensor":
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
def _begin(handle: str, places: Any, grad: bool) -> str:
    function, key = _functions[handle], uuid.uuid4().hex
    shown = last_shown(len(pytree.tree_leaves(places)))
    leaves = [_Hole.TENSOR if is_tensor(leaf) else constant_of(leaf) for leaf in shown]
    needs = tuple(grad and leaf.as_fake().requires_grad for leaf in shown if is_tensor(leaf))
    holed = pytree.tree_map(leaves.__getitem__, places)
    function._sites = {**function._sites, key: _Site(function, holed, needs)}
    _sites[key] = function._sites[key]
    return key


@constant_in_graph
def _word(key: str, at: int) -> Any:
    """One word of an outline: Dynamo takes no structure for a constant."""
    return _sites[key].outline[at]


# The operators


@torch.library.custom_op("pullback::run_forward", mutates_args=())
def run_forward(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apply a Function; returns its output tensors, and the token."""
    site = _sites[key]
    output, leaves = site.apply(tensors)
    outline, outputs = _describe(site, output)
    found = list(map(_known, outputs))
    if outline != site.outline or not all(map(_fits, found, site.outputs)):
        raise site.refusal("returns outputs of another form than when it was compiled")
    graph = _Graph(next(_numbers).to_bytes(8, sys.byteorder))
    graph.outputs, graph.leaves = outputs, leaves
    _graphs[int.from_bytes(graph, sys.byteorder)] = graph
    token = torch.frombuffer(graph, dtype=torch.int64)
    return [*_apart([y.detach() for y in outputs], tensors), token]


@run_forward.register_fake
def _(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    site = _sites[key]
    try:
        site.outline, outputs = _describe(site, _without_values(site, tensors))
    except Exception as error:  # of a kind that ends the graph before the call, which then runs
        message = f"{type(error).__name__}: {error}"
        raise NotImplementedError(message) from error
    needing = (t for t, need in zip(tensors, site.needs, strict=True) if need)
    site.inputs = [(t.dim(), t.dtype, t.device) for t in needing]
    site.outputs = list(map(_known, outputs))
    made = [
        torch.empty_strided(y.size(), y.stride(), dtype=y.dtype, device=y.device) for y in outputs
    ]
    return [*made, torch.empty(1, dtype=torch.int64, device="cpu")]


def _without_values(site: _Site, tensors: Sequence[Any]) -> Any:
    """What a Function returns where the tensors that it is given have no values.

    What it makes itself of nothing but numbers has values: it may keep that for the next call.
    """
    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)
    if mode is None:
        raise site.refusal("has no tensor among its arguments")
    inner = FakeTensorMode(allow_non_fake_inputs=True, shape_env=mode.shape_env)
    with inner:
        given = [
            torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device)
            for t in tensors
        ]
    undo = rewind_shared()
    try:
        with disable_current_modes(), torch.random.fork_rng():
            return site.apply(given)[0]
    finally:
        for step in undo:
            step()


def _describe(site: _Site, output: Any) -> tuple[list[Any], list[torch.Tensor]]:
    """The outline of what a Function returned, and its tensors."""
    outline: list[Any] = []
    tensors: list[torch.Tensor] = []

    def visit(value: Any) -> None:
        if value is None:
            outline.append(None)
        elif isinstance(value, torch.Tensor):
            kind = "tensor" if value.requires_grad else "constant tensor"
            outline.extend((kind, len(tensors)))
            tensors.append(value)
        elif type(value) in (list, tuple, dict):
            outline.extend((type(value).__name__, len(value)))
            for entry in value:
                if type(value) is dict:
                    outline.append(entry)
                visit(value[entry] if type(value) is dict else entry)
        else:
            raise site.refusal(f"returns a {type(value).__name__}")

    visit(output)
    return outline, tensors


def _known(tensor: torch.Tensor) -> Any:
    """What the graph relies on of an output."""
    return list(tensor.size()), tensor.dtype, tensor.device


def _fits(found: Any, known: Any) -> bool:
    """Whether an output is as it was known; a size that may vary is any."""
    sizes = zip(found[0], known[0], strict=False)
    same = len(found[0]) == len(known[0]) and found[1:] == known[1:]
    return same and all(size == before or type(before) is not int for size, before in sizes)


def _apart(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, copied where they lie in the memory of another: an operator must not alias."""
    seen = set(map(storage_of, others))
    result = []
    for tensor in tensors:
        result.append(tensor.clone() if storage_of(tensor) in seen else tensor)
        seen.add(storage_of(tensor))
    return result


def _keep_token(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    ctx.key = inputs[0]
    given = zip(inputs[1], _sites[ctx.key].needs, strict=True)
    ctx.sizes = [size for tensor, need in given if need for size in tensor.size()]
    ctx.save_for_backward(output[-1])


def _run_backward(ctx: Any, cotangents: list[torch.Tensor]) -> tuple[None, list[Any]]:
    site = _sites[ctx.key]
    (token,) = ctx.saved_tensors
    gradients = iter(run_backward(ctx.key, token, cotangents[:-1], ctx.sizes))
    return None, [next(gradients) if need else None for need in site.needs]


@torch.library.custom_op("pullback::run_backward", mutates_args=())
def run_backward(
    key: str, token: torch.Tensor, cotangents: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Run backward through what `run_forward` left; one gradient for each tensor that needs it."""
    site, graph = _sites[key], _graphs[int(token)]
    needing = [leaf for leaf, need in zip(graph.leaves, site.needs, strict=True) if need]
    flowing = [i for i, y in enumerate(graph.outputs) if y.requires_grad]
    with recording(), scope(site.autocast):
        gradients = torch.autograd.grad(
            [graph.outputs[i] for i in flowing],
            needing,
            [cotangents[i] for i in flowing],
            retain_graph=True,  # it goes with the token
            allow_unused=True,
            materialize_grads=True,
        )
    return _apart([gradient.contiguous() for gradient in gradients], cotangents)


@run_backward.register_fake
def _(
    key: str, token: torch.Tensor, cotangents: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    following = iter(sizes)
    return [
        torch.empty([next(following) for _ in range(dim)], dtype=dtype, device=device)
        for dim, dtype, device in _sites[key].inputs
    ]


run_forward.register_autograd(_run_backward, setup_context=_keep_token)
