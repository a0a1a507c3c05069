"""`FunctionWatch`: what functions return inside of a model: attention, additions, softmax."""

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from pullback.internal._open import open_function
from pullback.tracking.watch._attachment import ROOT
from pullback.tracking.watch._hooks import Sightings
from pullback.tracking.watch._outputs import tensors_in

__all__ = ["FunctionWatch"]


class FunctionWatch(TorchFunctionMode):
    """Measures what some functions return while a model's forward runs, and their gradients.

    The name of what is measured is that of the module that runs, a slash, and the function's:
    ``"encoder.0/softmax"``. Compiled code is passed over.

    Arguments:
        sightings: what measures.
        patterns: of functions' names, ``"softmax"`` or ``"scaled_dot_product*"``. An operator and
            a method go by the function's name: ``"add"`` is also ``x + y`` and ``x.add_(y)``.
    """

    def __init__(self, sightings: Sightings, patterns: Sequence[str]) -> None:
        super().__init__()
        self._sightings = sightings
        self._patterns = patterns
        self._path: list[str] = []
        self._undo = ExitStack()

    def attach(self, model: nn.Module) -> None:
        """Follow which module runs, and look at what is called."""
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            begin = functools.partial(self._begin, name or ROOT)
            self._undo.callback(module.register_forward_pre_hook(begin).remove)
            self._undo.callback(module.register_forward_hook(self._end, always_call=True).remove)
        self._undo.enter_context(self)

    def detach(self) -> None:
        """Look no more."""
        self._undo.close()

    def _begin(self, name: str, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._path.append(name)

    def _end(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and self._path:
            self._path.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = _short_name(func)
        chosen = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        opened = None if chosen else open_function(func)
        if opened is not None and self._path:
            with self:  # the mode is off inside of this method; what is inside counts
                return opened(*args, **kwargs)
        result = func(*args, **kwargs)
        if chosen and self._path and self._sightings.store.active:
            for path, values in tensors_in(result):
                self._sightings.see(values, f"{self._path[-1]}/{name}{path}", (args, kwargs))
        return result


@functools.cache
def _short_name(function: Callable[..., Any]) -> str:
    full = resolve_name(function) or getattr(function, "__name__", "")
    name = full.rpartition(".")[2].strip("_")
    return _OPERATORS.get(name, name)


# Operators of Python by the names of torch's functions.
_OPERATORS = {
    "radd": "add", "iadd": "add", "rsub": "sub", "isub": "sub", "rmul": "mul", "imul": "mul",
    "truediv": "div", "rtruediv": "div", "itruediv": "div", "rmatmul": "matmul",
}  # fmt: skip
