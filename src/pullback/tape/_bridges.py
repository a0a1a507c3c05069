"""The two bridges between the tape's graphs and torch's.

Each makes the other graph a part of the one at hand, so that one backward crosses both ways:

- `from_torch` puts a `TorchNode` on the tape. It pulls a gradient through torch's graph as far
  as the tensors that came off the tape, and hands it on to them; so the tape's engine goes on.
- `to_torch` puts a `_Crossing` into torch's graph. Its inputs are the tensors that went onto the
  tape upstream; its backward runs the tape between, and torch's engine goes on.

Either engine may be in charge; each stops where the other graph is already accounted for. A node
of the graph of the one in charge runs when all that flows into it is there. Of the other graph what
leads to its leaves alone waits until all has come to it, and runs once. What leads back to the one
in charge cannot wait, and runs once for each crossing, with what comes over that one: what lies
upstream of several such is given the parts. The sums are right where rules and hooks are linear in
the gradient, as derivatives are; one that clips clips the parts.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge as TorchEdge

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._arguments import checked
from pullback.internal.torch import (
    accumulate,
    are_functorch_transforms_active,
    current_graph_task_id,
    disable_current_modes,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from pullback.tape._engine import Pass
from pullback.tape._mode import enable_grad, mode, no_grad
from pullback.tape._node import GradientEdge, Node, Output, edge_of
from pullback.tape._registry import space_of
from pullback.tape._spaces import NUMBER
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["from_torch", "refuse_derivative", "to_torch"]


def refuse_derivative(tensor: torch.Tensor) -> None:
    """Refuse a tensor that carries a derivative which neither graph would carry on."""
    lost = "was put on the tape, where that derivative would be lost"
    mend = "Use grad, jvp and vmap of pullback.tape, or tensor.detach() if it is a constant."
    inner: Any = tensor
    while is_functorch_wrapped_tensor(inner) and not inner.requires_grad:
        inner = get_unwrapped(inner)
    if inner.requires_grad and is_functorch_wrapped_tensor(tensor):
        what = "a transform of torch.func differentiates"
    elif torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        what = "has a tangent of torch's forward mode"
    elif is_legacy_batchedtensor(tensor):
        what, lost = "is a batch of gradients", "came to the tape, which takes one at a time"
        mend = "Leave out is_grads_batched, or vectorize of torch.autograd.functional."
    else:
        return
    raise UnsupportedError(
        f"A tensor that {what} {lost}.", given=f"shape {tuple(tensor.shape)}", mend=mend
    )


@checked
def from_torch(tensor: torch.Tensor, role: str = "", number: bool = False) -> Variable:
    """Put a tensor on the tape; a gradient that comes back flows on in torch's graph.

    Arguments:
        tensor: a tensor, with or without a history.
        role: the role of the Variable.
        number: give a number rather than a tensor; the tensor then has one element.

    Raises:
        ArgumentTypeError: it is no tensor.
        ArgumentError: it should be a number and has not one element.

    Example:
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> loss = from_torch(weight.pow(2).sum(), number=True) * 3
        >>> loss.backward()
        >>> weight.grad
        tensor([ 6., 12.])
    """
    if number and tensor.numel() != 1:
        raise ArgumentError(
            "Only a tensor of one element is a number.", given=f"shape {tuple(tensor.shape)}"
        )
    refuse_derivative(tensor)
    plain = tensor.detach()
    data = plain.item() if number else plain
    if not (tensor.requires_grad and mode.get().grad):
        return wrap(data, role)
    node = TorchNode(tensor, role, data)
    return wrap(data, role, node, 0)


@checked
def to_torch(variable: Variable) -> torch.Tensor:
    """Take a value off the tape; a gradient that comes back in torch's graph flows on here.

    A number becomes a tensor of no dimensions and float64.

    Arguments:
        variable: a Variable of a tensor or a number.

    Raises:
        ArgumentTypeError: it is neither.

    Example:
        >>> x = Variable(3.0, requires_grad=True)
        >>> torch.exp(to_torch(x * 2)).log().backward()
        >>> x.grad
        Variable(2.0)
    """
    data = variable._data
    space = space_of(data)
    if space is NUMBER:
        tensor = torch.tensor(float(data), dtype=torch.float64)
    elif isinstance(data, torch.Tensor):
        # Of a constant that inference made torch would save nothing for a derivative, but refuse.
        constant = data.is_inference() and not torch.is_inference_mode_enabled()
        tensor = data.clone() if constant else data
    else:
        raise ArgumentTypeError(
            f"A {space.name} is no tensor.", given=describe(variable),
            expected="a Variable of a tensor or a number",
        )  # fmt: skip
    now = mode.get()
    if not variable._requires_grad:
        return tensor
    if not now.grad:
        if now.watch is not None:
            now.watch.append(variable)
        return tensor
    if are_functorch_transforms_active():
        raise UnsupportedError(
            "A value with a history on the tape was taken off it inside a transform of torch.func, "
            "which cannot follow it.",
            given=describe(variable),
            mend="Use grad, jvp and vmap of pullback.tape, or detach() if it is a constant.",
        )
    entry = _Entry(variable)
    with torch.enable_grad():
        upstream = [node.tensor for node in entry.upstream]
        return _Crossing.apply(entry, tensor, _ANCHOR, *upstream)


class _Entry:
    """Where a value left the tape for torch's graph."""

    def __init__(self, variable: Variable) -> None:
        self.edge = GradientEdge(*edge_of(variable))  # type: ignore[bad-argument-type]
        self.number = space_of(variable._data) is NUMBER
        # The nearest nodes upstream where tensors came onto the tape.
        below = lambda node: () if isinstance(node, TorchNode) else node._next  # noqa: E731
        nodes = _reached(self.edge.node, below)
        self.upstream = [node for node in nodes if isinstance(node, TorchNode)]
        self.stopped_by: int | None = None


