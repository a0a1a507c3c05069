"""What the tables of specimens are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Mend", "Specimen", "normal", "positive"]


@dataclass(frozen=True)
class Specimen:
    """A Function with inputs; a wrong one names the clause that must catch it.

    Where what it does wrong fails no check, it names the verdict too.
    Where it is torch that answers wrongly, a newer torch may not.
    """

    function: Any
    inputs: Callable[[], tuple[Any, ...]]
    clause: str = ""
    gradient: str | None = None
    verdict: str = ""
    mended: str = ""  # the torch that answers it rightly, and those that follow

    @property
    def id(self) -> str:
        named = getattr(self.function, "_qualname", str(self.function))  # of an operator
        name = getattr(self.function, "__name__", named)
        return f"{self.clause}-{name}" if self.clause else name


@dataclass(frozen=True)
class Mend:
    """Something broken and what it becomes.

    Arguments:
        clause: what catches it, and is to hold of the other.
        broken: a Function that the clause finds fault with.
        mended: the same Function, mended.
        says: the words of the report that were followed.
        inputs: makes inputs of the broken one.
        given: makes inputs of the mended one, where they are others.
    """

    clause: str
    broken: Any
    mended: Any
    says: str
    inputs: Callable[[], tuple[Any, ...]] = lambda: (normal(3, 4),)
    given: Callable[[], tuple[Any, ...]] | None = None


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normally distributed entries that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


def positive(*shape: int, seed: int = 2) -> torch.Tensor:
    """Entries between 0.5 and 1.5 that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5).requires_grad_()
