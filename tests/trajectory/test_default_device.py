"""Tensors on the CPU stay there, whatever device new tensors of a program are made on."""

import textwrap
from pathlib import Path

from tests.copies import run_python

from pullback.trajectory import __all__ as public

# Run apart: a kernel that writes where a tensor of another device says that it is, dies.
PROGRAM = """
import faulthandler
faulthandler.enable()
import torch
from torch.utils._pytree import tree_leaves
from pullback.trajectory import *

import pullback.trajectory.plans._minimum_duration as hurry
hurry._ROUNDS = 1  # every line of the search once

CPU = {"device": "cpu", "dtype": torch.float64}
made = torch.Generator("cpu").manual_seed(0)
x = torch.randn(3, 9, 2, generator=made, **CPU)
points = torch.randn(4, 2, generator=made, **CPU)
steps = torch.rand(8, generator=made, **CPU) + 0.5
table = torch.randn(5, 2, generator=made, **CPU)
index = torch.tensor([0, 4, 0], device="cpu")
times = [0.0, 0.7, 1.5, 2.0]

def curve():
    return quintic(points, times).sample(torch.linspace(0, 2, 20, **CPU))

def grad(run, *inputs):
    inputs = [part.clone().requires_grad_() for part in inputs]
    total = sum(part.square().sum() for part in tree_leaves(run(*inputs)))
    return torch.autograd.grad(total, inputs)

def stepped(x, steps):
    return differentiate(x, steps, goal=State(position=0.5, velocity=table[0]))

def indexed(x, table):
    start = State(position=table, velocity=table)
    return differentiate(x, 0.1, scheme="backward", start=start, start_index=index)

def limited(points):
    return minimum_jerk(points, times, limits=Limits(velocity=5.0, jerk=3000.0), samples=40)

def refused():
    try:
        return minimum_jerk(points, times, limits=Limits(velocity=0.1), samples=40)
    except Exception as error:
        return [torch.tensor(float(len(str(error))), **CPU)]

metric = lambda: Preconditioner(9, 0.1)
RUNS = {
    "differentiate": lambda: (differentiate(x, 0.1), indexed(x, table), stepped(x, steps),
                              differentiate(x.float(), 0.1, reference=1.0, start=hold),
                              grad(stepped, x, steps), grad(indexed, x, table)),
    "integrate": lambda: [integrate(x, dt, start=state, order=order)
                          for dt in (0.1, steps.new_ones(9))
                          for order, state in (("velocity", State(0.0)),
                                               ("acceleration", State(0.0, table[0])),
                                               ("jerk", State(0.0, 1.0, 0.5)))]
                         + [grad(lambda u: integrate(u, 0.1, start=State(0.0, 0.0)), x)],
    "bspline": lambda: [bspline(points, 2.0, degree=d, start=rest, goal=rest).sample(times)
                        for d in (3, 4, 5)]
                       + [grad(lambda p: bspline(p, 2.0).sample(times), points)],
    "quintic": lambda: (curve(), grad(lambda p: quintic(p, times).sample(times), points)),
    "resample": lambda: (resample(curve(), 0.01), resample(curve(), 0.0307)),
    "Spline": lambda: quintic(points, times).sample([0.1, 0.2]),
    "minimum_jerk": lambda: (minimum_jerk(points, times), limited(points), grad(limited, points),
                             minimum_jerk(points, 2.0, start=free, samples=30), refused()),
    "minimum_acceleration": lambda: minimum_acceleration(points, times, samples=40,
                                                         limits=Limits(acceleration=60.0)),
    "minimum_time": lambda: (minimum_time(points, Limits(velocity=1.0, jerk=8.0), samples=40),
                             minimum_time(points, Limits(velocity=(-1.0, 2.0)), samples=40,
                                          start=State(velocity=[0.0, 0.0], acceleration=0.0))),
    "minimum_duration": lambda: (minimum_duration(points[:3], Limits(velocity=1.0), samples=20,
                                                  bounds=True),
                                 minimum_duration(points[:2], Limits(velocity=1.0), samples=20,
                                                  start=State(velocity=0.5))),
    "Preconditioner": lambda: (metric().positions(x), metric().invert(x), metric().variables(x),
                               Preconditioner(9, 0.1, weights=torch.ones(9, **CPU)).multiply(x)),
    "Motion": lambda: curve().times,
    "plot": lambda: [plot(curve(), Limits(velocity=1.0)) and x],
    "backend_used": lambda: [backend_used(x) and threads_used(x) and x],
    "unwrap": lambda: unwrap(9 * points, joints=[1]),
    "concatenate": lambda: concatenate([curve()[:7], curve()[6:]]),
    "to_joint_trajectory": lambda: from_joint_trajectory(
        to_joint_trajectory(curve(), ["a", "b"])),
    "write_csv": lambda: (write_csv(curve(), FILE), read_csv(FILE))[1],
    "read_urdf_limits": lambda: [read_urdf_limits(ROBOT)[1].velocity],
}
MISSING = set(PUBLIC) - set(RUNS) - set(ALIKE)
assert not MISSING, f"no run for {MISSING}"
for name, run in RUNS.items():
    print(name, flush=True)
    plain = tree_leaves(run())
    with torch.device("meta"):
        moved = tree_leaves(run())
    assert len(plain) == len(moved) > 0
    for one, other in zip(plain, moved):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
print("same")
"""
# What has no computation of its own, and the run that uses it.
ALIKE = {
    "Backend": "backend_used",
    "DurationBounds": "minimum_duration",
    "threads_used": "backend_used",
    "Limits": "minimum_jerk",
    "State": "integrate",
    "free": "minimum_jerk",
    "hold": "differentiate",
    "rest": "bspline",
    "from_joint_trajectory": "to_joint_trajectory",
    "read_csv": "write_csv",
}


def test_a_default_device_changes_nothing(tmp_path: Path) -> None:
    robot = tmp_path / "one.urdf"
    robot.write_text(
        '<robot name="one"><joint name="elbow" type="revolute">'
        '<limit lower="-1.5" upper="2.5" effort="9" velocity="3"/></joint></robot>'
    )
    head = f"FILE = {str(tmp_path / 'motion.csv')!r}\nROBOT = {str(robot)!r}\n"
    head += f"PUBLIC = {list(public)}\nALIKE = {ALIKE}\n"
    done = run_python("-c", head + textwrap.dedent(PROGRAM))
    assert done.returncode == 0, f"after {done.stdout[-60:]}: {done.stderr[-3000:]}"
    assert done.stdout.strip().endswith("same")
