"""What a Function of ours costs beside torch's own: apply and backward together, as a ratio.

The tensors have one element, so that the time is all overhead. In each run torch and pullback take
turns in one process, and a figure is the least of many repeats; the median of the runs is held
against the limit. A second derivative is taken of a Function of which torch's own is right, and
forward mode is derived beside a hand-written jvp. How often the rules run is counted beside it.
"""

import csv
import functools
import statistics
import timeit
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import pullback

RESULTS = Path(__file__).parent / "results" / "tensor.csv"
LIMITS = {"split form": 1.0, "combined form": 1.3, "complete(F)": 1.3, "second derivative": 2.0}
RUNS, CALLS, REPEATS = 7, 1000, 15


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


def cube(base):
    class Cube(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * cotangent

    return Cube


def first(function, x):
    return torch.autograd.grad(function.apply(x, 2.0), x)


def second(function, x):
    (gradient,) = torch.autograd.grad(function.apply(x), x, create_graph=True)
    return torch.autograd.grad(gradient, x)


def tangent(function, x):
    return torch.func.jvp(function.apply, (x,), (x,))[1]


class CubeByHand(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


def calls(differentiate, function, x):
    """How often forward and backward, or jvp, run at the first use."""
    owner = vars(function).get("__wrapped__", function)
    before = {
        name: vars(owner)[name] for name in ("forward", "backward", "jvp") if name in vars(owner)
    }
    count = 0

    def counted(rule):
        @functools.wraps(rule)
        def run(*args):
            nonlocal count
            count += 1
            return rule(*args)

        return staticmethod(run)

    for name, rule in before.items():
        setattr(owner, name, counted(rule.__func__))
    differentiate(function, x)
    for name, rule in before.items():
        setattr(owner, name, rule)
    return count


def ratio(differentiate, theirs, ours):
    """What ours takes by what torch's does, and both in microseconds, measured in turns."""
    x = torch.ones(1, requires_grad=True)
    best = [float("inf")] * 2
    for _ in range(REPEATS):
        for i, function in enumerate((theirs, ours)):
            taken = timeit.timeit(partial(differentiate, function, x), number=CALLS)
            best[i] = min(best[i], taken / CALLS * 1e6)
    return best[1] / best[0], *best


def main():
    torch.set_num_threads(1)
    published = combined(torch.autograd.Function)
    cases = {
        "split form": (first, split(torch.autograd.Function), split(pullback.Function)),
        "combined form": (first, published, combined(pullback.Function)),
        "complete(F)": (first, published, pullback.complete(published)),
        "second derivative": (second, cube(torch.autograd.Function), cube(pullback.Function)),
        "jvp, derived": (tangent, CubeByHand, cube(pullback.Function)),
    }
    x = torch.ones(1, requires_grad=True)
    counted = {
        form: " and ".join(str(calls(way, function, x)) for function in functions)
        for form, (way, *functions) in cases.items()
    }
    found = {form: [] for form in cases}
    for _ in range(RUNS):
        for form, case in cases.items():
            found[form].append(ratio(*case))

    title = f"one element, torch {torch.__version__}, one thread, {RUNS} runs"
    table = Table(title=title)
    columns = ("form", "torch (us)", "pullback (us)", "ratio", "least", "largest", "limit", "calls")
    for column in columns:
        table.add_column(column, justify="left" if column == "form" else "right")
    rows = []
    for form, runs in found.items():
        ratios, theirs, ours = zip(*runs, strict=True)
        middle = [statistics.median(column) for column in (theirs, ours, ratios)]
        limit = f"{LIMITS[form]:.3f}" if form in LIMITS else ""
        figures = [f"{figure:.3f}" for figure in (*middle, min(ratios), max(ratios))]
        rows.append((form, *figures, limit, counted[form]))
        table.add_row(*rows[-1])
    Console().print(table)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("form", "torch_us", "pullback_us", "ratio", "least", "largest", "limit", "calls")
        )
        writer.writerows(rows)


if __name__ == "__main__":
    main()
