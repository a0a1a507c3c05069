"""The check cases of this room, offered through the entry point group ``pullback.cases``."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from pullback.gradients._nonlinear import (
    NoiseGradientFunction,
    clip_gradient,
    dtype_gradient,
    normalise_gradient,
)
from pullback.gradients._route import replace_gradient, stop_gradient, where_gradient
from pullback.gradients._scale import reverse_gradient, scale_both, scale_forward, scale_gradient
from pullback.gradients._straight_through import (
    straight_through,
    straight_through_one_hot,
    straight_through_round,
    straight_through_sign,
    straight_through_threshold,
)
from pullback.tensor import Case

__all__ = ["REFUSES", "Inputs", "cases", "normal", "with_tensors", "with_values"]

_FORWARD = "the backward is not linear in the cotangent, so it has no transpose"
REFUSES = {
    "forward": _FORWARD,
    "forward-over-forward": _FORWARD,
    "transforms": f"torch.func.hessian runs forward mode: {_FORWARD}",
}

Inputs = Callable[[Generator], tuple[Any, ...]]


def normal(generator: Generator, *shape: int) -> Tensor:
    """Normal numbers that require a gradient."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def with_values(*rest: Any) -> Inputs:
    """Inputs of one tensor, followed by fixed arguments."""
    return lambda generator: (normal(generator, 3, 5), *rest)


def with_tensors(*shapes: tuple[int, ...]) -> Inputs:
    """Inputs of one tensor for each shape."""
    return lambda generator: tuple(normal(generator, *shape) for shape in shapes)


def _with_mask(generator: Generator) -> tuple[Tensor, Tensor]:
    return normal(generator, 3, 5), torch.rand(5, generator=generator) > 0.4


def _stop_one_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    # A function none of whose outputs has a history has nothing to check.
    return stop_gradient(x), scale_gradient(x, 1.0)


def cases() -> Iterator[Case]:
    """Return one case or more for each function of the room."""
    for gradient, refuses, rows in (
        ("surrogate", {}, _LINEAR),
        ("nonlinear", REFUSES, _NONLINEAR),
    ):
        for name, function, inputs in rows:
            yield Case(f"gradients.{name}", function, inputs, gradient, dict(refuses))


_Rows = tuple[tuple[str, Callable[..., Any], Inputs], ...]
_LINEAR: _Rows = (
    ("scale_gradient", scale_gradient, with_values(0.5)),
    ("scale_gradient.tensor", scale_gradient, with_tensors((3, 5), (5,))),
    ("scale_forward", scale_forward, with_values(3.0)),
    ("scale_forward.tensor", scale_forward, with_tensors((3, 5), (3, 1))),
    ("scale_both", scale_both, with_values(3.0, 0.5)),
    ("scale_both.tensor", scale_both, with_tensors((3, 5), (5,), (3, 1))),
    ("reverse_gradient", reverse_gradient, with_values(0.7)),
    ("stop_gradient", _stop_one_of_two, with_values()),
    ("where_gradient", where_gradient, _with_mask),
    ("replace_gradient", replace_gradient, with_tensors((3, 5), (5,))),
    ("straight_through", straight_through, with_tensors((3, 5), (3, 5))),
    ("straight_through_round", straight_through_round, with_values()),
    ("straight_through_sign", straight_through_sign, with_values()),
    ("straight_through_sign.window", partial(straight_through_sign, window=1.0), with_values()),
    ("straight_through_threshold", straight_through_threshold, with_values(0.25)),
    ("straight_through_one_hot", straight_through_one_hot, with_values()),
)
_NONLINEAR: _Rows = (
    ("clip_gradient.value", partial(clip_gradient, value=0.8), with_values()),
    ("clip_gradient.norm", partial(clip_gradient, norm=1.5), with_values()),
    ("clip_gradient.rows", partial(clip_gradient, norm=1.5, dim=-1), with_values()),
    ("normalise_gradient", normalise_gradient, with_values(2.0)),
    ("noise_gradient", NoiseGradientFunction, with_tensors((3, 5), (3, 5))),
    ("dtype_gradient", partial(dtype_gradient, dtype=torch.float64), with_values()),
    ("dtype_gradient.rounded", partial(dtype_gradient, dtype=torch.bfloat16), with_values()),
)
