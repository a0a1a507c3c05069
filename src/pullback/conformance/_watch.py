"""What the expressions of a rule answer while it runs, and what some are to answer instead."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

__all__ = ["Watch"]

_MOST = 2**17  # entries of a tensor of which a copy is kept


@dataclass
class Watch:
    """A run of a rule, watched."""

    # what is written in the place of some
    instead: Mapping[tuple[int, int], CodeType] = field(default_factory=dict)
    until: float = math.inf  # when the run is over, in seconds of the process
    noting: bool = False  # whether first values are kept
    first: dict[tuple[int, int], Any] = field(default_factory=dict)
    # the names of the statement that runs, of each rule
    scope: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    scopes: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def seen(self, key: tuple[int, int], value: Any, names: dict[str, Any]) -> Any:
        """An expression has been evaluated."""
        if self.noting and key not in self.first:
            self.first[key] = _copy(value)
        if key in self.instead:
            return eval(self.instead[key], names, dict(self.scope[key[0]]))  # noqa: S307 (names of the author's)
        return value

    def here(self, key: tuple[int, int], scope: Mapping[str, Any]) -> None:
        """A statement is about to run."""
        self.scope[key[0]] = scope
        if time.process_time() > self.until:
            raise TimeoutError("a loop that does not end")
        if self.noting and key not in self.scopes:
            self.scopes[key] = {name: _copy(value) for name, value in scope.items()}


def _copy(value: Any) -> Any:
    """What is computed next may write there; an array of numpy's as a tensor."""
    if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
        with suppress(TypeError):  # of no numbers
            return torch.tensor(value) if value.ndim else value.item()
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST:
        return value.detach().clone()
    return value
