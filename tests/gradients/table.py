"""One table of cases: each function of the room with what it must do, written independently."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback.gradients as room
from pullback.gradients._nonlinear import NoiseGradientFunction

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Row:
    """A function of tensors, its value and its backward in plain torch."""

    name: str
    call: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    value: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor, ...]]
    linear: bool = True
    view: bool = True

    def tensors(self, seed: int = 0, shapes: Any = None, dtype: Any = torch.float64) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return tuple(
            torch.randn(shape, generator=generator, dtype=wide).to(dtype)
            for shape in (shapes or self.shapes)
        )

    def cotangent(self, like: Tensor, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def clip_rows(g: Tensor, x: Tensor) -> tuple[Tensor]:
    return (torch.stack([row * min(1.0, 1.5 / float(row.norm())) for row in g]),)


def add_noise(x: Tensor, noise: Tensor) -> Tensor:
    return NoiseGradientFunction.apply(x, noise)


def one_hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


MASK = torch.tensor([True, False, True, True, False])
X = ((3, 5),)
ROWS = [
    Row(
        "scale_gradient", partial(room.scale_gradient, factor=0.5), X,
        lambda x: x, lambda g, x: (0.5 * g,),
    ),
    Row(
        "scale_gradient.tensor", room.scale_gradient, ((3, 5), (5,)),
        lambda x, f: x, lambda g, x, f: (g * f, torch.zeros_like(f)),
    ),
    Row(
        "scale_forward", partial(room.scale_forward, factor=3.0), X,
        lambda x: 3 * x, lambda g, x: (g,), view=False,
    ),
    Row(
        "scale_forward.tensor", room.scale_forward, ((3, 5), (3, 1)),
        lambda x, f: x * f, lambda g, x, f: (g, (g * x).sum(1, keepdim=True)), view=False,
    ),
    Row(
        "scale_both", partial(room.scale_both, forward=3.0, backward=0.5), X,
        lambda x: 3 * x, lambda g, x: (0.5 * g,), view=False,
    ),
    Row(
        "scale_both.tensor", room.scale_both, ((3, 5), (5,), (3, 1)),
        lambda x, a, b: x * a,
        lambda g, x, a, b: (g * b, (g * x).sum(0), torch.zeros_like(b)), view=False,
    ),
    Row(
        "reverse_gradient", partial(room.reverse_gradient, strength=0.7), X,
        lambda x: x, lambda g, x: (-0.7 * g,),
    ),
    Row(
        "where_gradient", partial(room.where_gradient, mask=MASK), X,
        lambda x: x, lambda g, x: (g * MASK,),
    ),
    Row(
        "replace_gradient", room.replace_gradient, ((3, 5), (5,)),
        lambda x, like: x, lambda g, x, like: (torch.zeros_like(x), g.sum(0)),
    ),
    Row(
        "straight_through", room.straight_through, ((3, 5), (3, 5)),
        lambda x, soft: x, lambda g, x, soft: (torch.zeros_like(x), g),
    ),
    Row(
        "straight_through_round", room.straight_through_round, X,
        torch.round, lambda g, x: (g,), view=False,
    ),
    Row(
        "straight_through_sign", room.straight_through_sign, X,
        torch.sign, lambda g, x: (g,), view=False,
    ),
    Row(
        "straight_through_sign.window", partial(room.straight_through_sign, window=1.0), X,
        torch.sign, lambda g, x: (g * (x.abs() <= 1),), view=False,
    ),
    Row(
        "straight_through_threshold", partial(room.straight_through_threshold, threshold=0.25), X,
        lambda x: (x > 0.25).to(x.dtype), lambda g, x: (g,), view=False,
    ),
    Row(
        "straight_through_one_hot", room.straight_through_one_hot, X,
        one_hot, lambda g, x: (g,), view=False,
    ),
    Row(
        "stop_gradient", room.stop_gradient, X,
        lambda x: x, lambda g, x: (torch.zeros_like(x),),
    ),
    Row(
        "clip_gradient.value", partial(room.clip_gradient, value=0.8), X,
        lambda x: x, lambda g, x: (g.clamp(-0.8, 0.8),), linear=False,
    ),
    Row(
        "clip_gradient.norm", partial(room.clip_gradient, norm=1.5), X,
        lambda x: x, lambda g, x: (g * min(1.0, 1.5 / float(g.norm())),), linear=False,
    ),
    Row(
        "clip_gradient.rows", partial(room.clip_gradient, norm=1.5, dim=-1), X,
        lambda x: x, clip_rows, linear=False,
    ),
    Row(
        "normalise_gradient", partial(room.normalise_gradient, norm=2.0), X,
        lambda x: x, lambda g, x: (2 * g / g.norm(),), linear=False,
    ),
    Row(
        "noise_gradient", add_noise, ((3, 5), (3, 5)),
        lambda x, noise: x, lambda g, x, noise: (g + noise, torch.zeros_like(noise)), linear=False,
    ),
    Row(
        "dtype_gradient", partial(room.dtype_gradient, dtype=torch.bfloat16), X,
        lambda x: x, lambda g, x: (g.bfloat16().double(),), linear=False,
    ),
]  # fmt: skip

STOPPED = {"stop_gradient"}
FLOWING = [row for row in ROWS if row.name not in STOPPED]
LINEAR = [row for row in FLOWING if row.linear]
NONLINEAR = [row for row in FLOWING if not row.linear]


def each(rows: list[Row]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def with_grad(tensors: Tensors) -> Tensors:
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


def gradients(row: Row, tensors: Tensors, cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
    """The gradients by plain autograd, zeros where none flows."""
    leaves = with_grad(tensors)
    output = row.call(*leaves)
    cotangent = row.cotangent(output) if cotangent is None else cotangent
    return torch.autograd.grad(output, leaves, cotangent, allow_unused=True, materialize_grads=True)
