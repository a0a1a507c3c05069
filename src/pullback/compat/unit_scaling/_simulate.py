"""`simulate_format` and `simulate_fp8`: graphs whose linear layers and attention are rounded."""

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pullback.compat.unit_scaling._checkpoint import CHECKPOINT
from pullback.compat.unit_scaling._formats import FPFormat
from pullback.compat.unit_scaling._transform import Transform, apply_transform, in_graph
from pullback.errors import UnsupportedError
from pullback.internal.torch import FUSED_ATTENTION, HigherOrderOperator, never_compile
from pullback.tracking.formats._model import check_traceable

__all__ = ["simulate_format", "simulate_fp8"]

Products = dict[Any, tuple[str, ...]]
logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)


def simulate_format(module: Module, fwd_format: FPFormat, bwd_format: FPFormat) -> Module:
    """Return a copy of a module whose linear layers and attention run in simulated formats.

    The factors of each ``linear`` and ``scaled_dot_product_attention`` are rounded to the first
    format, the gradient that comes back to its result to the second. Other products are left:
    `pullback.tracking.simulate_format` has all.

    Arguments:
        module: the module, which is left as it is.
        fwd_format: the format of activations and weights.
        bwd_format: the format of gradients.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: a part of the module is transformed already, or scripted; or, when run,
            one of these products is in no graph of torch.compile, or inside of an operator: a
            custom Function, ``torch.cond``, ``nn.MultiheadAttention``.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling.formats import FPFormat
        >>> from pullback.compat.unit_scaling.transforms import simulate_format
        >>> model = simulate_format(torch.nn.Linear(2, 2), FPFormat(4, 3), FPFormat(5, 2))
        >>> model(torch.ones(1, 2)).shape
        torch.Size([1, 2])
    """
    if isinstance(module, nn.Module):
        check_traceable(module)
    return apply_transform(module, _Simulation(fwd_format, bwd_format))


def simulate_fp8(module: Module) -> Module:
    """Return `simulate_format` with E4M3 values and E5M2 gradients.

    Arguments:
        module: the module, which is left as it is.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import simulate_fp8
        >>> simulate_fp8(torch.nn.Linear(2, 2))(torch.ones(1, 2)).shape
        torch.Size([1, 2])
    """
    return simulate_format(module, FPFormat(4, 3), FPFormat(5, 2))


class _Simulation(Transform):
    """Puts `_Quantised` products in the place of products, also of those that are so already."""

    name = "simulate_format"
    rank = 1
    needs_graph = False

    def __init__(self, fwd_format: FPFormat, bwd_format: FPFormat) -> None:
        super().__init__()
        self.formats = fwd_format, bwd_format
        # unit_scaling's unit_scale moves itself before what is called so.
        self.__qualname__ = "quantisation_backend"

    def transform(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """Return the graph with each product rounded."""
        logger.info("running quantisation backend")
        products = _products()
        # What is checkpointed is a graph of its own inside of this one.
        for part in graph_module.modules():
            if not isinstance(part, fx.GraphModule):
                continue
            for node in part.graph.nodes:
                _check_node(part, node, products)
                self._quantise(node, products)
            part.graph.lint()
            part.recompile()
        return graph_module

    def _quantise(self, node: fx.Node, products: Products) -> None:
        target: Any = node.target
        factors = target.factors if isinstance(target, _Quantised) else products.get(target)
        if node.op == "call_function" and factors is not None:
            logger.info("quantising function: %s", node)
            node.target = _Quantised(target, factors, *self.formats)

    def around(self) -> AbstractContextManager[Any]:
        """Refuse the products that are in no graph."""
        return _Sentinel()


class _Sentinel(TorchFunctionMode):
    """Refuses a product that torch.compile left in eager code, when it is called."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not in_graph() and (func in _products() or func in _FUSED):
            raise _refusal(f"{func.__name__}, in code that torch.compile does not trace")
        return func(*args, **(kwargs or {}))


# Compiled by itself it would take every product for a part of a graph.
never_compile(_Sentinel.__torch_function__)

# What torch.compile keeps as one node, or torch computes at once: their products are out of reach.
_FUSED = (functional.multi_head_attention_forward, *FUSED_ATTENTION)


def _check_node(part: fx.GraphModule, node: fx.Node, products: Products) -> None:
    """Refuse what multiplies where it cannot be rounded, or would be rounded otherwise again."""
    if node.target in _FUSED:
        raise _refusal(f"{node.target.__name__}, as nn.MultiheadAttention calls it")  # type: ignore[union-attr]
    if not isinstance(node.target, HigherOrderOperator) or node.target is CHECKPOINT:
        return
    graphs = (getattr(part, str(each.target), None) for each in node.all_input_nodes)
    bodies = (b for graph in graphs if isinstance(graph, fx.GraphModule) for b in graph.modules())
    nodes = (n for body in bodies if isinstance(body, fx.GraphModule) for n in body.graph.nodes)
    if any(n.target in products or n.target in _FUSED for n in nodes):
        raise _refusal(f"a product inside of {node.target.name()}, whose backward has its own")


def _refusal(given: str) -> UnsupportedError:
    return UnsupportedError(
        "simulate_format rounds linear layers and attention in graphs of torch.compile alone.",
        given=given,
        mend="Use pullback.tracking.simulate_format, which rounds what is called as it is called.",
    )


class _Quantised:
    """A product with rounded factors and a rounded gradient."""

    def __init__(
        self,
        function: Callable[..., Any],
        factors: tuple[str, ...],
        fwd_format: FPFormat,
        bwd_format: FPFormat,
    ) -> None:
        self.function = function
        self.factors = factors
        self.fwd_format = fwd_format
        self.bwd_format = bwd_format
        self.__name__ = f"quantised_{getattr(function, '__name__', 'product')}"
        self.__module__ = __name__
        self.__qualname__ = self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        values = list(args)
        for place, name in enumerate(self.factors):
            if place < len(values):
                values[place] = self.fwd_format.quantise_fwd(values[place])
            elif name in kwargs:
                kwargs[name] = self.fwd_format.quantise_fwd(kwargs[name])
        # A custom Function's view must not be changed in place; a product may be.
        return self.bwd_format.quantise_bwd(self.function(*values, **kwargs)).clone()


def _products() -> Products:
    attention = ("query", "key", "value")
    products: Products = {
        functional.linear: ("input", "weight"),
        functional.scaled_dot_product_attention: attention,
        torch.ops.aten.linear: ("input", "weight"),
        torch.ops.aten.linear.default: ("input", "weight"),
    }
    unit_scaled = sys.modules.get("unit_scaling.functional")
    if unit_scaled is not None:
        products[unit_scaled.linear] = ("input", "weight")
        products[unit_scaled.scaled_dot_product_attention] = attention
    return products
