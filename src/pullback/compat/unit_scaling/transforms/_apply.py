"""Graph transforms of modules, which may be chained, over torch.compile's tracer.

A transformed module keeps what was done to it under unit_scaling's own names, ``backends`` and
``base_forward``, so that its transforms and ours chain. A backend that is a function gives a graph
for the next one, such as that of `simulate_format`, whose linear layers and attention are rounded;
one that is an object looks on or compiles, and is the last.
"""

import copy
import dataclasses
import itertools
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pullback.compat.unit_scaling.formats import FPFormat
from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.internal.torch import FUSED_ATTENTION, graph_break, never_compile
from pullback.tracking.formats._model import check_traceable

__all__ = ["apply_transform", "compile", "simulate_format", "simulate_fp8"]


logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

_TORCH = str(Path(torch.__file__).parent)
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_numbers = itertools.count()
# What torch.compile keeps as one node, or torch computes at once: their products are out of reach.
_FUSED = (functional.multi_head_attention_forward, *FUSED_ATTENTION)


def apply_transform(module: Module, backend: Any) -> Module:
    """Return a copy of a module whose forward is traced into one graph and given to a backend."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            "Only modules can be transformed.",
            given=f"a {type(module).__name__}",
            expected="an nn.Module",
        )
    for name, part in module.named_modules():
        if isinstance(vars(part).get("forward"), types.FunctionType) and part is not module:
            raise _set_forward(name)
    transformed: Any = copy.deepcopy(module)
    earlier = vars(transformed).get("backends", [])
    if not all(isinstance(each, types.FunctionType) for each in earlier):
        raise UnsupportedError(
            "The module is tracked or compiled, and what does that comes last.",
            mend="Apply track_scales or compile after the other transforms, and one of them only.",
        )
    base = vars(transformed).get("base_forward", transformed.forward)
    if isinstance(base, types.FunctionType):
        raise _set_forward(type(module).__name__)
    transformed.backends, transformed.base_forward = [*earlier, backend], base
    transformed.forward = _Runner(transformed)
    return transformed


def _set_forward(name: str) -> UnsupportedError:
    return UnsupportedError(
        "A forward that was set on a module may hold the module, so that a copy would run the "
        "original.",
        given=f"a function that was set on {name}",
        mend="Make a class with this forward.",
    )


class _Runner:
    """Runs a module's forward through its backends, traced anew for each shape of its inputs."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            graph_break(
                "A transformed module is traced by its own transforms, which an outer "
                "torch.compile would lose. Compile without fullgraph=True, and it runs as it is, "
                "or use pullback.compat.unit_scaling.compile."
            )
        for backend in self.module.backends:
            if hasattr(backend, "begin"):
                args, kwargs = backend.begin(args, kwargs)
        values = (*args, *kwargs.values())
        key = tuple(value.shape for value in values if isinstance(value, Tensor))
        if key not in self.compiled:
            self.compiled[key] = _trace(self.module.base_forward, self.module.backends)
        return self.compiled[key](*args, **kwargs)

    def __reduce__(self) -> Any:  # a copy traces for itself
        return _Runner, (self.module,)


never_compile(_Runner.__call__)


def _trace(forward: Any, backends: list[Any]) -> Callable[..., Any]:
    """Return a forward that goes through backends as one graph, or refuses if none ran.

    torch.compile runs eagerly without a word where it is turned off and under a dispatch mode.
    """
    ran = []

    def run_all(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        result: Any = graph_module
        try:
            _refuse_checkpoints(graph_module)
            for backend in backends:
                result = backend(result, example_inputs)
        except UnsupportedError as error:  # which torch.compile would wrap if it rose here
            return _raises(error)

        def run(*args: Any) -> Any:
            ran.append(True)
            return result(*args)

        return run

    bound = (forward.__self__,) if isinstance(forward, types.MethodType) else ()
    traced = torch.compile(
        _frame_of(getattr(forward, "__func__", forward)),
        backend=run_all, dynamic=False, fullgraph=True,
    )  # fmt: skip

    def run_traced(*args: Any, **kwargs: Any) -> Any:
        ran.clear()
        value = traced(*bound, *args, **kwargs)
        if not ran:
            raise UnsupportedError(
                "torch.compile traced nothing, so that nothing was transformed.",
                given="code or a mode that it does not trace",
                mend="Use pullback.tracking, which needs no graph: Tracker, or simulate_format.",
            )
        return value

    return run_traced


def _raises(error: UnsupportedError) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise error

    return refuse


def _refuse_checkpoints(graph_module: fx.GraphModule) -> None:
    """Refuse what runs again outside of a compiler: it would draw other random numbers."""
    if any(node.target is _CHECKPOINT for node in graph_module.graph.nodes):
        raise UnsupportedError(
            "Transforms do not reach into activation checkpoints.",
            given="torch.utils.checkpoint in the forward",
            mend="Turn checkpointing off, or use pullback.tracking, which needs no graph.",
        )


def _frame_of(forward: Any) -> Callable[..., Any]:
    """Return a forward as a function with a code object of its own: its cache is no other's.

    torch.compile skips frames whose file is torch's, so that a root like nn.Sequential would not
    be traced at all; such a forward is called from a frame of ours.
    """
    code = getattr(forward, "__code__", None)
    if code is None or code.co_filename.startswith(_TORCH):

        def frame(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        return _frame_of(frame)
    code = code.replace(co_name=f"forward_{next(_numbers)}")
    fresh = types.FunctionType(
        code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    fresh.__kwdefaults__ = forward.__kwdefaults__
    return fresh


class _Compilation:
    """Compiles what the other backends give."""

    def __call__(self, graph_module: Any, example_inputs: list[Any]) -> Any:
        return torch.compile(graph_module, dynamic=False)


def compile(module: Module) -> Module:  # noqa: A001 - the name that callers use
    """Return a copy of a module that torch.compile compiles, with its other transforms.

    ``torch.compile`` itself runs a transformed module as it is.

    Arguments:
        module: the module, which is left as it is.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: the module is tracked or compiled already.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import compile, simulate_fp8
        >>> model = compile(simulate_fp8(torch.nn.Linear(2, 2)))
        >>> len(model.backends)
        2
    """
    return apply_transform(module, _Compilation())


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
