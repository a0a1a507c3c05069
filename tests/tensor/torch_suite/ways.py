"""The two ways in which a Function written for torch becomes ours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pullback

__all__ = ["both", "leaf"]


def both(make: Callable[[Any], Any]) -> Any:
    """Run a test with the Function that ``make`` writes on a base: ours, and torch's completed."""
    own = make(pullback.Function)
    third = pullback.complete(make(torch.autograd.Function))
    return pytest.mark.parametrize("function", [own, third], ids=["Function", "complete"])


def leaf(*values: float) -> torch.Tensor:
    """A leaf that wants a gradient."""
    return torch.tensor(values or (0.5, 1.5, 2.5), dtype=torch.float64, requires_grad=True)
