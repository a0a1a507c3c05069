"""A bare `torch.autograd.Function`, and the two ways to have it under pullback's contract.

A test written with these says each time: as torch has it, as a `pullback.Function` of the same
rules, and as `pullback.complete` makes it.
"""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pullback
from pullback.errors import PullbackError

__all__ = ["BOTH", "as_function", "both", "completed", "refusal", "right_or_refused", "second"]

Bare = type[torch.autograd.Function]
# What Python and torch write into a class by themselves.
_MADE = {"__dict__", "__weakref__", "__doc__", "_backward_cls"}


def as_function(bare: Bare, **declared: Any) -> type[pullback.Function]:
    """The rules of ``bare`` in the body of a `pullback.Function`, as its author would write it."""
    own = bare.__mro__[: bare.__mro__.index(torch.autograd.Function)]
    body = {k: v for cls in reversed(own) for k, v in vars(cls).items() if k not in _MADE}
    body |= declared
    return types.new_class(
        bare.__name__, (pullback.Function,), exec_body=lambda namespace: namespace.update(body)
    )


def completed(bare: Bare, **declared: Any) -> type[pullback.Function]:
    """What `pullback.complete` makes of ``bare``."""
    options = {name: declared[name] for name in ("gradient", "batching") if name in declared}
    return pullback.complete(bare, **options)


BOTH: tuple[Callable[..., type[pullback.Function]], ...] = (as_function, completed)
both = pytest.mark.parametrize("way", BOTH, ids=["Function", "complete"])


def second(f: Any, x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """First and second derivative of a loss whose cotangent depends on x, by autograd alone.

    A second derivative that has no graph is 0, as torch has it.
    """
    leaves = [t.detach().clone().requires_grad_() for t in (x, *others)]
    y = f(*leaves)
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    first = torch.autograd.grad((weights * y + y * y / 2).sum(), leaves, create_graph=True)
    total = sum(
        (g * torch.linspace(1, 2, g.numel(), dtype=g.dtype).view_as(g)).sum() for g in first
    )
    if not total.requires_grad:
        return (*first, *(torch.zeros_like(t) for t in leaves))
    return (*first, *torch.autograd.grad(total, leaves, materialize_grads=True))


def refusal(ask: Callable[[], Any]) -> str | None:
    """The name of the refusal that a question meets; ``None`` where it is answered."""
    try:
        ask()
    except PullbackError as error:
        return type(error).__name__
    return None


def right_or_refused(got: Callable[[], Any], want: Any, error: Any = PullbackError) -> bool:
    """Compare; ``False`` where the answer is refused by name."""
    try:
        found = got()
    except error:
        return False
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    return True
