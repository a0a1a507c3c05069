"""What is known of the parameters of a program: what they are called, and how they train."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pullback.recording.training._flow import largest

__all__ = ["Parameter", "name_parameters", "rarely_used"]

_WRAPPERS = (["module"], ["_orig_mod"])
_SAMPLE = 16  # entries by which one sees that somebody changes it


@dataclass(eq=False)
class Parameter:
    """What is known of a parameter, which it outlives."""

    bit: int  # the set that holds it alone
    tensor: Any  # a weak reference to it
    name: str
    optimizer: int = 0  # which one holds it, if any does
    shape: Any = ()
    sample: Any = None
    steps: int = 0  # at which it was looked at
    nothing: int = 0  # of these without a gradient
    alive: int = 0  # with one that is not zero
    first: int = 0  # which of them was the first
    excused: bool = False  # it changes without a gradient, or its module is in evaluation mode

    @property
    def pattern(self) -> str:
        """Its name, with those of its siblings: numbers are left out."""
        return re.sub(r"(?<=\.)\d+(?=\.)", "*", self.name)

    def look(self) -> float:
        """Look at it after a step of an optimiser; answers the largest entry of its gradient."""
        tensor = self.tensor()
        if tensor is None or not tensor.requires_grad:
            return 0.0
        peak = largest(tensor.grad)
        self.shape = tensor.shape
        self.steps += 1
        self.nothing += tensor.grad is None
        self.alive += peak != 0
        self.first = self.first or self.alive * self.steps
        # Another tensor that an optimiser holds may lie on several ranks.
        if type(tensor) is torch.nn.Parameter or not self.optimizer:
            before = self.sample
            if before is None or tensor.grad is None or not self.optimizer:
                self.sample = tensor.detach().flatten()[:_SAMPLE].clone()
                self.excused |= before is not None and not torch.equal(before, self.sample)
        return peak


def rarely_used(parameters: Iterable[Parameter]) -> set[str]:
    """Patterns of what is routed, or dropped at random: siblings come to life in turn."""
    firsts: dict[str, set[int]] = {}
    for p in parameters:
        if p.alive:
            # Unless it lapsed, its steps without a gradient are those before its first with one.
            firsts.setdefault(p.pattern, set()).update((p.first, p.steps - p.alive + 1))
    return {pattern for pattern, steps in firsts.items() if "*" in pattern and len(steps) > 1}


def name_parameters(known: Iterable[Any]) -> dict[Any, tuple[str, Any]]:
    """Name every parameter of some modules, as they are put together now.

    It is named from the outermost module that holds it, ``Net.layers.0.weight``, without the
    wrappers of a compiled or distributed model; of several of one class by their number:
    ``Net#2.layers.0.weight``.

    Returns:
        Each parameter -> its name, and the module that holds it.
    """
    modules = list(known)
    inner = {part for module in modules for part in module.modules() if part is not module}
    roots = [_unwrapped(module) for module in modules if module not in inner]
    roots = [root for root in roots if next(root.parameters(), None) is not None]
    kinds = [type(root).__name__ for root in roots]
    found: dict[Any, tuple[str, Any]] = {}
    for k, (root, kind) in enumerate(zip(roots, kinds, strict=True)):
        number = f"#{kinds[:k].count(kind) + 1}" if kinds.count(kind) > 1 else ""
        for path, module in root.named_modules(prefix=kind + number):
            for name, parameter in module.named_parameters(recurse=False):
                found.setdefault(parameter, (f"{path}.{name}", module))
    return found


def _unwrapped(module: Any) -> Any:
    while [name for name, _ in module.named_children()] in _WRAPPERS:
        [module] = module.children()
    return module
