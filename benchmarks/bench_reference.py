"""What `complete(kernel, reference=plain)` costs.

First order is timed beside the kernel alone, all else beside the reference alone. A second
derivative by autograd needs the kernel's forward and, once, its backward beside the reference's.

Attention is torch's fused kernel on the CPU: 8 heads, 512 places of 64 numbers. Another is a numba
kernel of a million numbers; a product of four numbers shows what the calls cost. All run in one
thread, in turns; a figure is the least CPU time of the rounds.
"""

import csv
import math
import time
from functools import partial
from pathlib import Path

import numba
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import pullback

RESULTS = Path(__file__).parent / "results" / "reference.csv"
LIMIT = 1.2  # times the reference alone
ROUNDS = 25


def attention(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def plain_attention(query, key, value):
    return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1) @ value


@numba.njit(error_model="numpy", fastmath=True)
def _damp(x, w, y):
    for i in range(x.size):
        y[i] = x[i] * w[i] / (np.float32(1) + x[i] * x[i])


@numba.njit(error_model="numpy", fastmath=True)
def _damp_adjoint(x, w, u, of_x, of_w):
    for i in range(x.size):
        square = x[i] * x[i]
        factor = u[i] / (np.float32(1) + square)
        of_x[i] = factor * w[i] * (np.float32(1) - square) / (np.float32(1) + square)
        of_w[i] = factor * x[i]


class Damped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = np.empty(x.numel(), np.float32)
        _damp(x.detach().numpy(), w.detach().numpy(), y)
        return torch.from_numpy(y)

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        found = np.empty(x.numel(), np.float32), np.empty(x.numel(), np.float32)
        given = (x.detach().numpy(), w.detach().numpy(), cotangent.contiguous().numpy())
        _damp_adjoint(*given, *found)
        return tuple(map(torch.from_numpy, found))


def plain_damped(x, w):
    return x * w / (1 + x * x)


def first_order(f, xs):
    leaves = [x.clone().requires_grad_() for x in xs]
    return torch.autograd.grad(f(*leaves).square().sum(), leaves)


def second_order(f, xs):
    leaves = [x.clone().requires_grad_() for x in xs]
    slopes = torch.autograd.grad(f(*leaves).square().sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), leaves)


def tangent(f, xs):
    return torch.func.jvp(f, tuple(xs), tuple(xs))[1]


def gradient(f, xs):
    return torch.func.grad(lambda *given: f(*given).square().sum(), (0, 1))(*xs)


def tangent_of_gradient(f, xs):
    slope = torch.func.grad(lambda *x: f(*x).square().sum(), (0, 1))
    return torch.func.jvp(slope, tuple(xs), tuple(xs))[1]


def batch(f, xs):
    return torch.vmap(f)(*(torch.stack([x, x]) for x in xs))


STEPS = {
    "first order": first_order,
    "jvp": tangent,
    "torch.func.grad": gradient,
    "second order": second_order,
    "jvp of grad": tangent_of_gradient,
    "vmap": batch,
}


def rounds(runs):
    """The seconds of each run, of each round; measured in turns."""
    for run in runs.values():
        run()
    found = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.process_time()
            run()
            found[name].append(time.process_time() - started)
    return found


def figures():
    """Rows: the kernel, the step, beside what, milliseconds of that, the ratio."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cases = [
        ("attention", attention, attention, plain_attention, [torch.randn(1, 8, 512, 64)] * 3),
        ("numba", Damped, Damped.apply, plain_damped, [torch.randn(2**20)] * 2),
        ("four numbers", torch.mul, torch.mul, torch.mul, [torch.randn(4)] * 2),
    ]
    for name, kernel, call, plain, xs in cases:
        completed = pullback.complete(kernel, reference=plain)
        f = completed.apply if isinstance(completed, type) else completed
        for step, work in STEPS.items():
            beside = "the kernel" if step == "first order" else "the reference"
            other = call if step == "first order" else plain
            found = rounds({"other": partial(work, other, xs), "completed": partial(work, f, xs)})
            least = min(found["other"])
            yield name, step, beside, 1e3 * least, min(found["completed"]) / least


def main():
    table = Table("kernel", "step", "beside", "ms", "ratio")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kernel", "step", "beside", "ms_alone", "ratio", "limit"])
        for name, step, beside, milliseconds, ratio in figures():
            limit = LIMIT if beside == "the reference" else ""
            writer.writerow([name, step, beside, f"{milliseconds:.3f}", f"{ratio:.3f}", limit])
            table.add_row(name, step, beside, f"{milliseconds:.2f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
