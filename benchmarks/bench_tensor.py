"""What a pullback.Function costs over torch.autograd.Function, in microseconds a call.

The tensors have one element, so that the time is all overhead. torch runs beside pullback in the
same process, in turns; each figure is the least of many repeats.
"""

import csv
import timeit
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import pullback

RESULTS = Path(__file__).parent / "results" / "tensor.csv"
LIMIT = 10.0
CALLS, REPEATS = 2000, 25


def split(base):
    class Scale(base):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.factor, None

    return Scale


def combined(base):
    class Scale(base):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.factor, None

    return Scale


def timings(functions, make):
    """The least microseconds for each function, measured in turns."""
    runs = [make(function) for function in functions]
    best = [float("inf")] * len(runs)
    for _ in range(REPEATS):
        for i, run in enumerate(runs):
            best[i] = min(best[i], timeit.timeit(run, number=CALLS) / CALLS * 1e6)
    return best


def main():
    torch.set_num_threads(1)
    x = torch.ones(1, requires_grad=True)

    def apply(function):
        return lambda: function.apply(x, 2.0)

    def backward(function):
        out = function.apply(x, 2.0)
        return lambda: torch.autograd.grad(out, x, retain_graph=True)

    published = combined(torch.autograd.Function)
    pairs = {
        "split form": (split(torch.autograd.Function), split(pullback.Function)),
        "combined form": (published, combined(pullback.Function)),
        "complete(F)": (published, pullback.complete(published)),
    }
    rows = []
    for form, functions in pairs.items():
        for step, make in (("apply", apply), ("backward", backward)):
            theirs, ours = timings(functions, make)
            rows.append((form, step, theirs, ours, ours - theirs))

    table = Table(title=f"Overhead on one element, torch {torch.__version__}, one thread")
    for column in ("form", "step", "torch (us)", "pullback (us)", "overhead (us)"):
        table.add_column(column, justify="left" if column in ("form", "step") else "right")
    for form, step, *figures in rows:
        table.add_row(form, step, *(f"{figure:.2f}" for figure in figures))
    console = Console()
    console.print(table)
    worst = max(row[-1] for row in rows if row[1] == "apply")
    console.print(f"worst overhead of apply: {worst:.2f} us (goal: at most {LIMIT:.0f} us)")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["form", "step", "torch_us", "pullback_us", "overhead_us"])
        writer.writerows((f, s, *(f"{v:.3f}" for v in rest)) for f, s, *rest in rows)


if __name__ == "__main__":
    main()
