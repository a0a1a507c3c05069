"""A kernel that cannot be looked into, and its plain reference: which of the two runs where.

Let k be the kernel and p the reference, plain torch that computes the same. The call decides:

- below a transform of torch.func, in forward mode, and where tensors have no values (fake, meta, a
  graph that is written down), p runs in the place of k: all that is nested there is torch's own;
- elsewhere k runs, in a graph of its own. Of y = k(x), backward is

      u -> (dk/dx)^T u     by that graph, in first order;
      u -> (dp/dx)^T u     by p on the same x, where somebody will differentiate the result
                           (``create_graph``), or batches or moves the cotangent u.

So the gradient that is differentiated is p's whole: with g(x, u) = (dp/dx)^T u, autograd adds dg/dx
and dg/du of that very g, and no rule of k is ever differentiated. Where u depends on y, as in the
Hessian of a loss L(k(x)),

    H = (d2p/dx2) . L' + (dp/dx)^T L'' (dk/dx),

k enters by its value and its first derivative alone, which are p's up to rounding. That is the
clause ``reference`` of `pullback.check`; nothing looks for it at run time.

The graph of k starts at views of the inputs, which hold their history and no memory. It is freed as
torch frees its own: by the backward pass that does not retain the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import (
    FakeTensor,
    are_functorch_transforms_active,
    forward_level,
    graph_is_kept,
    is_symbolic,
    never_compile,
    versions_of,
)
from pullback.tensor.compiled._site import apart
from pullback.tensor.values._autocast import forward_state, scope
from pullback.tensor.values._levels import are_batched
from pullback.tensor.values._random import changed, states
from pullback.tensor.values._structure import Template, flatten, unflatten
from pullback.tensor.watch._watch import watching

__all__ = ["Pair", "run"]


class Pair:
    """A kernel and its reference, in torch operations, which take and return the same.

    Outputs of the kernel without a history are constants; where none has one, it has no gradient,
    and the reference gives the first order too.
    """

    def __init__(self, name: str, kernel: Callable[..., Any], reference: Callable[..., Any]):
        self.name, self.kernel, self.reference = name, kernel, reference
        self.node: Any = type(name, (_Node,), {"__module__": __name__})


def run(pair: Pair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a kernel, or its reference where a transform is at work."""
    watch = watching()
    if watch is not None:
        return watch.apply(lambda *a, **k: run(pair, a, k), args, kwargs)
    template, tensors = flatten((args, kwargs))
    if _is_transformed() or is_symbolic() or any(map(_is_without_values, tensors)):
        return pair.reference(*args, **kwargs)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return pair.kernel(*args, **kwargs)
    call = _Call(pair, template)
    outputs = pair.node.apply(call, *tensors)
    return unflatten(call.result, outputs)[0]


def _is_transformed() -> bool:
    return are_functorch_transforms_active() or forward_level() >= 0


