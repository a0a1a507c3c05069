"""Which kernel measures a tensor: numba on the CPU, Triton on a GPU, plain torch elsewhere."""

import numpy as np
import torch

from pullback.errors import UnsupportedError
from pullback.internal._dtypes import PACKED
from pullback.internal.kernels import _backend as kernels
from pullback.internal.kernels._backend import Backend
from pullback.internal.torch import (
    FakeTensor,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)
from pullback.tracking.measure._layout import WIDTH
from pullback.tracking.measure._reference import measure_reference

__all__ = [
    "PLAIN",
    "Backend",
    "check_measurable",
    "choose_backend",
    "measure",
    "measure_into",
    "readable",
]

# Eight-bit floats and halves fit float32 exactly; integers need the 53 bits of float64.
_KEPT = (torch.float32, torch.float64)
PLAIN = (torch.Tensor, torch.nn.Parameter)
_READ_BY_TRITON = (*_KEPT, torch.bfloat16, torch.float16)  # a copy would be five times the traffic
_USUAL = frozenset(_READ_BY_TRITON)


def choose_backend(asked: Backend, device: torch.device) -> Backend:
    """Name the kernel for a device: one that was asked for by name is used or refused."""
    chosen = kernels.choose_backend(device, asked)
    if device.type == "mps":
        raise UnsupportedError(
            "Tracking sums in float64, which this device does not have.",
            given=f"a tensor on {device}",
            mend="Track a copy of the tensor on the CPU.",
        )
    return chosen


def check_measurable(values: torch.Tensor) -> None:
    """Refuse a tensor whose elements cannot be read as an array of numbers."""
    strided = values.layout is torch.strided and not values.is_nested
    plain = type(values) in PLAIN
    if plain and strided and values.dtype in _USUAL and not values.is_meta:
        return  # almost always: what follows is felt when it is asked of every tensor of a step
    if not strided or values.is_quantized:
        kind = "nested" if values.is_nested else "quantised" if values.is_quantized else "sparse"
        raise UnsupportedError(
            f"A {kind} tensor cannot be tracked.",
            given=f"layout {values.layout}, dtype {values.dtype}",
            expected="a dense tensor",
            mend="Track its values() or a dense copy of it.",
        )
    if values.is_meta or values.dtype.itemsize == 0 or values.dtype in PACKED:
        raise UnsupportedError(
            "This tensor has no elements that can be read.",
            given=f"dtype {values.dtype} on {values.device}",
            expected="numbers, one an element, in memory",
        )
    if not plain and not _is_in_memory(values):
        raise UnsupportedError(
            f"A {type(values).__name__} has no elements of its own that can be read.",
            given=f"a tensor around others, of shape {tuple(values.shape)}",
            mend="Track what it is made of, such as to_local() of a DTensor.",
        )


def _is_in_memory(values: torch.Tensor) -> bool:
    """Whether a tensor of another class has elements; its address is null around others."""
    try:
        return not isinstance(values, FakeTensor) and (
            not values.numel() or values.untyped_storage().data_ptr() != 0
        )
    except RuntimeError:
        return False


def readable(values: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor whose elements can be read back; refuse one that has none."""
    plain = values.detach()
    while is_functorch_wrapped_tensor(plain):
        if is_batchedtensor(plain):
            raise UnsupportedError(
                "Inside of vmap there is no number of one example that could be read back.",
                given=f"one of a batch, of shape {tuple(values.shape)}",
                mend="Ask outside of vmap, or pass it through pullback.tracking.track there, which "
                "measures the whole batch.",
            )
        plain = get_unwrapped(plain)
    check_measurable(plain)
    return plain


def _flat(values: torch.Tensor, kept: tuple[torch.dtype, ...] = _KEPT) -> torch.Tensor:
    """All elements in the order of memory where possible, so that no copy is made."""
    if values.dtype in kept and values.is_contiguous() and not values.is_neg():
        return values
    values = values.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype not in kept:
        values = values.to(torch.float32 if values.is_floating_point() else torch.float64)
    if values.is_neg():
        values = values.resolve_neg()
    if not values.is_contiguous():
        # A transposed but dense tensor becomes contiguous once its dimensions are sorted.
        strides = values.stride()
        order = sorted(range(values.dim()), key=lambda dimension: -strides[dimension])
        values = values.permute(order)
    return values.reshape(-1).contiguous()  # an expanded dimension is one stride of zero


def measure_into(
    values: torch.Tensor,
    row: np.ndarray | torch.Tensor,
    factor: float | torch.Tensor = 1.0,
    backend: Backend = "auto",
) -> None:
    """Write the statistics of ``factor * values`` into a row, without reading it back.

    A row is of NumPy for a CPU tensor, and the factor a number there; else they are on its device.
    """
    # A kernel that was chosen for this device before is not chosen again for every tensor.
    chosen = "cpu" if backend == "cpu" and values.is_cpu else choose_backend(backend, values.device)
    if chosen == "cpu":
        kernel = kernels.implementation(__package__, "cpu")
        kernel.measure_cpu(_flat(values), row, float(factor))
    else:
        target = torch.from_numpy(row) if isinstance(row, np.ndarray) else row
        if chosen == "triton":
            kernel = kernels.implementation(__package__, "triton")
            kernel.measure_triton(_flat(values, _READ_BY_TRITON), target, factor)
        else:
            target.copy_(measure_reference(values, factor))


def measure(values: torch.Tensor, backend: Backend = "auto") -> np.ndarray:
    """Measure one tensor and read the row back."""
    values = readable(values)
    if values.is_cpu:
        row = np.empty(WIDTH)
        measure_into(values, row, backend=backend)
        return row
    rows = torch.empty(WIDTH, dtype=torch.float64, device=values.device)
    measure_into(values, rows, backend=backend)
    return rows.cpu().numpy()