class _Arrived:
    """What one backward of torch has brought to the tape, for the tape's leaves."""

    def __init__(self) -> None:
        self.ends: list[tuple[GradientEdge, Variable]] = []
        self.passes: list[Pass] = []


_arrived: weakref.WeakValueDictionary[int, _Arrived] = weakref.WeakValueDictionary()


def _anchor() -> torch.Tensor:
    """What every crossing leads to in torch's graph: without it none of the tape's own is recorded.

    It runs where torch accumulates into leaves, not where it was only asked for some gradients; and
    when every crossing has run, for torch's engine waits for all that leads to a node.
    """
    with torch.inference_mode(False), torch.enable_grad(), disable_current_modes():
        return _End.apply(torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True))


class _End(torch.autograd.Function):
    """Run the parts of the tape that end in its leaves, as one, and give the leaves what came."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.clone()

    @staticmethod
    def backward(ctx: Any, *signals: torch.Tensor) -> None:
        (signal,) = signals
        arrived: _Arrived = signal.__dict__.pop("arrived")
        if arrived.ends:
            last = Pass(arrived.ends, create_graph=torch.is_grad_enabled())
            last.run()
            arrived.passes.append(last)
        for each in arrived.passes:
            each.commit(retain_graph=True)


_ANCHOR = _anchor()  # here, so that threads have the same one


class _Crossing(torch.autograd.Function):
    """A value of the tape in torch's graph."""

    @staticmethod
    def forward(ctx: Any, entry: _Entry, value: torch.Tensor, *upstream: torch.Tensor) -> Any:
        ctx.entry = entry
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        entry: _Entry = ctx.entry
        (gradient,) = gradients
        if entry.stopped_by is not None and (
            entry.stopped_by == threading.get_ident() or gradient.device.type != "cpu"
        ):
            return (None,) * (3 + len(entry.upstream))
        signal = None
        arrived = _arrived.get(current_graph_task_id())
        if arrived is None:  # the signal holds it, and is gone if this backward fails
            _arrived[current_graph_task_id()] = arrived = _Arrived()
            signal = torch.empty(0, dtype=torch.float32, device="cpu")  # as the anchor: no copy
            signal.__dict__["arrived"] = arrived
        recorded = torch.is_grad_enabled()
        with enable_grad() if recorded else no_grad():
            arriving = from_torch(gradient, number=entry.number)
            if not entry.upstream:
                arrived.ends.append((entry.edge, arriving))
                return None, None, signal
            the_pass = Pass([(entry.edge, arriving)], create_graph=recorded, stops=entry.upstream)
            the_pass.run()
            found = [the_pass.captured.get((node, 0)) for node in entry.upstream]
            sent = [None if each is None else to_torch(each) for each in found]
        arrived.passes.append(the_pass)
        return None, None, signal, *sent


def _reached(start: Any, below: Callable[[Any], Any]) -> Iterator[Any]:
    """The nodes that are reached along the edges that `below` gives of each, all of them once."""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        yield node
        for following, _ in below(node):
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


