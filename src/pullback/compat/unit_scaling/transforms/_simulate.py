"""`simulate_format` and `simulate_fp8`: graphs whose linear layers and attention are rounded."""

import dataclasses
import logging
import sys
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pullback.compat.unit_scaling.formats import FPFormat
from pullback.compat.unit_scaling.transforms._apply import apply_transform
from pullback.errors import UnsupportedError
from pullback.internal.torch import FUSED_ATTENTION
from pullback.tracking.formats._model import check_traceable

__all__ = ["simulate_format", "simulate_fp8"]

logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

# What torch.compile keeps as one node, or torch computes at once: their products are out of reach.
_FUSED = (functional.multi_head_attention_forward, *FUSED_ATTENTION)


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
        UnsupportedError: a part of the module is scripted, or the module is tracked or compiled;
            or, when run, torch.compile does not trace it whole, or one of these products is inside
            of an operator: a custom Function, ``torch.cond``, ``nn.MultiheadAttention``.

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
    values, gradients = dataclasses.astuple(fwd_format), dataclasses.astuple(bwd_format)

    # unit_scaling's unit_scale moves itself before what is called so.
    def quantisation_backend(graph_module: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        logger.info("running quantisation backend")
        products = _products()
        _refuse_hidden(graph_module, products)
        for node in list(graph_module.graph.nodes):
            if node.op == "call_function" and node.target in products:
                logger.info("quantising function: %s", node)
                _quantise(node, products[node.target], values, gradients)
        graph_module.graph.lint()
        graph_module.recompile()
        return graph_module

    return apply_transform(module, quantisation_backend)


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


def quantise_fwd(x: Tensor, *numbers: Any) -> Tensor:
    """`FPFormat.quantise_fwd`, as a graph can call it."""
    return FPFormat(*numbers).quantise_fwd(x)


def quantise_bwd(x: Tensor, *numbers: Any) -> Tensor:
    """`FPFormat.quantise_bwd`: a copy, for a Function's view must not be changed in place."""
    return FPFormat(*numbers).quantise_bwd(x).clone()


def _quantise(
    node: fx.Node, factors: tuple[str, ...], values: tuple[Any, ...], gradients: tuple[Any, ...]
) -> None:
    def rounded(factor: Any) -> fx.Node:
        with node.graph.inserting_before(node):
            return node.graph.call_function(quantise_fwd, (factor, *values))

    count = len(factors)
    node.args = (*map(rounded, node.args[:count]), *node.args[count:])
    for name in factors:
        if name in node.kwargs:
            node.kwargs = {**node.kwargs, name: rounded(node.kwargs[name])}
    with node.graph.inserting_after(node):
        result = node.graph.call_function(quantise_bwd, (node, *gradients))
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)


def _refuse_hidden(graph_module: fx.GraphModule, products: dict[Any, Any]) -> None:
    """Refuse products that no node of the graph itself stands for."""
    for part in graph_module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if node.target in _FUSED or (part is not graph_module and node.target in products):
                raise UnsupportedError(
                    "simulate_format rounds the linear layers and attention of one graph alone.",
                    given=f"{getattr(node.target, '__name__', node.target)} inside of an operator",
                    mend="Use pullback.tracking.simulate_format, which rounds what is called.",
                )


def _products() -> dict[Any, tuple[str, ...]]:
    linear, attention = ("input", "weight"), ("query", "key", "value")
    products: dict[Any, tuple[str, ...]] = {
        functional.linear: linear,
        torch.ops.aten.linear: linear,
        torch.ops.aten.linear.default: linear,
        functional.scaled_dot_product_attention: attention,
    }
    unit_scaled = sys.modules.get("unit_scaling.functional")
    if unit_scaled is not None:
        products[unit_scaled.linear] = linear
        products[unit_scaled.scaled_dot_product_attention] = attention
    return products
