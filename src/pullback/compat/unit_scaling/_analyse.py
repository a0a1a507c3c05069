"""`ScaleTrackingInterpreter` and `analyse_module`."""

import importlib
import importlib.util
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor, fx, nn

from pullback.compat.unit_scaling._std import std_of
from pullback.compat.unit_scaling._tracker import ScalePair
from pullback.tracking.watch._annotate import (
    ScalesInterpreter,
    annotate_code,
    measure_scales,
    scale_text,
    trace_deeply,
)

__all__ = ["ScaleTrackingInterpreter", "analyse_module"]


class ScaleTrackingInterpreter(fx.Interpreter):
    """Runs a graph and records a `ScalePair` for each floating value, in ``scales``.

    Arguments:
        module: the graph to run; call backward on its result to have the gradients.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import ScaleTrackingInterpreter
        >>> graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        >>> interpreter = ScaleTrackingInterpreter(graph)
        >>> x = torch.tensor([-1.0, 1.0, 3.0], requires_grad=True)
        >>> interpreter.run(x).sum().backward()
        >>> {name: str(pair) for name, pair in interpreter.scales.items()}
        {'input_1': '(-> 2.0, <- 0.577)', '_0': '(-> 1.53, <- 0.0)'}
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.scales: OrderedDict[str, ScalePair] = OrderedDict()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and record the scales of what it gives."""
        value = super().run_node(n)
        if n.op == "output" or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        pair = self.scales[n.name] = ScalePair(std_of(value))
        if not value.requires_grad:
            return value
        if value.is_leaf:  # no hook stays on a tensor of the caller's
            value = value.view_as(value)

        def see(gradient: Tensor) -> None:
            pair.backward = std_of(gradient)

        value.register_hook(see)
        return value


def analyse_module(
    module: nn.Module,
    inputs: Tensor | tuple[Tensor, ...],
    backward: Tensor | None = None,
    recurse_modules: bool = True,
    syntax_highlight: bool = True,
    autowrap_modules: tuple[ModuleType, ...] | None = None,
    autowrap_functions: tuple[Callable[..., Any], ...] = (),
) -> str:
    """Return a module's code with ``(-> forward, <- backward)`` scales beside each line.

    Arguments:
        module: a module that torch.fx can trace.
        inputs: its input or inputs; those that require a gradient show one.
        backward: what is fed back into the output; ones for a scalar, and standard normal
            numbers for others, by default.
        recurse_modules: whether to trace into the module's children.
        syntax_highlight: whether to colour the code for a terminal.
        autowrap_modules: Python modules whose functions stay one line; by default math, and
            einops and unit_scaling.functional where they are installed or loaded.
        autowrap_functions: more functions that stay one line.

    Raises:
        UnsupportedError: torch.fx cannot trace the module.
        ArgumentError: ``backward`` does not fit the output.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import analyse_module
        >>> x = torch.tensor([-1.0, 1.0, 3.0]).requires_grad_()
        >>> print(analyse_module(torch.nn.Tanh(), x, torch.ones(3), syntax_highlight=False))
        def forward(self, input : Tensor) -> Tensor:
            input_1 = input;  (-> 2.0, <- 0.237)
            tanh = torch.tanh(input_1);  (-> 0.954, <- 0.0)
            return tanh
    """
    modules = _known_modules() if autowrap_modules is None else autowrap_modules
    traced = trace_deeply(
        module, recurse=recurse_modules, modules=modules, functions=autowrap_functions
    )
    values = inputs if isinstance(inputs, tuple) else (inputs,)
    scales = measure_scales(ScalesInterpreter(traced, std_of), values, backward, every_input=False)
    notes = {name: scale_text(*pair) for name, pair in scales.items()}
    code = annotate_code(traced.code, notes)
    for long, short in _SHORT.items():
        code = code.replace(long, short)
    return _highlight(code) if syntax_highlight else code


_SHORT = {
    "unit_scaling_functional_": "U.",
    ": torch.Tensor": ": Tensor",
    "-> torch.Tensor": "-> Tensor",
}


def _known_modules() -> tuple[ModuleType, ...]:
    modules: list[ModuleType] = [math]
    if importlib.util.find_spec("einops") is not None:
        modules.append(importlib.import_module("einops"))
    if "unit_scaling.functional" in sys.modules:
        modules.append(sys.modules["unit_scaling.functional"])
    return tuple(modules)


def _highlight(code: str) -> str:
    # pygments comes with rich, which the base install has.
    import pygments
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import PythonLexer

    return pygments.highlight(code, PythonLexer(), TerminalFormatter())
