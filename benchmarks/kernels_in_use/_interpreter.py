"""Triton's interpreter, made to run the kernels of others on a machine without a GPU.

Import it before Triton. Where the interpreter differs from the compiler, what is said here is what
the compiler does:

- a Python float given to a kernel is a float32 scalar that has ``.to``;
- the variable of a loop over ``range`` is an int32 scalar too, unless ``range`` is static;
- a comparison of two scalars stays a truth value where it meets a block;
- a kernel is run as a whole: two threads that launch one do not take the language from each other;
- bfloat16 is computed with in float32 and rounded to the nearest (`_bfloat16.py`);
- what comes from the device's library (``libdevice``) is worked out by torch;
- a program asks which GPU there is, and times its configurations: the answer is that there is none,
  and the first configuration is taken.
"""

import ast
import contextlib
import importlib.machinery
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from benchmarks.kernels_in_use import _bfloat16

os.environ["TRITON_INTERPRET"] = "1"
os.environ["XFORMERS_ENABLE_TRITON"] = "1"

__all__ = ["bare", "install"]

# What the kernels use of libdevice, as torch names it.
FROM_TORCH = {
    "exp": "exp", "exp2": "exp2", "fast_expf": "exp", "log": "log", "log1p": "log1p",
    "log2": "log2", "fast_logf": "log", "fast_log2f": "log2", "tanh": "tanh", "fast_tanhf": "tanh",
    "rsqrt": "rsqrt",
    "fast_cosf": "cos", "fast_sinf": "sin", "round": "round", "erf": "erf",
}  # fmt: skip


class Driver:
    """What a program may ask of the device."""

    class utils:
        @staticmethod
        def get_device_properties(index: int) -> dict[str, int]:
            return {"multiprocessor_count": 2, "max_shared_mem": 1 << 20, "warpSize": 32}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, index: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """No configuration is faster than another, and none is run to find out."""
        return lambda call, quantiles: [1.0] * len(quantiles)


def as_written(function: Callable[..., Any] | None = None, **options: object) -> Any:
    """What a package compiles for itself is run as it is written, ``fullgraph`` or not."""
    return (lambda it: it) if function is None else function


def install(active: bool = False) -> None:
    """Change the interpreter of this process.

    Arguments:
        active: say that there is a device that Triton compiles for, to a package that asks that.
    """
    import triton
    import triton.backends
    import triton.language as tl
    import triton.language.extra.cuda.libdevice
    import triton.language.extra.libdevice
    from triton.runtime import interpreter

    triton.runtime.driver.set_active(Driver())
    for backend in triton.backends.backends.values() if active else ():
        backend.driver.is_active = staticmethod(lambda: True)
    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if type(argument) is float:
            handle = interpreter.TensorHandle(
                numpy.array([argument], dtype=numpy.float32), tl.float32
            )
            return tl.tensor(handle, tl.float32)
        return convert(argument)

    interpreter._implicit_cvt = with_floats

    def as_scalars(values: Iterable[Any]) -> Iterator[Any]:
        return (convert(it) if type(it) is int else it for it in values)

    def visit_loop(transformer: ast.NodeTransformer, loop: ast.For) -> ast.AST:
        loop = transformer.generic_visit(loop)
        called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if getattr(called, "id", "") == "range" or getattr(called, "attr", "") == "range":
            name = ast.Name(id="as_scalars", ctx=ast.Load())
            loop.iter = ast.Call(func=name, args=[loop.iter], keywords=[])
        return loop

    splat = interpreter.InterpreterBuilder.create_splat

    def with_truth(builder: Any, block: Any, scalar: Any) -> Any:
        true = scalar.data.dtype == bool
        return splat(
            builder, block, interpreter.TensorHandle(scalar.data, tl.int1) if true else scalar
        )

    interpreter.InterpreterBuilder.create_splat = with_truth
    _bfloat16.install(interpreter, tl)
    launch, one_at_a_time = interpreter.GridExecutor.__call__, threading.RLock()

    def whole(executor: Any, *arguments: Any, **options: Any) -> None:
        with one_at_a_time:
            launch(executor, *arguments, **options)

    interpreter.GridExecutor.__call__ = whole
    interpreter.as_scalars = as_scalars  # what its module has, a kernel finds
    interpreter.ASTTransformer.visit_For = visit_loop

    def by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
        def elementwise(argument: Any) -> Any:
            data = function(torch.from_numpy(argument.handle.data)).numpy()
            return tl.tensor(interpreter.TensorHandle(data, argument.handle.dtype), argument.type)

        return elementwise

    for name, equal in FROM_TORCH.items():
        for library in (triton.language.extra.libdevice, triton.language.extra.cuda.libdevice):
            setattr(library, name, by_torch(getattr(torch, equal)))
    torch.compile = as_written
    processor = types.SimpleNamespace(multi_processor_count=2)
    torch.cuda.get_device_properties = lambda *_: processor
    for library in (torch.cpu, torch.cuda):  # `with torch.cuda.device(tensor.device):`
        library.device = lambda index: contextlib.nullcontext()


def bare(package: str) -> None:
    """Let modules of a package be imported without what its own ``__init__`` asks for first."""
    module = types.ModuleType(package)
    spec = importlib.machinery.PathFinder.find_spec(
        package.rpartition(".")[2],
        getattr(sys.modules.get(package.rpartition(".")[0]), "__path__", None),
    )
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
    module.__spec__.submodule_search_locations.extend(module.__path__)
    sys.modules[package] = module
