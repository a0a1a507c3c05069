"""Let `torch.compile` put a Function into its graph whole.

Dynamo refuses to trace a Function that has a forward-mode rule, and drops its backward inside
`torch.func` transforms. A Function allowed in the graph is called by the tracer below Dynamo
with all its rules intact, so reverse mode, forward mode and composed transforms are right.

Dynamo takes a second to import. Functions defined before it is imported wait in a list that a
finder, active until then, hands over once.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["allow_in_graph"]

_DYNAMO = "torch._dynamo"
_waiting: weakref.WeakSet[type] = weakref.WeakSet()


def allow_in_graph(function: type[torch.autograd.Function]) -> None:
    """Register the Function with Dynamo, now or as soon as Dynamo is imported."""
    if _DYNAMO in sys.modules and hasattr(sys.modules[_DYNAMO], "allow_in_graph"):
        torch.compiler.allow_in_graph(function)
        return
    _waiting.add(function)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it wraps the loader of Dynamo, once."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads Dynamo with its own loader, then registers the Functions that wait."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        while _waiting:
            torch.compiler.allow_in_graph(_waiting.pop())


_finder = _Finder()
