"""One published Function with inputs that fit it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Published", "positive", "randn", "uniform"]

Inputs = Callable[[torch.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Published:
    """A Function of a package from PyPI.

    Arguments:
        name: `module:qualname` of the `torch.autograd.Function`.
        inputs: makes the arguments of `apply`; tensors that require a gradient are differentiated.
        call: how to apply it where `apply(*arguments)` is not how its package does it.
        notes: what a reader of the table should know.
        gradient: the intent that its authors document, where it is not the derivative.
        command: the arguments as one expression, for `pullback check --input`.
    """

    name: str
    inputs: Inputs
    call: Callable[..., Any] | None = None
    notes: str = ""
    gradient: str = ""
    command: str = ""

    def load(self) -> type[torch.autograd.Function]:
        """Import the class."""
        module, _, qualname = self.name.partition(":")
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        return found


def randn(generator: torch.Generator, *shape: int, dtype=torch.float64, grad: bool = True):
    """A normal tensor."""
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def uniform(generator, low: float, high: float, *shape: int, dtype=torch.float64, grad=True):
    """A uniform tensor in `[low, high)`."""
    sample = torch.rand(*shape, generator=generator, dtype=dtype)
    return (low + (high - low) * sample).requires_grad_(grad)


def positive(generator: torch.Generator, *shape: int, dtype=torch.float64, grad: bool = True):
    """A tensor of values in `[0.5, 2)`."""
    return uniform(generator, 0.5, 2.0, *shape, dtype=dtype, grad=grad)
