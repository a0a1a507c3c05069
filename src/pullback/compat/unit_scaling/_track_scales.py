"""`track_scales`: a module that records metrics of each value and gradient in its graph."""

from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.compat.unit_scaling._metrics import Metrics
from pullback.compat.unit_scaling._transform import Transform, apply_transform
from pullback.errors import UnsupportedError

__all__ = ["track_scales"]

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
        UnsupportedError: when run, torch.compile traced nothing.

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


class _Tracking(Transform):
    """Keeps the graphs of the last forward, with metrics of each value."""

    name = "track_scales"
    rank = 2

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[fx.Graph] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Tracking":
        return _Tracking()

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forget the last forward, and give floating inputs a gradient."""
        self.graphs.clear()
        named = {name: _with_gradient(value) for name, value in kwargs.items()}
        return tuple(_with_gradient(value) for value in args), named

    def transform(self, graph_module: fx.GraphModule) -> "_Tracked":
        """Return what runs the graph and records."""
        return _Tracked(graph_module, self.graphs)

    def scales_graph(self) -> fx.Graph:
        """Return the graph of the last forward."""
        return _join(self.graphs)


class _Tracked:
    """Runs a graph and records metrics of each value: nothing can be transformed after it."""

    def __init__(self, graph_module: fx.GraphModule, graphs: list[fx.Graph]) -> None:
        self._interpreter = _MetricsInterpreter(graph_module)
        self._graph = graph_module.graph
        self._graphs = graphs

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        self._graphs.append(self._graph)
        return self._interpreter.run(*args)

    @property
    def graph(self) -> Any:
        """Nothing: a transform after this one would take what is tracked from under it."""
        raise UnsupportedError(
            "A transform was applied to a module that is tracked already.",
            mend="Apply track_scales last.",
        )


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
        value.register_hook(metrics.set_bwd)
        return value


def _join(graphs: list[fx.Graph]) -> fx.Graph:
    """Return the graphs of one forward as one: with graph breaks there are several."""
    if len(graphs) == 1:
        return graphs[0]
    joined = fx.Graph()
    results = []
    for graph in graphs:
        results.append(joined.graph_copy(graph, {}))
    if results:
        joined.output(tuple(results))
        for node in joined.nodes:
            node.meta.setdefault("clean_name", _clean(node.name))
            node.meta.setdefault("outputs_float_tensor", False)
            node.meta.setdefault("requires_grad", False)
    return joined
