"""`annotate`: a model's code, with the scales of each value and its gradient beside each line."""

import copy
import math
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal, Protocol, get_type_hints, runtime_checkable

import torch
from torch import Tensor, fx, nn

from pullback import gradients
from pullback.errors import ArgumentError, UnsupportedError
from pullback.gradients._module import GradientModule
from pullback.internal._arguments import checked
from pullback.internal.torch import BatchNormalisation, pytree
from pullback.tensor.values._random import replaying, states
from pullback.tracking._hang import hook_gradient
from pullback.tracking._outputs import is_floating
from pullback.tracking.measure._statistics import Statistics

__all__ = ["annotate", "annotate_graph", "scale_text", "trace_deeply"]

Statistic = Literal["scale", "std"]


@runtime_checkable
class Writable(Protocol):
    """An open file for text."""

    def write(self, text: str, /) -> object:
        """Write a text."""
        ...


@checked
def annotate(
    model: nn.Module,
    *inputs: Any,
    cotangent: Tensor | None = None,
    file: Writable | None = None,
    statistic: Statistic = "scale",
) -> str:
    """Print a model's code with ``(-> forward, <- backward)`` scales beside each line.

    The model is traced into a torch.fx graph through all of its modules and run once, forward
    and backward. The scale is the root mean square, as everywhere in this room; ``n/a`` stands
    where there is no gradient. Nothing of the model or the inputs is changed: no ``.grad``, no
    buffer, no random state.

    Arguments:
        model: a module that torch.fx can trace: no control flow that depends on data.
        inputs: its positional arguments; floating tensors get a gradient.
        cotangent: what is fed back into the output, of its shape; by default ones for an output
            of one element and standard normal numbers of seed 0 for others.
        file: where to print to; by default the standard output.
        statistic: ``"scale"``, or ``"std"`` for the standard deviation; both as in `Statistics`.

    Returns:
        The text that was printed.

    Raises:
        ArgumentTypeError: the model is no module, the file none, or there is no such statistic.
        ArgumentError: the cotangent does not fit the output.
        UnsupportedError: torch.fx cannot trace the model.

    Example:
        >>> import torch
        >>> from pullback.tracking import annotate
        >>> text = annotate(torch.nn.ReLU(), torch.tensor([-1.0, 1.0, 3.0]),
        ...                 cotangent=torch.tensor([1.0, 2.0, 3.0]))
        def forward(self, input : torch.Tensor) -> torch.Tensor:
            input_1 = input;  (-> 1.91, <- 2.08)
            relu = torch.nn.functional.relu(input_1, inplace = False);  (-> 1.83, <- 2.16)
            return relu
    """
    traced = trace_deeply(model)

    def measure(values: Tensor) -> float:
        return getattr(Statistics.of(values), statistic)

    text = annotate_graph(traced, measure, inputs, cotangent)
    print(text, file=sys.stdout if file is None else file)
    return text


# Layers whose forward looks at its data, or at the type of it, so that they stay one line.
_OPAQUE = (
    GradientModule,
    BatchNormalisation,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)


class _DeepTracer(fx.Tracer):
    """Traces into every module that can be traced, or into none."""

    recurse = True
    proxy_buffer_attributes = True  # or tracing would itself run what changes a buffer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self.recurse or isinstance(m, _OPAQUE)


def trace_deeply(
    model: nn.Module,
    *,
    recurse: bool = True,
    modules: tuple[ModuleType, ...] = (),
    functions: tuple[Callable[..., Any], ...] = (),
) -> fx.GraphModule:
    """Return a model's graph through all of its modules.

    Functions of ``modules``, and of math and `pullback.gradients` always, are kept as one node, as
    ``functions`` are.
    """
    # torch annotates this tuple as one of a single module.
    wrapped: Any = (math, gradients, *modules)
    tracer = _DeepTracer(autowrap_modules=wrapped, autowrap_functions=functions)
    tracer.recurse = recurse
    try:
        # A copy with the same parameters: what a forward assigns while it is traced are proxies.
        # What an earlier forward left there with a graph cannot be copied, and is shared as well.
        left = (each for part in model.modules() for each in vars(part).values())
        shared = [*model.parameters(), *(each for each in left if isinstance(each, Tensor))]
        own = copy.deepcopy(model, {id(each): each for each in shared})
        graph = tracer.trace(own)
    except Exception as error:
        raise UnsupportedError(
            f"torch.fx cannot trace {type(model).__name__}.",
            given=f"{type(error).__name__}: {error}".splitlines()[0],
            expected="a forward whose control flow does not depend on data",
            mend="Annotate its parts, or track it as it runs with pullback.tracking.Tracker.",
        ) from error
    _resolve_annotations(graph, own.forward)
    return fx.GraphModule(tracer.root, graph)


def _resolve_annotations(graph: fx.Graph, forward: Callable[..., Any]) -> None:
    """Put types in the place of annotations that are text, which torch would print as ``_Tensor_``.

    A name that is known to type checkers alone leaves its forward without annotations.
    """
    if not any(isinstance(node.type, str) for node in graph.nodes):
        return
    try:
        known = get_type_hints(forward)
    except Exception:  # text may hold any expression
        known = {}
    for node in graph.nodes:
        if isinstance(node.type, str):
            name = "return" if node.op == "output" else str(node.target).lstrip("*")
            node.type = known.get(name)


