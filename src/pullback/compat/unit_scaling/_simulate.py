"""`simulate_format` and `simulate_fp8`: graphs whose linear layers and attention are rounded."""

import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, fx, nn
from torch.nn import functional

from pullback.compat.unit_scaling._formats import FPFormat
from pullback.compat.unit_scaling._transform import Transform, apply_transform

__all__ = ["simulate_format", "simulate_fp8"]

logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)


def simulate_format(module: Module, fwd_format: FPFormat, bwd_format: FPFormat) -> Module:
    """Return a copy of a module whose linear layers and attention run in simulated formats.

    The factors of each ``linear`` and ``scaled_dot_product_attention`` are rounded to the first
    format, the gradient that comes back to its result to the second.

    Arguments:
        module: the module, which is left as it is.
        fwd_format: the format of activations and weights.
        bwd_format: the format of gradients.

    Raises:
        ArgumentTypeError: no module.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import FPFormat, simulate_format
        >>> model = simulate_format(torch.nn.Linear(2, 2), FPFormat(4, 3), FPFormat(5, 2))
        >>> model(torch.ones(1, 2)).shape
        torch.Size([1, 2])
    """
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
    __qualname__: str

    def __init__(self, fwd_format: FPFormat, bwd_format: FPFormat) -> None:
        self.fwd_format = fwd_format
        self.bwd_format = bwd_format
        # unit_scaling's unit_scale moves itself before what is called so.
        self.__qualname__ = "quantisation_backend"

    def __call__(self, graph_module: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
        """Return the graph with each product rounded."""
        products = _products()
        for node in graph_module.graph.nodes:
            target = node.target
            factors = target.factors if isinstance(target, _Quantised) else products.get(target)
            if node.op == "call_function" and factors is not None:
                logger.info("quantising function: %s", node)
                node.target = _Quantised(target, factors, self.fwd_format, self.bwd_format)
        graph_module.graph.lint()
        graph_module.recompile()
        return graph_module


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
        return self.bwd_format.quantise_bwd(self.function(*values, **kwargs))


def _products() -> dict[Any, tuple[str, ...]]:
    attention = ("query", "key", "value")
    products: dict[Any, tuple[str, ...]] = {
        functional.linear: ("input", "weight"),
        functional.scaled_dot_product_attention: attention,
    }
    unit_scaled = sys.modules.get("unit_scaling.functional")
    if unit_scaled is not None:
        products[unit_scaled.linear] = ("input", "weight")
        products[unit_scaled.scaled_dot_product_attention] = attention
    return products
