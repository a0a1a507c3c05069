"""What a Function of ours costs beside torch's own: apply and backward together, as a ratio.

The tensors have one element, so that the time is all overhead. In each run torch and pullback take
turns in one process, and a figure is the least of many repeats; the median of the runs is held
against the limit. The audit of a derived rule is timed by itself: once a signature, then never.
"""

import csv
import statistics
import time
import timeit
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import pullback

RESULTS = Path(__file__).parent / "results" / "tensor.csv"
LIMITS = {"split form": 1.1, "combined form": 1.5, "complete(F)": 1.5}
RUNS, CALLS, REPEATS = 7, 1000, 15
SIGNATURES = [(dtype, dims) for dtype in (torch.float64, torch.float32) for dims in range(1, 5)]


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


def ratio(theirs, ours):
    """Apply and backward of ours by torch's, and both in microseconds, measured in turns."""
    x = torch.ones(1, requires_grad=True)

    def make(function):
        return lambda: torch.autograd.grad(function.apply(x, 2.0), x)

    runs = [make(theirs), make(ours)]
    best = [float("inf")] * 2
    for _ in range(REPEATS):
        for i, run in enumerate(runs):
            best[i] = min(best[i], timeit.timeit(run, number=CALLS) / CALLS * 1e6)
    return best[1] / best[0], *best


def second_derivative(function, dtype, dims):
    """Seconds of one second derivative."""
    x = torch.ones([2] * dims, dtype=dtype, requires_grad=True)
    started = time.perf_counter()
    (first,) = torch.autograd.grad(function.apply(x, 2.0).sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), x, allow_unused=True)
    return time.perf_counter() - started


def audits():
    """The median milliseconds that the first second derivative of a signature takes, and later."""
    function = combined(pullback.Function)
    with pullback.audit(False):
        second_derivative(function, torch.float64, 5)
    first = [second_derivative(function, *signature) for signature in SIGNATURES]
    later = [second_derivative(function, *signature) for signature in SIGNATURES * 5]
    return statistics.median(first) * 1e3, statistics.median(later) * 1e3


def main():
    torch.set_num_threads(1)
    published = combined(torch.autograd.Function)
    pairs = {
        "split form": (split(torch.autograd.Function), split(pullback.Function)),
        "combined form": (published, combined(pullback.Function)),
        "complete(F)": (published, pullback.complete(published)),
    }
    found = {form: [] for form in pairs}
    for _ in range(RUNS):
        for form, functions in pairs.items():
            found[form].append(ratio(*functions))

    title = f"apply and backward, one element, torch {torch.__version__}, one thread, {RUNS} runs"
    table = Table(title=title)
    columns = ("form", "torch (us)", "pullback (us)", "ratio", "least", "largest", "limit")
    for column in columns:
        table.add_column(column, justify="left" if column == "form" else "right")
    rows = []
    for form, runs in found.items():
        ratios, theirs, ours = zip(*runs, strict=True)
        middle = [statistics.median(column) for column in (theirs, ours, ratios)]
        rows.append(
            (form, *(f"{v:.3f}" for v in (*middle, min(ratios), max(ratios), LIMITS[form])))
        )
        table.add_row(*rows[-1])
    first, later = audits()
    console = Console()
    console.print(table)
    console.print(f"a second derivative: {first:.1f} ms the first time, then {later:.2f} ms")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("form", "torch_us", "pullback_us", "ratio", "least", "largest", "limit"))
        writer.writerows(rows)
        writer.writerow(("second derivative, first time (ms)", "", f"{first:.3f}", *[""] * 4))
        writer.writerow(("second derivative, later (ms)", "", f"{later:.3f}", *[""] * 4))


if __name__ == "__main__":
    main()
