"""`FunctionWatch`: what functions return inside of a module's forward."""

import functools
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name

from pullback.internal._open import open_function
from pullback.internal.torch import FunctionMode, leave_function_mode, peek_interpreter_stack
from pullback.tracking._hang import Running
from pullback.tracking.run._identity import ROOT
from pullback.tracking.watch._hooks import Sightings

__all__ = ["FunctionWatch"]


class FunctionWatch(FunctionMode):
    """Measures what some functions return while a model's forward runs, and their gradients.

    The name of what is measured is that of the module that runs, a slash, and the function's:
    ``"encoder.0/softmax"``. An operator and a method go by the function's name: ``"add"`` is also
    ``x + y`` and ``x.add_(y)``. Compiled code is passed over.
    """

    def __init__(self, sightings: Sightings, patterns: Sequence[str]) -> None:
        super().__init__()
        self._sightings = sightings
        self._patterns = patterns
        self._unseen = set(patterns)
        self._running = Running()

    def attach(self, model: nn.Module) -> None:
        """Follow which module runs, and look at what is called."""
        self._running.follow((name or ROOT, module) for name, module in model.named_modules())
        self.__enter__()

    def detach(self) -> None:
        """Look no more, and say which patterns were of nothing that was called."""
        leave_function_mode(self)
        said = "no function of this name was called, compiled code apart"
        self._sightings.store.skipped.update(dict.fromkeys(sorted(self._unseen), said))
        self._running.stop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return func(*args, **kwargs)
        name, path = _short_name(func), self._running.names
        chosen = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        opened = None if chosen else open_function(func)
        if opened is not None and path:
            with self:  # the mode is off inside of this method; what is inside counts
                return opened(*args, **kwargs)
        result = func(*args, **kwargs)
        self._unseen.difference_update(chosen if path else ())
        if chosen and path and self._sightings.store.active:
            full = f"{path[-1]}/{name}"
            if peek_interpreter_stack() is not None and any(result is given for given in args):
                self._sightings.store.skipped[full] = (
                    "what changes its argument in place, in torch.func"
                )
                return result
            taken = self._sightings.take(result, full, (args, kwargs))
            result = result if taken is None else taken
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
