"""Functions compiled for the CPU with numba, called from Python or without it."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["Entry", "compile_kernel", "take_slice"]

# Callers do not pass the first argument, which is the compiler's; type checkers cannot know that.
_intrinsic: Any = intrinsic

_JOB = types.CPointer(types.int64)


def compile_kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function with numba.

    Compiling takes seconds, so that the result is kept on disk. Where no place for it can be
    written, in a container with a read-only root for example, each process compiles anew.

    Arguments:
        options: of `numba.njit`; division by zero follows IEEE 754, as in torch.

    Example:
        >>> from pullback.internal.kernels._cpu import compile_kernel
        >>> @compile_kernel(nogil=True)
        ... def double(x):
        ...     return x + x
        >>> double(2.0)
        4.0
    """
    options = {"error_model": "numpy", **options}
    return functools.partial(_kept_on_disk, numba.njit, options)


def _kept_on_disk(compile_: Any, options: dict[str, Any], function: Callable[..., Any]) -> Any:
    try:
        return compile_(cache=True, **options)(function)
    except RuntimeError:  # numba found no place that can be written
        return compile_(**options)(function)


class Entry:
    """A compiled function of one *job*, which threads run at once without the interpreter.

    A job is an array of 64-bit integers. The first three are how many slices have been taken,
    how many there are, and of how many items; `take_slice` reads them. What follows is the
    function's own: sizes, and the addresses of the memory that it works on.

    Calling it runs the job in this thread, with the interpreter's lock released.

    Arguments:
        function: takes a pointer to the job. It must not raise.
    """

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function

    @functools.cached_property
    def _compiled(self) -> tuple[Any, Any]:
        # Late: compiling takes seconds, and reading what was compiled a tenth of one.
        compile_ = functools.partial(numba.cfunc, types.void(_JOB))
        compiled = _kept_on_disk(compile_, {"error_model": "numpy"}, self._function)
        return compiled, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)

    @property
    def address(self) -> int:
        """Where the compiled function is, for native code to call it."""
        return self._compiled[0].address

    def __call__(self, job: int) -> None:
        """Run the job at an address."""
        self._compiled[1](job)


@_intrinsic
def _count_up(_context: Any, counter: Any) -> Any:
    """``_count_up(counter)``: add one, at once for all threads, and return what was there."""

    def generate(_context: Any, builder: Any, _given: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", arguments[0], one, "seq_cst")

    return types.int64(counter), generate


@compile_kernel(nogil=True)
def take_slice(job):
    """Return a slice that no other thread works on, the first and after the last of its items.

    The slice is negative where none is left. For use in kernels.
    """
    # Not a generator: numba does not read kernels that use one back from disk.
    number, slices, items = _count_up(job), job[1], job[2]
    if number >= slices:
        return -1, 0, 0
    return number, items * number // slices, items * (number + 1) // slices
