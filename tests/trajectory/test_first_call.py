"""The first call in a process does not wait for what it does not need."""

import subprocess
import sys

import pytest

HEAD = """
import sys, torch
from pullback.trajectory import *
x, points = torch.randn(4, 9, 2, requires_grad=True), torch.tensor([[0.0], [1.0]])
points.requires_grad_()
"""
CALLS = {
    "differentiate": "differentiate(x, 0.1).jerk.sum().backward()",
    "steps": "differentiate(x, torch.ones(8), scheme='backward', start=rest)",
    "integrate": "integrate(x, 0.1, start=State(0.0, 0.0)).position.sum().backward()",
    "quintic": "quintic(points, [0.0, 1.0]).sample([0.0, 0.5]).position.sum().backward()",
    "bspline": "bspline(x, 1.0).sample([0.0, 0.5]).position.sum().backward()",
    "minimum_jerk": "minimum_jerk(points, 1.0).jerk.sum().backward()",
    "limits": "minimum_jerk(points, 1.0, limits=Limits(velocity=1.5), samples=40)"
    ".position.sum().backward()",
    "minimum_time": "minimum_time(points, Limits(velocity=1.5)).position.sum().backward()",
    "preconditioner": "Preconditioner(9, 0.1, dtype=x.dtype).invert(x).sum().backward()",
    "resample": "resample(differentiate(x, 0.1), 0.05).position.sum().backward()",
}


@pytest.mark.timeout(600)  # kernels that were never compiled before are compiled here
def test_an_eager_call_does_not_import_the_compiler():
    # It takes 2 to 4 seconds to import, which a first call would wait for; its algebra takes one.
    lines = [HEAD]
    for name, call in CALLS.items():
        lines += [call, f"assert not {{'torch._dynamo', 'sympy'}} & set(sys.modules), {name!r}"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
