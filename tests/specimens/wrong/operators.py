"""Operators of torch.library that are wrong in what they say of themselves or in numbers."""

import torch
from tests.specimens._specimen import Specimen, normal


@torch.library.custom_op("pullback_specimens::forgotten_factor", mutates_args=())
def forgotten_factor(x: torch.Tensor) -> torch.Tensor:
    """x * x, whose backward forgets the factor 2; opcheck is content."""
    return x * x


@forgotten_factor.register_fake
def _(x):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


forgotten_factor.register_autograd(
    lambda ctx, cotangent: ctx.saved_tensors[0] * cotangent, setup_context=_keep
)


@torch.library.custom_op("pullback_specimens::other_shape", mutates_args=())
def other_shape(x: torch.Tensor) -> torch.Tensor:
    """The fake kernel has another shape than the real one."""
    return x.sum(-1)


@other_shape.register_fake
def _(x):
    return torch.empty_like(x)


other_shape.register_autograd(
    lambda ctx, cotangent: cotangent.unsqueeze(-1).expand(ctx.saved_tensors[0].shape),
    setup_context=_keep,
)


@torch.library.custom_op("pullback_specimens::changes_input", mutates_args=())
def changes_input(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Counts its calls in an argument, and does not say so."""
    count.add_(1)
    return x * 2


@changes_input.register_fake
def _(x, count):
    return torch.empty_like(x)


changes_input.register_autograd(lambda ctx, cotangent: (2 * cotangent, None))


@torch.library.custom_op("pullback_specimens::saved_attribute", mutates_args=())
def saved_attribute(x: torch.Tensor) -> torch.Tensor:
    """An input kept as an attribute, which the version check does not see."""
    return x.sin()


@saved_attribute.register_fake
def _(x):
    return torch.empty_like(x)


def _attribute(ctx, inputs, output):
    ctx.x = inputs[0]


saved_attribute.register_autograd(
    lambda ctx, cotangent: ctx.x.cos() * cotangent, setup_context=_attribute
)

LIBRARY = torch.library.Library("pullback_specimens", "FRAGMENT")
LIBRARY.define("tail(Tensor x) -> Tensor")
LIBRARY.impl("tail", lambda x: x.sin(), "CompositeExplicitAutograd")


def _tail(ctx, cotangent):
    (x,) = ctx.saved_tensors
    gradient = x.cos() * cotangent
    gradient[..., x.shape[-1] // 4 * 4 :] = 0
    return gradient


torch.library.register_autograd("pullback_specimens::tail", _tail, setup_context=_keep, lib=LIBRARY)


def count():
    return normal(3), torch.zeros(1, dtype=torch.int64)


SPECIMENS = [
    Specimen(forgotten_factor, lambda: (normal(3),), "derivative"),
    Specimen(other_shape, lambda: (normal(2, 3),), "registration"),
    Specimen(changes_input, count, "registration"),
    Specimen(changes_input, count, "mutation"),
    Specimen(saved_attribute, lambda: (normal(3),), "saved"),
    Specimen("pullback_specimens::tail", lambda: (normal(2, 4),), "sizes"),
]
