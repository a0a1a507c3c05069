"""Where numba is not installed, as on CUDA: the same numbers, in few operations."""

import subprocess
import sys

import pytest
import torch

from pullback.trajectory import Limits, Preconditioner, minimum_jerk

PROGRAM = """
import sys
sys.modules["numba"] = None
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from pullback.errors import ArgumentError
from pullback.trajectory import *

class Count(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))

points = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
assert backend_used(points) == "reference"

def counted(run):
    with Count() as count:
        run()
    return count.calls

# A loop over rows took 64,630 calls.
calls = {n: counted(lambda: minimum_jerk(points, 1.0, samples=n)) for n in (256, 1024, 2048)}
assert calls[1024] < 1000 and calls[2048] < 2000, calls
assert counted(lambda: Preconditioner(4096, 0.01)) < 2000
kept = minimum_jerk(points, 1.0, samples=64, limits=Limits(velocity=1.6))
try:
    minimum_jerk(points, 1.0, samples=64, limits=Limits(velocity=0.9))
except ArgumentError as error:
    assert "1.148 times as wide" in str(error)
else:
    raise SystemExit("limits that cannot be kept were not refused")
x = torch.linspace(0, 1, 64, dtype=torch.float64)[:, None].sin()
torch.save([minimum_jerk(points, 1.0).jerk, kept.velocity, Preconditioner(64, 0.01).invert(x)],
           sys.argv[1])
"""


@pytest.mark.slow
def test_it_is_the_same(tmp_path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "found.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    x = torch.linspace(0, 1, 64, dtype=torch.float64)[:, None].sin()
    limits = Limits(velocity=1.6)
    expected = [
        minimum_jerk(points, 1.0).jerk,
        minimum_jerk(points, 1.0, samples=64, limits=limits).velocity,
        Preconditioner(64, 0.01).invert(x),
    ]
    for found, known in zip(torch.load(tmp_path / "found.pt"), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-6, atol=1e-6 * float(known.abs().max()))
