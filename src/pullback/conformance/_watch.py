"""What the expressions of a rule answer while it runs, and what some are to answer instead."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import torch

__all__ = ["Instead", "Key", "Watch"]

Key = tuple[int, int]
"""What a node of a rule is known by."""
_MOST = 2**17  # entries of a tensor of which a copy is kept


class Instead(NamedTuple):
    """What is written in the place of an expression."""

    code: CodeType
    place: Key  # whose names it reads


@dataclass
class Watch:
    """A run of a rule, watched."""

    instead: Mapping[Key, Instead] = field(default_factory=dict)
    until: float = math.inf  # when the run is over, in seconds of the process
    noting: bool = False  # whether first values are kept
    first: dict[Key, Any] = field(default_factory=dict)
    # the names of each statement, and of each function as its latest statement has them: one that
    # is written within another reads the names of both
    scope: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    latest: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    scopes: dict[Key, dict[str, Any]] = field(default_factory=dict)  # as they were first
    steps: Counter[int] = field(default_factory=Counter)  # statements that ran, of each rule

    def seen(self, key: Key, value: Any, names: dict[str, Any]) -> Any:
        """An expression has been evaluated."""
        if self.noting and key not in self.first:
            self.first[key] = _copy(value)
        if key in self.instead:
            code, place = self.instead[key]
            return eval(code, names, dict(self.scope[place]))  # noqa: S307 (names of the author's)
        return value

    def here(self, key: Key, within: Key, own: Mapping[str, Any]) -> None:
        """A statement, a lambda or a step of a comprehension runs.

        Arguments:
            key: what it is known by.
            within: the function around it whose names it reads, too.
            own: the names that are bound there.
        """
        scope = {**self.latest.get(within, {}), **own}
        self.scope[key] = scope
        if time.process_time() > self.until:
            raise TimeoutError("a loop that does not end")
        self.steps[key[0]] += self.noting
        if self.noting and key not in self.scopes:
            self.scopes[key] = {name: _copy(value) for name, value in scope.items()}

    def runs(self, key: Key, function: Key, within: Key, own: Mapping[str, Any]) -> None:
        """A statement of a function is about to run."""
        self.here(key, within, own)
        self.latest[function] = self.scope[key]


def _copy(value: Any) -> Any:
    """What is computed next may write there; an array of numpy's as a tensor."""
    if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
        with suppress(TypeError):  # of no numbers
            return torch.tensor(value) if value.ndim else value.item()
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST:
        return value.detach().clone()
    return value
