"""What shaping a gradient costs: forward over `view_as`, backward over `gradient * factor`.

Forward is timed on one element, where all is overhead, in microseconds a call; backward on 16
million float32 elements, as the ratio to the one product that it has to compute. All run in one
process, in turns; each figure is the least of many repeats.
"""

import csv
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from pullback.gradients import reverse_gradient, scale_forward, scale_gradient

RESULTS = Path(__file__).parent / "results" / "gradients.csv"
FORWARD_LIMIT = 10.0  # microseconds over view_as
BACKWARD_LIMIT = 1.05  # times gradient * factor
ELEMENTS = 16 * 2**20
# Short repeats, so that one of them runs without being interrupted.
CALLS, REPEATS = 40, 500
ROUNDS = 40
FACTOR = 0.3


class Torch(torch.autograd.Function):
    """The same Function as torch documents it, without any other transform."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None


def least(runs, repeats, calls):
    """The least seconds a call of each run, measured in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.perf_counter() - started) / calls)
    return best


def forward():
    x = torch.ones(1, requires_grad=True)
    factor = torch.tensor(FACTOR)
    runs = {
        "x.view_as(x)": lambda: x.view_as(x),
        "torch.autograd.Function": lambda: Torch.apply(x, FACTOR),
        "scale_gradient": lambda: scale_gradient(x, FACTOR),
        "scale_gradient, tensor factor": lambda: scale_gradient(x, factor),
        "reverse_gradient": lambda: reverse_gradient(x, FACTOR),
        "scale_forward": lambda: scale_forward(x, FACTOR),
    }
    return {name: 1e6 * seconds for name, seconds in least(runs, REPEATS, CALLS).items()}


def backward():
    x = torch.zeros(ELEMENTS, requires_grad=True)
    gradient = torch.randn(ELEMENTS)
    factor = torch.tensor(FACTOR)

    def through(function, *arguments):
        output = function(x, *arguments)
        return lambda: torch.autograd.grad(output, x, gradient, retain_graph=True)

    runs = {
        "gradient * factor": lambda: gradient * FACTOR,
        "torch.autograd.Function": through(Torch.apply, FACTOR),
        "scale_gradient": through(scale_gradient, FACTOR),
        "scale_gradient, tensor factor": through(scale_gradient, factor),
        "reverse_gradient": through(reverse_gradient, FACTOR),
    }
    return least(runs, ROUNDS, 1)


def main():
    torch.set_num_threads(2)
    base = "x.view_as(x)"
    microseconds = forward()
    rows = [
        ("forward", name, value, value - microseconds[base], "us over view_as")
        for name, value in microseconds.items()
    ]
    seconds = backward()
    rows += [
        ("backward", name, 1e3 * value, value / seconds["gradient * factor"], "x the product")
        for name, value in seconds.items()
    ]
    table = Table(title=f"Gradient shaping, torch {torch.__version__}, two threads")
    table.add_column("step")
    table.add_column("what")
    table.add_column("us or ms", justify="right")
    table.add_column("against the base", justify="right")
    for step, name, value, relative, unit in rows:
        table.add_row(step, name, f"{value:.2f}", f"{relative:.3f} {unit}")
    Console().print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["step", "name", "us_or_ms", "relative", "unit", "limit"])
        for step, name, value, relative, unit in rows:
            limit = FORWARD_LIMIT if step == "forward" else BACKWARD_LIMIT
            shown = limit if name == "scale_gradient" else ""
            writer.writerow([step, name, f"{value:.3f}", f"{relative:.4f}", unit, shown])


if __name__ == "__main__":
    main()
