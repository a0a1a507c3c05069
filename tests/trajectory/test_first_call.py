"""The first call in a process does not wait for what it does not need."""

import subprocess
import sys

import pytest

HEAD = """
import sys, torch
from pullback.trajectory import *
x, points = torch.randn(4, 9, 2, requires_grad=True), torch.tensor([[0.0], [1.0]])
"""
CALLS = {
    "differentiate": "differentiate(x, 0.1).jerk.sum().backward()",
    "steps": "differentiate(x, torch.ones(8), scheme='backward', start=rest)",
    "integrate": "integrate(x, 0.1, start=State(0.0, 0.0)).position.sum().backward()",
    "quintic": "quintic(points, [0.0, 1.0]).sample([0.0, 0.5])",
    "minimum_jerk": "minimum_jerk(points.requires_grad_(), 1.0).jerk.sum().backward()",
    "limits": "minimum_jerk(points, 1.0, limits=Limits(velocity=1.5), samples=40)",
}


@pytest.mark.parametrize("name", CALLS)
def test_an_eager_call_does_not_import_the_compiler(name):
    # It takes 2 to 4 seconds to import, which a first call would wait for.
    code = HEAD + CALLS[name] + "\nprint('torch._dynamo' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "False"
