"""What pullback costs on a GPU, each beside what else does the job, in the same run.

``python -m benchmarks.bench_gpu`` prints a table and writes ``results/gpu.csv``; without a CUDA
device it does nothing. Every figure is a ratio of least times of turns, taken one after the other:
kernels to the time in which a copy moves as many bytes as they must, calls of a Function to
torch's own of the bare one, a step of training to the same step untracked. Each turn ends when the
card has.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pullback
from benchmarks.bench_tracking import Transformer
from benchmarks.bench_trajectory import slicing
from benchmarks.rows import write_rows
from pullback.tracking import Statistics, Tracker, simulate_format
from pullback.tracking.formats import FORMATS, SCALED_FORMATS
from pullback.tracking.measure._dispatch import measure_into
from pullback.tracking.measure._layout import WIDTH
from pullback.trajectory import State, differentiate, integrate

RESULTS = Path(__file__).parent / "results" / "gpu.csv"
COLUMNS = ("card", "torch", "what", "beside", "ratio", "milliseconds")
Work = Callable[[], Any]
Works = dict[str, Work]
Rows = Iterator[tuple[str, str, float, float]]
DT = 0.02


def least(works: Works, seconds: float) -> dict[str, float]:
    """Least seconds of each, in turns of some ten calls until the card has done them."""
    found = dict.fromkeys(works, float("inf"))
    calls = dict.fromkeys(works, 1)
    order, end = random.Random(0), 0.0
    for turn in range(10_000):
        if turn == 3:  # compiled, and as many calls a turn as take a millisecond
            found = dict.fromkeys(works, float("inf"))
            end = time.perf_counter() + seconds
        if turn > 8 and time.perf_counter() > end:
            break
        for name, work in order.sample(sorted(works.items()), len(works)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls[name]):
                work()
            torch.cuda.synchronize()
            took = (time.perf_counter() - begin) / calls[name]
            found[name] = min(found[name], took)
            calls[name] = max(1, min(50, int(1e-3 / took)))
    return found


def copying(moved: int) -> Work:
    """A copy that moves so many bytes, counted when they are read and when they are written."""
    from_, to = (torch.empty(moved // 8, device="cuda") for _ in range(2))
    return lambda: to.copy_(from_)


def ratios(works: Works, beside: str, seconds: float) -> Rows:
    found = least(works, seconds)
    for name, took in found.items():
        if name != beside:
            yield name, beside, took / found[beside], 1e3 * took


def parts(motion: Any) -> tuple[Tensor, ...]:
    return motion.position, motion.velocity, motion.acceleration, motion.jerk


def motions(seconds: float) -> Rows:
    """Kernels of trajectories: five tensors are moved forward, and five backward."""
    start = State(position=0.0, velocity=0.0, acceleration=0.0)
    for shape in ((512, 1024, 7), (64, 32, 7)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        weights = [torch.randn(shape, device="cuda") for _ in range(4)]
        control = torch.randn(shape[0], shape[1] - 1, shape[2], device="cuda", requires_grad=True)
        calls: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
            "differentiate": (lambda x: parts(differentiate(x, DT)), x),
            "differentiate, plain torch": (
                lambda x: parts(differentiate(x, DT, backend="reference")), x,
            ),
            "slices and autograd": (slicing, x),
            "integrate": (
                lambda u: parts(integrate(u, DT, start=start, order="jerk")), control,
            ),
            "integrate, plain torch": (
                lambda u: parts(
                    integrate(u, DT, start=start, order="jerk", backend="reference")
                ),
                control,
            ),
        }  # fmt: skip

        def forward(call: Callable[[Tensor], Any], given: Tensor) -> None:
            with torch.no_grad():
                call(given)

        def both(
            call: Callable[[Tensor], Any], given: Tensor, weights: list[Tensor] = weights
        ) -> None:
            torch.autograd.grad(call(given), given, weights)

        size = "x".join(map(str, shape))
        for what, run, moved in (("forward", forward, 5), ("both", both, 10)):
            floor = f"copy of as many bytes, {size}, {what}"
            works: Works = {floor: copying(moved * x.numel() * 4)}
            works |= {f"{n}, {size}, {what}": partial(run, *c) for n, c in calls.items()}
            yield from ratios(works, floor, seconds)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


class Ours(pullback.Function):
    forward, backward = Cube.forward, Cube.backward


def functions(seconds: float) -> Rows:
    """First and second order of a Function, beside the bare one."""
    kinds = {"bare": Cube, "pullback.Function": Ours, "complete": pullback.complete(Cube)}
    for size in (1_000, 10_000_000):
        x = torch.randn(size, device="cuda", requires_grad=True)

        def first(kind: Any, x: Tensor = x) -> None:
            torch.autograd.grad(kind.apply(x).sum(), x)

        def second(kind: Any, x: Tensor = x) -> None:
            (g,) = torch.autograd.grad(kind.apply(x).sum(), x, create_graph=True)
            torch.autograd.grad(g.sum(), x)

        for what, run in (("first order", first), ("second order", second)):
            works = {f"{n}, {what}, {size:,} entries": partial(run, k) for n, k in kinds.items()}
            yield from ratios(works, f"bare, {what}, {size:,} entries", seconds)


def statistics(seconds: float) -> Rows:
    """What a tensor costs that is measured, beside a copy that reads as much, and amax and mean."""
    row = torch.empty(WIDTH, dtype=torch.float64, device="cuda")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(1 << 26, device="cuda").to(dtype)
        name = f"64 M entries of {str(dtype).removeprefix('torch.')}"
        floor = f"reading {name}"
        works: Works = {
            floor: copying(x.nbytes),
            f"measure, {name}": partial(measure_into, x, row),
            f"abs().amax(), mean(), std(), {name}": lambda x=x: (x.abs().amax(), x.mean(), x.std()),
            f"Statistics.of, {name}": partial(Statistics.of, x),
        }
        yield from ratios(works, floor, seconds)


def formats(seconds: float) -> Rows:
    """Rounding to a format, beside torch's own cast there and back."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    floor = "cast to float8_e4m3fn and back, 16 M entries of bfloat16"
    works: Works = {floor: lambda: x.to(torch.float8_e4m3fn).to(torch.bfloat16)}
    for known in (*FORMATS, *SCALED_FORMATS):
        works[f"simulate_format, {known}"] = partial(simulate_format, x, forward=known)
    yield from ratios(works, floor, seconds)


