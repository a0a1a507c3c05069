"""`track_scales`: a module that records metrics of each value and gradient in its graph."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.compat.unit_scaling._metrics import Metrics
from pullback.compat.unit_scaling._transform import apply_transform
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
    graphs: list[fx.Graph] = []

    def backend(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        interpreter = _MetricsInterpreter(graph_module)

        def run(*args: Any) -> Any:
            graphs.append(graph_module.graph)
            return interpreter.run(*args)

        return run

    tracked = apply_transform(module, backend, graphs.clear)
    run_forward = tracked.__dict__["forward"]

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = run_forward(
            *(_with_gradient(value) for value in args),
            **{name: _with_gradient(value) for name, value in kwargs.items()},
        )
        if not graphs:
            raise UnsupportedError(
                f"torch.compile traced nothing of {type(module).__name__}.",
                mend="Track it as it runs with pullback.tracking.Tracker, which needs no graph.",
            )
        return result

    tracked.__dict__["forward"] = forward
    tracked.__dict__["scales_graph"] = lambda: _join(graphs)
    return tracked


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
