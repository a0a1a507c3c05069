"""`track_scales`: metrics of each value and gradient in a module's graph; and pruned graphs."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isclose
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.compat.unit_scaling.transforms._apply import apply_transform
from pullback.compat.unit_scaling.utils import std_of
from pullback.errors import ArgumentError
from pullback.gradients._check import check_strided, widen
from pullback.internal._arguments import checked
from pullback.tracking._hang import hook_gradient
from pullback.tracking.measure._dispatch import readable

__all__ = [
    "Metrics",
    "prune_non_float_tensors",
    "prune_same_scale_tensors",
    "prune_selected_nodes",
    "track_scales",
]


class Metrics:
    """Metrics of a tensor, in ``fwd``, and of its gradient, in ``bwd``.

    Arguments:
        fwd_tensor: the tensor, of any shape and floating dtype.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import Metrics
        >>> Metrics(torch.tensor([1.0, -3.0])).fwd.mean_abs
        2.0
    """

    @dataclass
    class Data:
        """The metrics of one tensor.

        Arguments:
            mean_abs: the mean of the absolute values.
            abs_mean: the absolute value of the mean.
            std: the unbiased standard deviation.
            abs_max: the largest absolute value.
            abs_min: the smallest absolute value, zero included.
            numel: the number of elements.
        """

        mean_abs: float
        abs_mean: float
        std: float
        abs_max: float
        abs_min: float
        numel: int

    def __init__(self, fwd_tensor: Tensor) -> None:
        self.fwd = self.from_tensor(fwd_tensor)
        self.bwd: Metrics.Data | None = None

    def set_bwd(self, bwd_tensor: Tensor) -> None:
        """Record the gradient's metrics.

        Arguments:
            bwd_tensor: the gradient.
        """
        self.bwd = self.from_tensor(bwd_tensor)

    def __str__(self) -> str:
        return f"fwd: {self.fwd}, bwd: {self.bwd}"

    @staticmethod
    def from_tensor(t: Tensor) -> "Metrics.Data":
        """Return the metrics of a tensor, computed in float32 or wider; NaN of no elements.

        Arguments:
            t: shape (...), any floating or complex dtype.

        Raises:
            ArgumentTypeError: no tensor.
            UnsupportedError: a sparse or nested tensor, or one without elements of its own.
        """
        check_strided(t, "Metrics", "t")
        values = widen(readable(t))
        if values.numel() == 0:
            return Metrics.Data(*(math.nan,) * 5, numel=0)
        magnitudes = values.abs()
        return Metrics.Data(
            mean_abs=magnitudes.mean().item(),
            abs_mean=values.mean().abs().item(),
            std=std_of(values),
            abs_max=magnitudes.max().item(),
            abs_min=magnitudes.min().item(),
            numel=values.numel(),
        )


@checked
def prune_non_float_tensors(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a tracked graph without the nodes that give no floating tensor.

    What used such a node uses its one floating argument instead, or ``None``.

    Arguments:
        graph: from ``scales_graph()``.

    Raises:
        ArgumentError: the graph was not tracked.
    """
    _check_tracked(graph)
    return _prune(graph, lambda node: not _is_floating(node))


@checked
def prune_same_scale_tensors(graph: fx.Graph, rtol: float = 2**-16) -> fx.Graph:
    """Return a copy of a tracked graph without nodes that have the scale of their argument.

    Nodes with no or several floating arguments stay.

    Arguments:
        graph: from ``scales_graph()``.
        rtol: the relative difference of the mean absolute value that still counts as the same.

    Raises:
        ArgumentError: the graph was not tracked.
    """

    def same(node: fx.Node) -> bool:
        floating = _floating_arguments(node)
        if not _is_floating(node) or len(floating) != 1:
            return False
        metrics, before = node.meta["metrics"], floating[0].meta["metrics"]
        pairs = (metrics.fwd, before.fwd), (metrics.bwd, before.bwd)
        return all(_is_close(one, other, rtol) for one, other in pairs)

    _check_tracked(graph)
    return _prune(graph, same)


@checked
def prune_selected_nodes(graph: fx.Graph, targets: Iterable[Any]) -> fx.Graph:
    """Return a copy of a graph without the nodes of some targets; their users get ``None``.

    Arguments:
        graph: any graph.
        targets: the functions, or names, of the nodes to remove.
    """
    wanted = list(targets)
    return _prune(graph, lambda node: node.target in wanted, joined=False)


