"""The Triton kernel against the reference, in Triton's interpreter where there is no GPU."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzzing import spread

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
import json, math, sys, torch
import pullback.tracking
assert "numba" not in sys.modules  # it comes with the first measurement on a CPU
from pullback.tracking.measure._reference import measure_reference
from pullback.tracking.measure._triton import measure_triton
device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)
for size, dtype, factor in json.loads(sys.argv[1]):
    dtype = getattr(torch, dtype)
    x = torch.randn(size, generator=generator, dtype=dtype).exp()
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e-41], dtype=dtype)
    x[:5] = special[:size]
    row = torch.empty(289, dtype=torch.float64, device=device)
    measure_triton(x.to(device), row, factor)
    expected = measure_reference(x, factor)
    assert torch.allclose(row.cpu(), expected, rtol=1e-9, atol=1e-12), (size, dtype, factor)
"""


SIZES = (0, 1, 3, 2048, 2049, 5000)
TABLE = [*itertools.product(SIZES, ("float32", "float64"), (1.0, 0.125, 0.3))]


def test_the_kernel_equals_the_reference() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(spread(TABLE, 5))],
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
