"""`Names`: what the parameters of a program are called, by the modules that hold them.

Modules are met when one is put into another, when one is given a parameter, and when one is called.
A parameter is named from the outermost module that holds it, ``Net.layers.0.weight``, without the
wrappers of a compiled or distributed model; of several of one class by their number, in the order
in which they were met: ``Net#2.layers.0.weight``.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import weakref
from collections.abc import Iterator
from typing import Any

from torch.nn.modules import module as hooks

__all__ = ["Names"]

_WRAPPERS = ("module", "_orig_mod")


class Names:
    """Meets modules while it is started, and names their parameters.

    Arguments:
        modules: those that are known from the beginning.
    """

    def __init__(self, modules: tuple[Any, ...] = ()) -> None:
        self._modules = weakref.WeakKeyDictionary(dict.fromkeys(modules))  # in their order
        self._named: dict[int, tuple[Any, str, Any]] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        """Meet what is made from now on."""

        def registered(module: Any, name: str, value: Any) -> None:
            self._modules.setdefault(module)
            if value is not None and id(value) not in self._named:
                kind = type(module).__name__
                if not hasattr(value, "named_parameters"):
                    self._name(value, f"{kind}.{name}", module)

        self._handles += [
            hooks.register_module_parameter_registration_hook(registered),
            hooks.register_module_module_registration_hook(registered),
        ]

    def stop(self) -> None:
        """Meet nothing any more."""
        while self._handles:
            self._handles.pop().remove()

    def meet(self, module: Any) -> None:
        """Take a module that is called."""
        self._modules.setdefault(module)

    def update(self) -> list[tuple[str, Any, Any]]:
        """Name every parameter of the modules that are alive, as they are put together now.

        Returns:
            Name, parameter and the module that holds it.
        """
        found = list(self._walk())
        for name, parameter, owner in found:
            self._name(parameter, name, owner)
        return found

    def name_of(self, parameter: Any) -> str:
        """The name of a parameter, or an empty text."""
        known = self._named.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else ""

    def _name(self, parameter: Any, name: str, owner: Any) -> None:
        self._named[id(parameter)] = weakref.ref(parameter), name, weakref.ref(owner)

    def _walk(self) -> Iterator[tuple[str, Any, Any]]:
        modules = list(self._modules)
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        roots = [_unwrapped(module) for module in modules if id(module) not in inner]
        roots = [root for root in roots if next(root.parameters(), None) is not None]
        kinds = [type(root).__name__ for root in roots]
        seen: set[int] = set()
        for k, root in enumerate(roots):
            several = kinds.count(kinds[k]) > 1
            prefix = f"{kinds[k]}#{kinds[:k].count(kinds[k]) + 1}" if several else kinds[k]
            for path, module in root.named_modules(prefix=prefix):
                for name, parameter in module.named_parameters(recurse=False):
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield f"{path}.{name}", parameter, module


def _unwrapped(module: Any) -> Any:
    """What a wrapper of a compiled or distributed model wraps."""
    while True:
        children = dict(module.named_children())
        if len(children) != 1 or next(iter(children)) not in _WRAPPERS:
            return module
        [module] = children.values()