def _prune(graph: fx.Graph, without: Callable[[fx.Node], bool], *, joined: bool = True) -> fx.Graph:
    """A copy without some nodes; ``joined``, their users get their one floating argument."""
    pruned = copy.deepcopy(graph)
    for node in [each for each in pruned.nodes if each.op != "output"]:
        if without(node):
            floating = _floating_arguments(node) if joined else []
            instead = floating[0] if len(floating) == 1 else None
            for user in list(node.users):
                for given in ("args", "kwargs"):
                    kept = fx.map_arg(
                        getattr(user, given),
                        lambda used, n=node, i=instead: i if used is n else used,
                    )
                    setattr(user, given, kept)
            pruned.erase_node(node)
    pruned.lint()
    return pruned


def _check_tracked(graph: fx.Graph) -> None:
    if any("clean_name" not in node.meta for node in graph.nodes):
        raise ArgumentError(
            "The graph carries no metrics.",
            given="a graph that was not tracked, or not run",
            expected="track_scales(module).scales_graph() after a forward",
        )


def _is_floating(node: fx.Node) -> bool:
    return node.meta.get("outputs_float_tensor", False)


def _floating_arguments(node: fx.Node) -> list[fx.Node]:
    return [each for each in node.args if isinstance(each, fx.Node) and _is_floating(each)]


def _is_close(one: Metrics.Data | None, other: Metrics.Data | None, rtol: float) -> bool:
    if one is None or other is None:
        return one is other
    return isclose(one.mean_abs, other.mean_abs, rel_tol=rtol)


Module = TypeVar("Module", bound=nn.Module)


def track_scales(module: Module) -> Module:
    """Return a copy of a module that records metrics of each floating value and its gradient.

    After a forward, and a backward if wanted, ``copy.scales_graph()`` returns a torch.fx graph
    whose nodes carry them: ``node.meta["metrics"]`` is a `Metrics`. Floating inputs that do not
    require a gradient are given one, in the copy's graph only.

    Arguments:
        module: any module, also a plain nn.Sequential; it is left as it is.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: the module is tracked or compiled already; or, when run, torch.compile
            traced nothing.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import track_scales
        >>> model = track_scales(torch.nn.Sequential(torch.nn.ReLU()))
        >>> model(torch.tensor([-1.0, 1.0, 3.0])).sum().backward()
        >>> [round(node.meta["metrics"].fwd.std, 2)
        ...  for node in model.scales_graph().nodes if node.op != "output"]
        [2.0, 1.53]
    """
    tracking = _Tracking()
    tracked: Any = apply_transform(module, tracking)
    tracked.scales_graph = tracking.scales_graph
    return tracked


class _Tracking:
    """Keeps the graph of the last forward, with metrics of each value."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Tracking":
        memo[id(self)] = fresh = _Tracking()
        return fresh

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forget the last forward, and give floating inputs a gradient."""
        self.graph = fx.Graph()
        named = {name: _with_gradient(value) for name, value in kwargs.items()}
        return tuple(_with_gradient(value) for value in args), named

    def __call__(self, graph_module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        """Return what runs the graph and records."""

        def run(*args: Any) -> Any:
            self.graph = graph_module.graph
            return _MetricsInterpreter(graph_module).run(*args)

        return run

    def scales_graph(self) -> fx.Graph:
        """Return the graph of the last forward."""
        return self.graph


def _with_gradient(value: Any) -> Any:
    """Return a floating tensor that requires a gradient; the caller's own is left alone."""
    if isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad:
        return value.detach().requires_grad_()
    return value


def _clean(name: str) -> str:
    for prefix in ("l__self___", "L__self___", "l_", "L_"):
        name = name.replace(prefix, "")
    return name.strip("_")


class _MetricsInterpreter(fx.Interpreter):
    """Records metrics by tensor hooks: nothing is inserted or copied but the leaves' views."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shown: list[Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        floating = isinstance(value, Tensor) and value.is_floating_point()
        n.meta["clean_name"] = _clean(n.name)
        n.meta["outputs_float_tensor"] = floating
        n.meta["requires_grad"] = isinstance(value, nn.Parameter) and value.requires_grad
        if not floating:
            return value
        metrics = n.meta["metrics"] = Metrics(value)
        if not value.requires_grad or not torch.is_grad_enabled():
            return value
        if value.is_leaf:  # no hook stays on a parameter; an input may be changed in place
            parameter = isinstance(value, nn.Parameter)
            value = value.view_as(value) if parameter else value.clone()
        hook_gradient(value, metrics.set_bwd, lambda base: any(base is x for x in self.shown))
        self.shown.append(value)
        return value