class TorchNode(Node):
    """A part of torch's graph, up to a tensor that came onto the tape, as one node there."""

    __slots__ = ("crossings", "leaves", "outputs", "tensor", "written")

    def __init__(self, tensor: torch.Tensor, role: str, data: Any) -> None:
        self.tensor = tensor
        self.outputs = (Output(space_of(data), role, None, True),)
        self.crossings, self.leaves, self.written = _walk(tensor)
        super().__init__("TorchBackward", [node.entry.edge for node in self.crossings])

    def pull(
        self, gradients: Sequence[Any], needed: Any, create_graph: bool, later: Any
    ) -> Sequence[Any]:
        """Pull a gradient through torch's graph, to the tape's values and torch's leaves."""
        gradient = to_torch(gradients[0]).to(self.tensor)
        if gradient.shape != self.tensor.shape:  # of a number; a sparse one has no reshape
            gradient = gradient.reshape(self.tensor.shape)
        parts: list[Any] = [] if later is None else later.setdefault(_give_leaves, [])
        entries = [node.entry for node in self.crossings]
        if not entries:
            parts.append((self, gradient))
            return []
        leaves = [] if later is None else self.leaves
        for entry in entries:
            entry.stopped_by = threading.get_ident()
        try:
            inputs: Any = [*(TorchEdge(node, 0) for node in self.crossings), *leaves]
            pulled = _pulled([(self, gradient)], inputs, create_graph)
        finally:
            for entry in entries:
                entry.stopped_by = None
        parts += zip(leaves, pulled[len(entries) :], strict=True)
        return [
            None if each is None else from_torch(each, number=entry.number)
            for each, entry in zip(pulled, entries, strict=False)
        ]

    def push(self, tangents: Any) -> None:
        """Let it be derived from `pull`: torch's own rules are linear, those of others are tried.

        That they add up for two gradients is seen in this call, in the dtype at hand.
        """
        if not self.written:
            return
        draw = torch.Generator().manual_seed(0)
        a, b = (torch.randn(self.tensor.shape, dtype=torch.float64, generator=draw) for _ in "ab")
        rows = zip(*[self.pull([wrap(c)], None, False, None) for c in (a, b, a + b)], strict=True)
        near = 8 * torch.finfo(self.tensor.dtype).eps ** 0.5
        for row in rows:
            first, last, both = (to_torch(each) for each in row if each is not None)
            if not torch.allclose(first + last, both, near, near, equal_nan=True):
                raise UnsupportedError(
                    f"The backward of {self.written[0]} of torch is not linear, so no tangent can "
                    "be derived from it.",
                    mend="Put it into a Function of the tape that has a jvp.",
                )


def _pulled(parts: Sequence[Any], inputs: Any, create_graph: bool) -> Sequence[Any]:
    """The gradients that reach some inputs from nodes and their gradients, in one run of torch."""
    return torch.autograd.grad(
        [node.tensor for node, _ in parts], inputs, [gradient for _, gradient in parts],
        retain_graph=True, create_graph=create_graph, allow_unused=True,
    )  # fmt: skip


def _give_leaves(parts: Sequence[Any], create_graph: bool) -> Callable[[], None]:
    """Run the parts of torch's graph that end in its leaves at once, and say what is given then.

    A part is such a node and its gradient, or a leaf and what a run before has brought it.
    """
    ends = [part for part in parts if isinstance(part[0], TorchNode)]
    leaves = list(dict.fromkeys(leaf for node, _ in ends for leaf in node.leaves))
    found = [part for part in parts if not isinstance(part[0], TorchNode)]
    if ends:
        found += zip(leaves, _pulled(ends, leaves, create_graph), strict=True)
    found = [part for part in found if part[1] is not None]
    return functools.partial(accumulate, found, create_graph)


def _walk(tensor: torch.Tensor) -> tuple[list[Any], list[torch.Tensor], list[str]]:
    """What torch's graph of a tensor begins with: values of the tape, and torch's own leaves.

    And the names of the Functions in it whose rules somebody wrote.
    """
    if tensor.grad_fn is None:
        return [], [tensor], []

    def crosses(node: Any) -> bool:
        return isinstance(getattr(node, "entry", None), _Entry)

    below = lambda node: () if crosses(node) else node.next_functions  # noqa: E731
    nodes: list[Any] = list(_reached(tensor.grad_fn, below))
    ends = [getattr(node, "variable", None) for node in nodes if not node.next_functions]
    leaves = [leaf for leaf in ends if isinstance(leaf, torch.Tensor)]
    crossings = [node for node in nodes if crosses(node)]
    by_others = [node for node in nodes if issubclass(type(node), BackwardCFunction)]
    return crossings, leaves, [node.name() for node in by_others if not crosses(node)]
