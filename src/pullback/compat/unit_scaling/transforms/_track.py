"""`track_scales`: a module that records metrics of each value and gradient in its graph."""

from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.compat.unit_scaling.transforms._apply import apply_transform
from pullback.compat.unit_scaling.transforms._metrics import Metrics

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
        interpreter = _MetricsInterpreter(graph_module)

        def run(*args: Any) -> Any:
            self.graph = graph_module.graph
            return interpreter.run(*args)

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
