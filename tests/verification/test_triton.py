"""Triton kernels, in Triton's interpreter: without a GPU, and left out where Triton is missing."""

import os
import subprocess
import sys

import pytest
from tests.fuzzing import spread


@pytest.mark.parametrize("name", spread(["tail", "silu", "dense", "softmax"], 4))
def test_a_triton_kernel_is_right_or_caught(name):
    pytest.importorskip("triton", reason="triton is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.verification.triton_kernels", name],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "as it should", done.stdout + done.stderr[-3000:]
