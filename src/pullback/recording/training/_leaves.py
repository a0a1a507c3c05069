"""`Leaves`: what is known of each parameter of a program, and what it is called.

Modules are met when one is put into another, when one is given a parameter, and when one is called.
A parameter is named from the outermost module that holds it, ``Net.layers.0.weight``, without the
wrappers of a compiled or distributed model; of several of one class by their number, in the order
in which they were met: ``Net#2.layers.0.weight``.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import itertools
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as hooks

__all__ = ["Leaf", "Leaves"]

_WRAPPERS = ("module", "_orig_mod")
_SAMPLE = 16  # entries of a parameter by which one sees that somebody changes it


@dataclass(eq=False)
class Leaf:
    """A parameter, or another leaf of the graph of autograd; what is known of it outlives it.

    Arguments:
        bit: the set that holds it alone.
        tensor: a weak reference to it.
        name: what it is called, if it is.
        optimizer: which one holds it, if any does; it is looked at anew since.
    """

    bit: int
    tensor: Any
    name: str = ""
    optimizer: int = 0
    shape: Any = field(default=(), init=False)
    sample: Any = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    nothing: int = field(default=0, init=False)  # of these without a gradient
    alive: int = field(default=0, init=False)  # with one that is not zero
    first: int = field(default=0, init=False)  # the step of its optimiser at which that began
    lapsed: bool = field(default=False, init=False)
    finite: bool = field(default=True, init=False)  # the last that was looked at
    not_finite: int = field(default=0, init=False)
    # It changes without a gradient, or is meant as it is: its module is in evaluation mode.
    excused: bool = field(default=False, init=False)

    def look(self, count: int) -> None:
        """Look at it and its gradient, after a step of an optimiser."""
        tensor = self.tensor()
        if tensor is None or not tensor.requires_grad:
            return
        gradient = tensor.grad
        largest = _largest(gradient)
        alive = largest != 0
        self.finite = math.isfinite(largest)
        self.steps += 1
        self.nothing += gradient is None
        self.alive += alive
        self.first = self.first or count * alive
        self.lapsed = self.lapsed or bool(self.first and not alive)
        self.shape = tensor.shape
        if self.optimizer and type(tensor) is not torch.nn.Parameter:
            return  # it may lie on several ranks
        if self.sample is None:
            self.sample = _sample(tensor)
        elif gradient is None or not self.optimizer:
            self.excused = self.excused or not torch.equal(self.sample, _sample(tensor))


class Leaves:
    """Every leaf that was asked for; meets modules while it watches, and names their parameters.

    Arguments:
        modules: those that are known from the beginning.
    """

    def __init__(self, modules: tuple[Any, ...] = ()) -> None:
        self._modules = weakref.WeakKeyDictionary(dict.fromkeys(modules))  # in their order
        self._known: dict[int, Leaf] = {}
        self._numbers = itertools.count()

    def __getitem__(self, tensor: Any) -> Leaf:
        leaf = self._known.get(id(tensor))
        if leaf is None or leaf.tensor() is not tensor:
            leaf = self[tensor] = Leaf(1 << next(self._numbers), weakref.ref(tensor))
        return leaf

    def __setitem__(self, tensor: Any, leaf: Leaf) -> None:
        self._known[id(tensor)] = leaf

    def watch(self) -> Iterator[Any]:
        """Meet what is made from now on, until the handles are removed."""

        def registered(module: Any, name: str, parameter: Any) -> None:
            self.meet(module)
            if parameter is not None and not self[parameter].name:
                self[parameter].name = f"{type(module).__name__}.{name}"

        yield hooks.register_module_parameter_registration_hook(registered)
        yield hooks.register_module_module_registration_hook(lambda module, *_: self.meet(module))

    def meet(self, module: Any) -> None:
        """Take a module that is called, or is given something."""
        self._modules.setdefault(module)

    def named(self) -> list[tuple[Any, Any]]:
        """Name every parameter of the modules that are alive, as they are put together now.

        Returns:
            Each parameter and the module that holds it.
        """
        modules = list(self._modules)
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        roots = [_unwrapped(module) for module in modules if id(module) not in inner]
        roots = [root for root in roots if next(root.parameters(), None) is not None]
        kinds = [type(root).__name__ for root in roots]
        found: dict[int, tuple[Any, Any]] = {}
        for k, root in enumerate(roots):
            several = kinds.count(kinds[k]) > 1
            prefix = f"{kinds[k]}#{kinds[:k].count(kinds[k]) + 1}" if several else kinds[k]
            for path, module in root.named_modules(prefix=prefix):
                for name, parameter in module.named_parameters(recurse=False):
                    if id(parameter) not in found:
                        found[id(parameter)] = parameter, module
                        self[parameter].name = f"{path}.{name}"
        return list(found.values())


def _unwrapped(module: Any) -> Any:
    """What a wrapper of a compiled or distributed model wraps."""
    while True:
        children = dict(module.named_children())
        if len(children) != 1 or next(iter(children)) not in _WRAPPERS:
            return module
        [module] = children.values()


def _sample(parameter: Any) -> Any:
    return parameter.detach().flatten()[:_SAMPLE].clone()


def _largest(gradient: Any) -> float:
    """The largest entry of a gradient, if there is one; NaN where one is."""
    if gradient is None:
        return 0.0
    numbers = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(numbers.abs().max()) if numbers.numel() else 0.0