def _is_without_values(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta


# Before torch 2.9 an edge to the node of a Function does not keep that alive, as its output does.
_EDGES_OWN = hasattr(GradientEdge, "ownership_token")


class _Call:
    """One application.

    Attributes:
        inputs: where the kernel's graph starts, for each input that needs a gradient.
        edges: where it ends, for each output tensor; ``None`` of one that is a constant.
        result: the structure of the output.
        form: shape and dtype of each output tensor, and that structure.
        random: whether the kernel has drawn random numbers.
    """

    def __init__(self, pair: Pair, template: Template) -> None:
        self.pair, self.template = pair, template
        self.autocast = forward_state("ambient", ())

    def apply(
        self, which: str, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Run the kernel or the reference in a graph of its own: where it starts and ends.

        A gradient that is asked of views stops there, also where one input was computed of another.
        """
        with torch.enable_grad():
            inside = [x.view_as(x) if x.requires_grad else x for x in tensors]
            args, kwargs = unflatten(self.template, inside)
            self.result, outputs = flatten((getattr(self.pair, which)(*args, **kwargs),))
        starts = [x for x in inside if x.requires_grad]
        self._refuse_others(which, starts, outputs)
        return starts, outputs

    def run_kernel(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        before, versions = states(tensors), versions_of(tensors)
        starts, outputs = self.apply("kernel", tensors)
        if versions != versions_of(tensors):
            raise UnsupportedError(
                f"{self.pair.name} changes an argument in place: the reference would be given "
                "other values than the kernel.",
                mend="Return what is computed, or hand it a clone.",
            )
        self.random = changed(before)
        self.form = _form(self.result, outputs)
        self.inputs = list(map(get_gradient_edge, starts))
        self.edges = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
        if not _EDGES_OWN:
            self.owners = outputs
        return outputs

    def pull_kernel(
        self, cotangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """The gradient of each input that needs one, by the kernel's own rule."""
        pairs = [(e, u) for e, u in zip(self.edges, cotangents, strict=True) if u is not None]
        ends: Any = [edge for edge, _ in pairs]
        given, kept = [cotangent for _, cotangent in pairs], graph_is_kept()
        return torch.autograd.grad(ends, self.inputs, given, retain_graph=kept, allow_unused=True)

    def pull_reference(
        self, tensors: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """The gradient of each input that needs one, by the reference."""
        if self.random:
            raise UnsupportedError(
                f"{self.pair.name} has drawn random numbers, and its reference would draw others: "
                "only its first derivative is known.",
                mend="Draw before, and pass what was drawn as an argument.",
            )
        with scope(self.autocast):
            starts, outputs = self.apply("reference", tensors)
        if (form := _form(self.result, outputs)) != self.form:
            raise DefinitionError(
                f"The reference of {self.pair.name} does not return what its kernel does.",
                given=form, expected=self.form,
                mend="Return the same structure, shapes and dtypes.",
            )  # fmt: skip
        pairs = zip(outputs, cotangents, strict=True)
        moved = [(y, u) for y, u in pairs if u is not None and y.requires_grad]
        if not moved:
            return [None] * len(starts)
        ends, given = zip(*moved, strict=True)
        graph = torch.is_grad_enabled()
        return torch.autograd.grad(ends, starts, given, create_graph=graph, allow_unused=True)

    def _refuse_others(
        self, which: str, starts: Sequence[torch.Tensor], ends: Sequence[torch.Tensor]
    ) -> None:
        """Refuse a tensor that is differentiated and no argument: its gradient would be lost."""
        seen = {x.grad_fn for x in starts}
        found: list[Any] = [get_gradient_edge(y).node for y in ends if y.requires_grad]
        while found:
            node = found.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if not node.next_functions:  # it accumulates the gradient of a leaf
                raise UnsupportedError(
                    f"The {which} of {self.pair.name} differentiates a tensor that is no argument, "
                    "whose gradient would be lost.",
                    mend="Pass it as an argument, or detach it.",
                )
            found.extend(before for before, _ in node.next_functions)


def _form(result: Template, outputs: Sequence[torch.Tensor]) -> str:
    shapes = [f"{tuple(y.shape)} {y.dtype}".replace("torch.", "") for y in outputs]
    form = ", ".join(shapes) or "no tensor"
    return form if result[1] is None else f"{form} in {result[1]}"


class _Node(torch.autograd.Function):
    """The kernel in the graph of its caller."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.call = call
        outputs = call.run_kernel(tensors)
        # The version is shared: a change of an output is seen by what the kernel has saved.
        results = apart([output.detach() for output in outputs], tensors)
        if any(call.edges):
            pairs = zip(results, call.edges, strict=True)
            ctx.mark_non_differentiable(*(result for result, edge in pairs if edge is None))
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call: _Call = ctx.call
        needs = ctx.needs_input_grad[1:]
        given = [u for u in cotangents if u is not None]
        if not given:
            return (None,) * (1 + len(needs))
        beyond = torch.is_grad_enabled() or _is_transformed() or are_batched(given)
        if beyond or not any(call.edges):
            found = call.pull_reference(ctx.saved_tensors, cotangents)
        else:
            found = call.pull_kernel(cotangents)
        following = iter(found)
        return (None, *(next(following) if need else None for need in needs))


# Where compiled code breaks its graph, Dynamo would take these for functions of the program.
for _rule in (run, _Node.forward, _Node.backward):
    never_compile(_rule)  # type: ignore[arg-type]