class _ScalesInterpreter(fx.Interpreter):
    """Runs a graph and records the scale of each floating value and of its gradient.

    Gradients are seen by tensor hooks: nothing is inserted, so that in-place operations and
    views behave as they do in the model.
    """

    def __init__(self, module: fx.GraphModule, measure: Callable[[Tensor], float]) -> None:
        super().__init__(module)
        self.measure = measure
        # For each node, by name: the scale of its value and of its gradient.
        self.scales: dict[str, list[float | None]] = {}
        self.leaves: dict[str, Tensor] = {}
        self.shown: list[Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and record the scale of what it gives, later its gradient's."""
        value = super().run_node(n)
        if n.op == "output" or not is_floating(value):
            return value
        pair: list[float | None] = [self.measure(value.detach()), None]
        self.scales[n.name] = pair

        def see(gradient: Tensor) -> None:
            pair[1] = self.measure(gradient.detach())

        if value.requires_grad:
            hook_gradient(value, see, self.is_shown)
        self.shown.append(value)
        return value

    def is_shown(self, value: Tensor) -> bool:
        """Whether a tensor is the value of a node until now."""
        return any(value is each for each in self.shown)

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute; a parameter as a leaf of its own, so that the model sees nothing."""
        value = super().fetch_attr(target)
        if not isinstance(value, nn.Parameter):
            return value
        if target not in self.leaves:
            self.leaves[target] = value.detach().requires_grad_(value.requires_grad)
        return self.leaves[target]


def annotate_graph(
    traced: fx.GraphModule,
    measure: Callable[[Tensor], float],
    inputs: tuple[Any, ...],
    cotangent: Tensor | None,
    *,
    every_input: bool = True,
) -> str:
    """Run a graph forward and backward and return its code with scales; the model is left alone.

    Each floating input gets a gradient, or without ``every_input`` only those that require one.
    """
    interpreter = _ScalesInterpreter(traced, measure)
    leaves: list[Tensor] = []
    # An in-place operation of the model must not reach the caller's data, nor a leaf.
    copies = pytree.tree_map_only(Tensor, lambda each: _copy(each, leaves, every_input), inputs)
    given = [each for each in pytree.tree_leaves(copies) if isinstance(each, Tensor)]
    drawn = states([*interpreter.module.parameters(), *given])
    with replaying(drawn), torch.enable_grad():
        result = interpreter.run(*copies)
        results = pytree.tree_leaves(result)
        outputs = [each for each in results if isinstance(each, Tensor) and each.requires_grad]
        cotangents = _cotangents(outputs, cotangent)
        leaves += interpreter.leaves.values()
        leaves += interpreter.module.parameters()
        leaves = [leaf for leaf in leaves if leaf.requires_grad]
        if outputs and leaves:
            torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    notes = {name: scale_text(*pair) for name, pair in interpreter.scales.items()}
    lines = (_annotate_line(line, notes) for line in traced.code.splitlines())
    return "\n".join(line for line in lines if line.strip()).strip()


def _copy(tensor: Tensor, leaves: list[Tensor], every_input: bool) -> Tensor:
    if not is_floating(tensor) or not (every_input or tensor.requires_grad):
        return tensor.detach().clone()
    leaf = tensor.detach().clone().requires_grad_()
    leaves.append(leaf)
    return leaf.clone()


def _cotangents(outputs: list[Tensor], cotangent: Tensor | None) -> list[Tensor]:
    if cotangent is not None:
        if len(outputs) != 1 or outputs[0].shape != cotangent.shape:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs) or "none"
            raise ArgumentError(
                "The cotangent does not fit the output.",
                given=f"a cotangent of shape {tuple(cotangent.shape)}",
                expected=f"the shape of the one differentiable output; there are: {shapes}",
            )
        return [cotangent.to(outputs[0].dtype)]
    generator = torch.Generator().manual_seed(0)
    return [
        torch.ones_like(output)
        if output.numel() == 1
        else torch.randn(output.shape, generator=generator, device="cpu").to(output)
        for output in outputs
    ]


def scale_text(forward: float | None, backward: float | None) -> str:
    """Return ``(-> forward, <- backward)`` with three digits, and n/a for what is missing."""
    first, second = ("n/a" if scale is None else f"{scale:.3}" for scale in (forward, backward))
    return f"(-> {first}, <- {second})"


def _annotate_line(line: str, notes: Mapping[str, str]) -> str:
    if line.startswith(f"{torch.fx.wrap.__module__}.wrap"):
        return ""
    if line.startswith("def "):
        names = re.findall(r"[(,]\s*\*{0,2}(\w+)", line)
        shown = [notes[name] for name in names if name in notes]
        return "  ".join([line, ", ".join(shown)]) if shown else line
    line = re.sub(r";\s+[\w\s=]+= None$", "", line)  # fx frees what is used up
    made = re.match(r"\s*(\w+)(?:\s*:[^=]+)? = ", line)
    if made and made[1] in notes:
        return f"{line};  {notes[made[1]]}"
    return line
