"""The names of ``unit_scaling.utils``; see `pullback.compat.unit_scaling`."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pullback.errors import ArgumentTypeError
from pullback.gradients._check import check_floating, check_strided, refuse_export, widen
from pullback.internal._arguments import checked
from pullback.internal.torch import is_known_to_export
from pullback.tensor import Function
from pullback.tracking.measure._dispatch import readable
from pullback.tracking.measure._layout import Direction
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.watch._annotate import annotate_graph, scale_text, trace_deeply
from pullback.tracking.watch._store import Seen, register_store
from pullback.tracking.watch._track import follow_operator, observe_operator, pass_through

__all__ = ["ScalePair", "ScaleTracker", "analyse_module"]


def std_of(tensor: Tensor) -> float:
    """The unbiased standard deviation, in float32 or wider; NaN of fewer than two values.

    A complex tensor has that of both parts together.
    """
    check_strided(tensor, "The scale of a tensor", "t")
    values = widen(readable(tensor))
    return float(values.std()) if values.numel() > 1 else math.nan  # there torch warns as well


@dataclass
class ScalePair:
    """The standard deviations of a tensor and of its gradient, unbiased.

    Arguments:
        forward: that of the value.
        backward: that of the gradient.

    Example:
        >>> from pullback.compat.unit_scaling import ScalePair
        >>> print(ScalePair(1.25))
        (-> 1.25, <- n/a)
    """

    forward: float | None = None
    backward: float | None = None

    def __post_init__(self) -> None:
        self._handle = register_store(self)  # by which compiled code finds it, as a tracker's store

    def __reduce__(self) -> Any:  # a copy has a handle of its own
        return type(self), (self.forward, self.backward)

    def __str__(self) -> str:
        return scale_text(self.forward, self.backward)

    def observe(self, values: Tensor, *_: Any) -> Seen:
        """Record the scale of a value."""
        self.forward = std_of(values)
        return Key(""), Place(0, 0)

    def follow(self, values: Tensor, names: Any, order: int, direction: Direction) -> None:
        """Record the scale of a gradient; tangents and gradients of gradients have no place."""
        if direction == "backward" and order == 1:
            self.backward = std_of(values)


class ScaleTracker(Function):
    """Identity that records the standard deviation of its tensor and of the gradient.

    Under vmap the scales are those of the whole batch.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import ScalePair, ScaleTracker
        >>> pair = ScalePair()
        >>> x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> ScaleTracker.track(x, pair).backward(torch.tensor([2.0, 4.0, 6.0]))
        >>> print(pair)
        (-> 1.0, <- 2.0)
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return a view of ``t`` and record its scale.

        Arguments:
            ctx: the context, which keeps the pair under the same name.
            t: shape (...), any floating or complex dtype.
            scale_tracker: where the scales are recorded.
        """
        ctx.scale_tracker = scale_tracker
        _check(t, scale_tracker)
        observe_operator(t.detach(), scale_tracker._handle, "")
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor, None, None]:
        """Return the cotangent and record its scale.

        Arguments:
            ctx: the context of forward.
            t: the gradient of the result.
        """
        # A pair asks only whether there is one.
        ticket = torch.ones(6, dtype=torch.int64, device="cpu")
        follow_operator(t.detach(), ticket, ctx.scale_tracker._handle, "", "backward", 1)
        return t, None, None

    @classmethod
    def apply(cls, t: Tensor, scale_pair: ScalePair) -> Any:
        """Return a view of ``t``; the scales of it and of its gradient are recorded.

        Arguments:
            t: shape (...), any floating or complex dtype.
            scale_pair: where the scales are recorded.

        Raises:
            ArgumentTypeError: no floating or complex tensor, or no `ScalePair`.
            UnsupportedError: a sparse or nested tensor, or torch.export with gradients.
        """
        if cls.forward is not ScaleTracker.forward or cls.backward is not ScaleTracker.backward:
            return super().apply(t, scale_pair)
        refuse_export("ScaleTracker", is_known_to_export)
        _check(t, scale_pair)
        return pass_through(t, scale_pair._handle, "")

    @staticmethod
    def track(t: Tensor, scale_tracker: ScalePair) -> Tensor:
        """Return ``ScaleTracker.apply(t, scale_tracker)``.

        Arguments:
            t: shape (...), any floating or complex dtype.
            scale_tracker: where the scales are recorded.
        """
        return ScaleTracker.apply(t, scale_tracker)


def _check(t: Any, pair: Any) -> None:
    """Refuse what cannot be tracked."""
    check_floating(t, "ScaleTracker", "t")
    if not isinstance(pair, ScalePair):
        raise ArgumentTypeError(
            "ScaleTracker records in a ScalePair.", given=f"a {type(pair).__name__}"
        )


@checked
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
    values = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    code = annotate_graph(traced, std_of, values, backward, every_input=False)
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
