"""The Triton kernel against the reference, in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
import math, torch
from pullback.tracking._reference import measure_reference
from pullback.tracking._triton import measure_triton
device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)
for size in (0, 1, 3, 2048, 2049, 5000):
    for dtype in (torch.float32, torch.float64):
        for factor in (1.0, 0.125, 0.3):
            x = torch.randn(size, generator=generator, dtype=dtype).exp()
            special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e-41], dtype=dtype)
            x[:5] = special[:size]
            row = torch.empty(289, dtype=torch.float64, device=device)
            measure_triton(x.to(device), row, factor)
            expected = measure_reference(x, factor)
            assert torch.allclose(row.cpu(), expected, rtol=1e-9, atol=1e-12), (size, dtype, factor)
"""


def test_the_kernel_equals_the_reference() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment)