def training(seconds: float) -> Rows:
    """A step of a small transformer, tracked and not."""

    def setup() -> tuple[torch.nn.Module, Work]:
        torch.manual_seed(0)
        model = Transformer().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(256, (64, 513), device="cuda")

        def step() -> None:
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return model, step

    plain = "a step of a transformer of four blocks, 64 x 512 tokens"
    works: Works = {plain: setup()[1]}
    trackers = []
    for every in (1, 10):
        model, step = setup()
        trackers.append(Tracker(model, every=every))
        works[f"tracked every {every}"] = step
    for tracker in trackers:
        tracker.__enter__()
    mean = means(works, seconds)
    for tracker in trackers:
        tracker.__exit__(None, None, None)
    for name in list(works)[1:]:
        yield name, plain, mean[name] / mean[plain], 1e3 * mean[name]


def means(works: Works, seconds: float) -> dict[str, float]:
    """The mean over blocks of ten steps, of which one may be dearer; the least such mean."""
    found = dict.fromkeys(works, float("inf"))
    end = time.perf_counter() + seconds
    for turn in range(1_000):
        if turn > 3 and time.perf_counter() > end:
            break
        for name, work in works.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            if turn:
                found[name] = min(found[name], (time.perf_counter() - begin) / 10)
    return found


SECTIONS = (motions, functions, statistics, formats, training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each comparison")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing is measured.")
        return
    about = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = []
    for section in SECTIONS:
        for what, beside, ratio, took in section(options.seconds):
            print(f"{what:<60} {ratio:8.2f} x {beside} ({took:.3f} ms)", flush=True)
            row = {"what": what, "beside": beside, "ratio": f"{ratio:.2f}"}
            rows.append(about | row | {"milliseconds": f"{took:.4f}"})
            write_rows(RESULTS, COLUMNS, rows)


if __name__ == "__main__":
    main()
