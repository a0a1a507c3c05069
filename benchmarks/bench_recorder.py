"""What recording adds to one apply of a Function whose calls were seen before.

Bare and recorded applies alternate in one run; the minimum of many repeats is reported, in
microseconds, for a Function of one tensor, of four arguments, and one whose record is full.
"""

import csv
import timeit
from pathlib import Path

import torch

from pullback.recording import Call, Limits, Recorder

REPEATS, NUMBER = 60, 1000
RESULTS = Path(__file__).parent / "results" / "recorder.csv"
LIMIT = 20.0


class One(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Four(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, slope):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None, None, None


def measure(function, args, calls: int) -> tuple[float, float]:
    """Microseconds of one apply, bare and recorded."""
    recorder = Recorder(
        lambda args, keywords, limit: Call(list(args), keywords, [], 0),
        lambda record, call: None,
        Limits(calls=calls),
    )
    bare, recorded = [], []
    for _ in range(REPEATS):
        bare.append(timeit.timeit(lambda: function.apply(*args), number=NUMBER))
        recorder.install(torch.autograd.Function)
        recorded.append(timeit.timeit(lambda: function.apply(*args), number=NUMBER))
        recorder.uninstall()
    scale = 1e6 / NUMBER
    return min(bare) * scale, min(recorded) * scale


def main() -> None:
    torch.set_num_threads(1)
    x, weight = torch.randn(1, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    rows = []
    for name, function, args, calls in (
        ("one tensor, seen", One, (x,), 3),
        ("three tensors and a number, seen", Four, (x, weight, weight, 0.5), 3),
        ("one tensor, record full", One, (x,), 1),
    ):
        bare, recorded = measure(function, args, calls)
        rows.append((name, f"{bare:.2f}", f"{recorded:.2f}", f"{recorded - bare:.2f}"))
    header = ("case", "bare_us", "recorded_us", "added_us")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    for row in (header, *rows):
        print(f"{row[0]:<36}{row[1]:>10}{row[2]:>14}{row[3]:>12}")
    worst = max(float(row[3]) for row in rows)
    print(f"at most {worst:.2f} us an apply; the limit is {LIMIT:g} us")


if __name__ == "__main__":
    main()
