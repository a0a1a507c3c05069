"""`WhenImported`: run an action as soon as a module has been imported, without importing it.

This file imports nothing of pullback: it is also loaded by path into programs that are recorded.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["WhenImported"]


class WhenImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs an action right after one module has been imported, and then steps aside.

    The other finders find the module, and its own loader loads it; an import that fails leaves
    this finder in place.

    Arguments:
        name: the full name of the module, which is not imported yet.
        action: what is called with the module.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action
        self._loader: Any = None
        self._asks = False
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._action(module)
