"""Which implementation of a kernel runs, asked for or chosen."""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, MissingExtraError, UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    forward_level,
    is_legacy_batchedtensor,
    is_zero_tensor,
    len_torch_dispatch_stack,
)

__all__ = [
    "Backend",
    "backend_used",
    "choose_backend",
    "cpu_or_reference",
    "implementation",
    "is_plain",
    "is_recorded",
    "keep_results",
]

P = ParamSpec("P")
R = TypeVar("R")
Backend = Literal["auto", "reference", "cpu", "triton"]


_BACKENDS = ("auto", "reference", "cpu", "triton")
_HAS_NUMBA = importlib.util.find_spec("numba") is not None
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def backend_used(position: Tensor, backend: Backend = "auto") -> str:
    """Return the backend that `differentiate` and `integrate` use for a tensor.

    ``"auto"`` is numba's ``"cpu"`` for CPU tensors and ``"triton"`` for CUDA tensors; where the
    package is not installed, and on any other device, it is ``"reference"``, plain torch.

    Arguments:
        position: the tensor that the function is given.
        backend: what the function is asked for.

    Raises:
        ArgumentError: the backend is unknown.
        ArgumentTypeError: not a tensor.
        MissingExtraError: the backend asked for is not installed.
        UnsupportedError: the backend asked for does not run on the tensor's device.

    Example:
        >>> import torch
        >>> from pullback.trajectory import backend_used
        >>> backend_used(torch.zeros(5, 7)), backend_used(torch.zeros(5, 7), "reference")
        ('cpu', 'reference')
    """
    if not isinstance(position, Tensor):
        raise ArgumentTypeError("Only of a tensor is there a backend.", given=repr(position)[:60])
    return choose_backend(position.device, backend)


def choose_backend(device: torch.device, backend: Backend) -> Backend:
    """Return the backend for a device, or refuse the one that was asked for."""
    if type(backend) is not str or backend not in _BACKENDS:
        raise ArgumentError(
            "The backend is unknown.", given=repr(backend), expected=f"one of {_BACKENDS}"
        )
    if backend == "auto":
        if device.type == "cpu" and _HAS_NUMBA:
            return "cpu"
        return "triton" if device.type == "cuda" and _HAS_TRITON else "reference"
    if backend == "cpu":
        _require(_HAS_NUMBA, "numba", "cpu")
        _accept(device.type == "cpu", backend, device, "tensors on the CPU")
    if backend == "triton":
        _require(_HAS_TRITON, "triton", "triton")
        runs = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
        _accept(runs, backend, device, "tensors on a CUDA device, or TRITON_INTERPRET=1")
    return backend


def cpu_or_reference(device: torch.device) -> Literal["cpu", "reference"]:
    """Return the backend for a device, of the kernels that only numba and plain torch have.

    Example:
        >>> cpu_or_reference(torch.device("cpu")), cpu_or_reference(torch.device("meta"))
        ('cpu', 'reference')
    """
    return "cpu" if choose_backend(device, "auto") == "cpu" else "reference"


@functools.cache
def implementation(package: str, backend: str) -> ModuleType:
    """Return the module with the kernels of a package, such as ``stencil._cpu``.

    It is imported late: numba alone costs half a second, triton is often not installed.
    """
    return importlib.import_module(f"{package}._{backend}")


def _require(installed: bool, package: str, backend: str) -> None:
    if not installed:
        raise MissingExtraError(
            f"The backend {backend!r} needs the package {package}, which is not installed.",
            mend=f"pip install {package}, or pass backend='auto'.",
        )


def _accept(accepted: bool, backend: str, device: torch.device, expected: str) -> None:
    if not accepted:
        raise UnsupportedError(
            f"The backend {backend!r} does not run on this device.",
            given=f"device={device}",
            expected=expected,
            mend="Pass backend='auto'.",
        )


def is_plain(*given: object) -> bool:
    """Return whether a kernel may read the memory of the tensors among its arguments as it is.

    It may not while a graph is traced, under a transform, or under a mode such as fake tensors;
    then the registered operator must be called.
    """
    if (
        torch.compiler.is_compiling()
        or len_torch_dispatch_stack()
        or are_functorch_transforms_active()
    ):
        return False
    for each in given:
        if type(each) is not Tensor:
            if isinstance(each, Tensor):
                return False
        # A batch of `is_grads_batched`, a zero of forward mode and a negated view have no memory.
        elif each.is_neg() or is_zero_tensor(each) or is_legacy_batchedtensor(each):
            return False
    return True


def is_recorded() -> bool:
    """Whether something may ask for the derivative of what is computed now.

    Where it cannot, a rule may run another rule's forward without a Function around it.
    """
    return torch.is_grad_enabled() or forward_level() >= 0 or not is_plain()


def keep_results(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with its last results kept, for arguments without tensors.

    Unlike those of `functools`, a compiler follows it. Nobody may write into a result. None is kept
    that a graph being traced, a transform or inference mode would own.
    """
    kept: Any = functools.lru_cache(maxsize=64)(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        own = not is_plain() or torch.is_inference_mode_enabled()
        return function(*args, **kwargs) if own else kept(*args, **kwargs)

    return call
