"""`WhenImported`: run an action as soon as a module has been imported, without importing it."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["WhenImported"]


class WhenImported(MetaPathFinder):
    """Runs an action right after one module has been imported, and then steps aside.

    The other finders find the module, and its own loader loads it; an import that fails leaves
    this finder in place.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action
        self._asks = False
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """What the others find, with a loader that runs the action too."""
        if fullname != self._name or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks = False
        return spec if spec is None or spec.loader is None else self._acting(spec, spec.loader)

    def _acting(self, spec: ModuleSpec, loader: Any) -> ModuleSpec:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # that of its class is left
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._action(module)

        loader.exec_module = exec_module
        return spec
