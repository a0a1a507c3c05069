"""Over torch's own table of operators: what a kernel multiplies is rounded, or refused.

What multiplies is not asked of us but of torch's counter of floating-point operations.
"""

import contextlib
import warnings
from typing import Any

import pytest
import torch
from tests.fuzzing import spread
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from pullback.errors import UnsupportedError
from pullback.tracking import simulate_format
from pullback.tracking.formats import E2M1, round_values

# All operators of the table in `make fuzz`; in `make test` those that are known to multiply.
KNOWN = {
    "__rmatmul__", "addmm", "baddbmm", "bmm", "corrcoef", "cov", "einsum", "linalg.matrix_power",
    "linalg.multi_dot", "linalg.pinv", "matmul", "mm", "nn.functional.conv2d",
    "nn.functional.conv_transpose1d", "nn.functional.linear", "pca_lowrank", "tensordot",
}  # fmt: skip
ADDED = {"addmm", "baddbmm"}  # whose first argument is added, not multiplied


class Kernels(TorchDispatchMode):
    """Looks at what the kernels multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.unrounded: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = getattr(func, "overloadpacket", None)
        if packet in flop_registry:
            first = 1 if packet.__name__ in ADDED else 0
            for factor in args[first : first + 2]:
                if not torch.equal(round_values(factor, E2M1), factor):
                    self.unrounded.append(str(func))
        return func(*args, **(kwargs or {}))


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def calls() -> Any:
    """Calls of the table that multiply."""
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = [op for op in op_db if op.name in KNOWN]
    for op in [*wanted, *spread(op_db, len(op_db))[1:]]:
        # Attention scales its rounded query before it multiplies: see test_formats_simulate.
        if torch.float32 not in op.dtypes or "attention" in op.name:
            continue
        with contextlib.suppress(Exception):  # some samples need what is not installed
            samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
            for sample in spread(samples[:6], 3):
                for function in (op.op, op.method_variant, op.inplace_variant):
                    if function is not None and multiplies(function, sample):
                        yield op.name, function, sample


def fresh(sample: Any) -> tuple[Any, ...]:
    first = sample.input
    return (first.clone() if isinstance(first, Tensor) else first, *sample.args)


def multiplies(function: Any, sample: Any) -> bool:
    with FlopCounterMode(display=False) as counter:
        try:
            function(*fresh(sample), **sample.kwargs)
        except Exception:  # a variant that does not take this sample
            return False
    return counter.get_total_flops() > 0


@pytest.mark.slow  # the table of operators takes six seconds to import
@pytest.mark.filterwarnings("ignore")  # of torch's own samples
def test_every_factor_that_reaches_a_kernel_is_rounded_or_refused():
    rounded, refused = set(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function, sample in calls():
            torch.manual_seed(0)
            try:
                with Kernels() as kernels:
                    model = simulate_format(Call(function), forward="E2M1")
                    model(*fresh(sample), **sample.kwargs)
            except UnsupportedError:
                refused.add(name)
                continue
            assert not kernels.unrounded, (name, kernels.unrounded, sample)
            rounded.add(name)
    assert {"addmm", "einsum", "matmul", "nn.functional.conv2d", "pca_lowrank"} <= rounded
    assert {"cov", "linalg.matrix_power"} <= refused
