"""`simulate_format` and `simulate_fp8`: graphs whose linear layers and attention are rounded."""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pullback.compat.unit_scaling._formats import FPFormat
from pullback.compat.unit_scaling._transform import Transform, apply_transform, in_graph
from pullback.errors import UnsupportedError
from pullback.internal._open import open_function
from pullback.internal.torch import never_compile, wrap_recomputation
from pullback.tracking.formats._model import check_traceable

__all__ = ["simulate_format", "simulate_fp8"]

logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)


def simulate_format(module: Module, fwd_format: FPFormat, bwd_format: FPFormat) -> Module:
    """Return a copy of a module whose linear layers and attention run in simulated formats.

    The factors of each ``linear`` and ``scaled_dot_product_attention`` are rounded to the first
    format, the gradient that comes back to its result to the second. Other products are left,
    among them those of queries, keys and values in ``nn.MultiheadAttention`` with
    ``need_weights=True``, which are matrix products; `pullback.tracking.simulate_format` has all.

    Arguments:
        module: the module, which is left as it is.
        fwd_format: the format of activations and weights.
        bwd_format: the format of gradients.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: a part of the module is transformed already, or scripted; or, when run, a
            custom Function multiplies, or a branch of torch.cond rounds stochastically.

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
        self.fwd_format = fwd_format
        self.bwd_format = bwd_format
        # unit_scaling's unit_scale moves itself before what is called so.
        self.__qualname__ = "quantisation_backend"

    def transform(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """Return the graph with each product rounded."""
        products = _products()
        # What is checkpointed or conditional is a graph of its own inside of this one.
        for part in graph_module.modules():
            if isinstance(part, fx.GraphModule):
                self._quantise(part, products)
        return graph_module

    def _quantise(self, part: fx.GraphModule, products: dict[Any, tuple[str, ...]]) -> None:
        for node in part.graph.nodes:
            target = node.target
            factors = target.factors if isinstance(target, _Quantised) else products.get(target)
            if node.op == "call_function" and factors is not None:
                logger.info("quantising function: %s", node)
                node.target = _Quantised(target, factors, self.fwd_format, self.bwd_format)
            elif target is functional.multi_head_attention_forward:
                node.target = _Within(target, (self,))  # torch.compile does not trace into it
            elif isinstance(target, _Within):
                node.target = _Within(target.function, (*target.simulations, self))
            elif target is torch.ops.higher_order.autograd_function_apply:
                _refuse_products(part, node, products)
            elif target is torch.ops.higher_order.cond:
                self._refuse_drawing(part, node, products)
        part.graph.lint()
        part.recompile()

    def _refuse_drawing(
        self, part: fx.GraphModule, node: fx.Node, products: dict[Any, tuple[str, ...]]
    ) -> None:
        drawing = self.fwd_format.rounding == "stochastic" and torch.is_grad_enabled()
        if drawing and _multiplies(part, node, products):
            raise UnsupportedError(
                "simulate_format cannot round stochastically inside of torch.cond, whose backward "
                "computes its branch again with other random numbers.",
                given="torch.cond with a linear layer or attention in a branch",
                mend='Round values with rounding="nearest", or run without gradients.',
            )

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Round the products that are in no graph."""
        with _unfused(), _Untraced(self):
            yield


class _Untraced(TorchFunctionMode):
    """Rounds each product that torch.compile left in eager code, when it is called.

    Arguments:
        everywhere: also what is called in a graph.
    """

    def __init__(self, simulation: _Simulation, *, everywhere: bool = False) -> None:
        super().__init__()
        self.simulation = simulation
        self.everywhere = everywhere
        self.products = _products()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if in_graph() and not self.everywhere:
            return func(*args, **kwargs)
        wrap_recomputation(self, self.recomputed)
        factors = self.products.get(func)
        if factors is not None:
            formats = self.simulation.fwd_format, self.simulation.bwd_format
            return _Quantised(func, factors, *formats)(*args, **kwargs)
        opened = open_function(func)
        if opened is None:
            return func(*args, **kwargs)
        with self:  # the mode is off inside of this method; the function's own products count
            return opened(*args, **kwargs)

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What activation checkpointing runs again: in such a mode as well."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _Untraced(self.simulation):
                return function(*args, **kwargs)

        return run


# Compiled by itself it would take every product for a part of a graph.
never_compile(_Untraced.__torch_function__)


class _Unfused:
    """Keeps encoder layers from calling one function for all of their products.

    The setting is one of the process: the first forward that begins changes it, and the last that
    ends gives it back, in whatever threads they run.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.before = True

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.running == 0:
                self.before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self.running += 1
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1
                if self.running == 0:
                    torch.backends.mha.set_fastpath_enabled(self.before)


_unfused = _Unfused()


def _refuse_products(
    part: fx.GraphModule, node: fx.Node, products: dict[Any, tuple[str, ...]]
) -> None:
    if _multiplies(part, node, products):
        raise UnsupportedError(
            "simulate_format cannot round inside of a custom Function, whose backward multiplies "
            "out of reach.",
            given="a torch.autograd.Function with a linear layer or attention in it",
            mend="Write its forward without the Function, or leave this part out.",
        )


def _multiplies(part: fx.GraphModule, node: fx.Node, products: dict[Any, tuple[str, ...]]) -> bool:
    """Whether a graph that a node is given has products, in itself or in a graph inside of it."""
    graphs = (getattr(part, str(each.target), None) for each in node.all_input_nodes)
    bodies = (b for graph in graphs if isinstance(graph, fx.GraphModule) for b in graph.modules())
    nodes = (n for body in bodies if isinstance(body, fx.GraphModule) for n in body.graph.nodes)
    known = {*products, functional.multi_head_attention_forward}
    return any(n.target in known or isinstance(n.target, _Quantised | _Within) for n in nodes)


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


class _Within:
    """A function of a graph whose own products are rounded, by the mode for eager code."""

    def __init__(self, function: Callable[..., Any], simulations: tuple[_Simulation, ...]) -> None:
        self.function = function
        self.simulations = simulations
        self.__name__ = getattr(function, "__name__", "function")
        self.__module__ = __name__
        self.__qualname__ = self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as modes:
            for simulation in self.simulations:
                modes.enter_context(_Untraced(simulation, everywhere=True))
            return self.function(*args, **kwargs)


def _products() -> dict[Any, tuple[str, ...]]:
    attention = ("query", "key", "value")
    products: dict[Any, tuple[str, ...]] = {
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
