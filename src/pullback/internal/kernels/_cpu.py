"""Functions compiled for the CPU with numba, kept on disk until a file that they use changes."""

import functools
import hashlib
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

__all__ = ["compile_kernel", "compile_part"]

_STANDARD: dict[str, Any] = {"error_model": "numpy"}
# The newest numba whose compiled code is known to need no more to be loaded than is set up here.
_KNOWN = (0, 68)
_OURS: weakref.WeakSet[Any] = weakref.WeakSet()


class _Announcer(event.Listener):
    """Says what is compiled, to whoever sits there and waits.

    The event comes after the look into the files that are kept, so only for what is compiled.
    """

    def on_start(self, event: event.Event) -> None:
        """Write one line for a kernel of ours."""
        kernel = (event.data or {}).get("dispatcher")
        if kernel is not None and kernel in _OURS and _someone_waits():
            name = kernel.py_func.__name__.strip("_")
            sys.stderr.write(f"pullback: compiling {name} for this machine; it is kept on disk\n")

    def on_end(self, event: event.Event) -> None:
        """Nothing more is said."""


def _someone_waits() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


event.register("numba:compile", _Announcer())


class _Loader(FunctionCache):
    """Loads what is kept without the compiler, whose tables take half a second to import."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for a signature, or None."""
        rtsys.initialize(target_context)  # what compiled code calls
        return super().load_overload(sig, _Unrefreshed(target_context))


class _Unrefreshed:
    """A context of numba's that keeps what it has of the tables."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def refresh(self) -> None:
        """Import nothing."""


def compile_kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function with numba.

    Compiling takes seconds, so that the result is kept on disk. Where no place for it can be
    written, in a container with a read-only root for example, each process compiles anew. numba
    looks at the file that a function is in; here the name under which a result is kept also stands
    for the files of its room. Division by zero follows IEEE 754, as in torch;
    other options are those of `numba.njit`.

    Example:
        >>> from pullback.internal.kernels._cpu import compile_kernel
        >>> @compile_kernel(nogil=True)
        ... def double(x):
        ...     return x + x
        >>> double(2.0)
        4.0
    """
    options = _STANDARD | options

    def compile_(function: Callable[..., Any]) -> Any:
        module = sys.modules.get(function.__module__)
        if getattr(module, "__file__", None) is not None:
            function.__qualname__ += f"_{_stamp(function.__module__)}"
        try:
            kernel = numba.njit(cache=True, **options)(function)
            if numba.version_info.short <= _KNOWN:
                kernel._cache = _Loader(function)
        except RuntimeError:  # numba found no place that can be written
            kernel = numba.njit(**options)(function)
        _OURS.add(kernel)
        return kernel

    return compile_


def compile_part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`compile_kernel` for what kernels call and Python never does: a sixth less to compile.

    It is kept as a part of them.
    """
    unwrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**_STANDARD, **unwrapped, **options)


@functools.cache
def _stamp(module: str) -> str:
    """What the sources are that a module's kernels are made of, in eight digits."""
    digest = hashlib.sha256()
    for path in _sources(module):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _sources(module: str) -> list[Path]:
    """The files that a kernel may be made of: of the package above its own, and of this one.

    What lies beyond, such as the engine of the contract, has no part in what is compiled.
    """
    file = Path(importlib.import_module(module).__file__ or "")
    rooms = [file.parents[1]] if module.count(".") > 1 else []
    rooms.append(Path(__file__).parent)
    return sorted({file, *(path for room in rooms for path in room.rglob("*.py"))})
