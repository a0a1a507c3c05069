"""Triton's interpreter, made to run the kernels of others on a machine without a GPU.

Import it before the package, with ``TRITON_INTERPRET=1`` set. Where the interpreter differs from the compiler, what is said
here is what the compiler does:

- a Python float given to a kernel is a float32 scalar that has ``.to``;
- the variable of a loop over ``range`` is an int32 scalar too, unless ``range`` is static;
- what comes from the device's library (``libdevice``) is worked out by torch;
- a program asks which GPU there is, and times its configurations: the answer is that there is none,
  and the first configuration is taken.
"""

import ast
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

os.environ["TRITON_INTERPRET"] = "1"

__all__ = ["install"]

# What the kernels use of libdevice, as torch names it.
FROM_TORCH = {
    "exp": "exp", "exp2": "exp2", "fast_expf": "exp", "log": "log", "log1p": "log1p", "log2": "log2",
    "fast_logf": "log", "fast_log2f": "log2", "tanh": "tanh", "fast_tanhf": "tanh", "rsqrt": "rsqrt",
    "fast_cosf": "cos", "fast_sinf": "sin", "round": "round", "erf": "erf",
}  # fmt: skip


class Driver:
    """What a program may ask of the device."""

    class utils:  # noqa: N801: the name that Triton's drivers have
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


def install() -> None:
    """Change the interpreter of this process."""
    import triton
    import triton.language as tl
    import triton.language.extra.cuda.libdevice
    import triton.language.extra.libdevice
    from triton.runtime import interpreter

    triton.runtime.driver.set_active(Driver())
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
    torch._dynamo.config.disable = True  # what a package compiles for itself is run as written
    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = lambda index: contextlib.nullcontext()
