"""The cost of tracking a train step, beside plain training and, where installed, unit-scaling.

``python -m benchmarks.bench_tracking`` prints a table and writes ``results/tracking.csv``.
Every time is a ratio to plain training in the same run, in which the variants take turns step by
step. Peers are measured if they can be imported.
"""

import argparse
import csv
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from pullback.tracking import Key, Run, Series, Statistics, Tracker
from pullback.tracking._html import write_html
from pullback.tracking._points import Points

RESULTS = Path(__file__).parent / "results" / "tracking.csv"
WIDTH, HEADS, BLOCKS, BATCH, LENGTH = 256, 4, 4, 8, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


class Setup:
    """A model of its own with everything a step needs, so that variants do not share state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Transformer()
        self.called: Callable[..., torch.Tensor] = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(256, (BATCH, LENGTH + 1))

    def step(self) -> None:
        logits = self.called(self.tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def ratios(variants: dict[str, Callable[[], None]], steps: int) -> dict[str, float]:
    """For each variant, its median time a step over that of plain steps.

    Variants take turns step by step, so that other work on the machine slows all of them alike.
    With ``every=10`` a step is measured or not: the mean is made of the median of either kind.
    """
    turns = {"plain": Setup().step, **variants}
    times: dict[str, list[float]] = {name: [] for name in turns}
    for index in range(steps + 10):
        for name, step in turns.items():
            start = time.perf_counter()
            step()
            if index >= 10:  # the first ones warm up; ten keep the cadence in phase
                times[name].append(time.perf_counter() - start)
    plain = statistics.median(times["plain"])
    found = {}
    for name in variants:
        each = times[name]
        if "every=10" in name:
            measured = statistics.median(each[::10])
            others = statistics.median(t for i, t in enumerate(each) if i % 10)
            found[name] = (0.1 * measured + 0.9 * others) / plain
        else:
            found[name] = statistics.median(each) / plain
    return {"plain, seconds a step": plain, **found}


def peers() -> dict[str, Callable[[], None]]:
    """unit_scaling's two ways, each on a model of its own."""
    if importlib.util.find_spec("unit_scaling") is None:
        return {}
    from unit_scaling.transforms import track_scales
    from unit_scaling.utils import ScalePair, ScaleTracker

    whole = Setup()
    whole.called = track_scales(whole.model)

    leaves = Setup()
    for module in leaves.model.modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda module, inputs, output: ScaleTracker.apply(output, ScalePair())
            )
    return {"unit_scaling track_scales": whole.step, "unit_scaling ScaleTracker": leaves.step}


def host_reads(step: Callable[[], None]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    names = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
    return sum(event.count for event in profile.key_averages() if event.key in names)


def graphs() -> tuple[int, int]:
    """Graphs and graph breaks over 20 compiled steps in which every third is measured."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    setup = Setup()
    counter = CompileCounterWithBackend("aot_eager")
    setup.called = torch.compile(setup.model, backend=counter)
    with Tracker(setup.model, every=3):
        for _ in range(20):
            setup.step()
    return counter.frame_count, sum(torch._dynamo.utils.counters["graph_break"].values())


def page() -> tuple[float, int]:
    """Seconds and bytes of a page of 1,000 tensors, forward and backward, over 100 steps."""
    generator = np.random.default_rng(0)
    series = []
    steps = np.arange(100)
    for index in range(1000):
        exponents = {int(e): int(n) for e, n in enumerate(generator.integers(1, 9999, 32), -30)}
        for order, direction in enumerate(("forward", "backward")):
            level = generator.normal(-8.0 * order, 2.0, 100).cumsum() / 10
            points = Points(
                steps,
                np.zeros(100, np.int64),
                level,
                level + 3,
                np.zeros(100),
                np.zeros(100, np.uint8),
            )
            key = Key(f"encoder.layers.{index // 10}.part{index % 10}", 0, direction, order)
            total = Statistics(
                sum(exponents.values()), 0.1, 1000.0 + index, 0.2, 9.0, 1e-9, exponents=exponents
            )
            series.append(Series(key, total, points))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        start = time.perf_counter()
        write_html(Run(tuple(series)), path)
        return time.perf_counter() - start, path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.set_num_threads(2)
    each, tenth, bare = Setup(), Setup(), Setup()
    trackers = [
        Tracker(each.model),
        Tracker(tenth.model, every=10),
        Tracker(bare.model, statistics=("moments",)),
    ]
    for tracker in trackers:
        tracker.__enter__()
    variants: dict[str, Callable[[], None]] = {
        "pullback every=1": each.step,
        "pullback every=1, moments only": bare.step,
        "pullback every=10": tenth.step,
        **peers(),
    }
    found = ratios(variants, steps)
    rows: list[tuple[str, Any, str]] = []
    for name, value in found.items():
        unit = "s" if "seconds" in name else "x plain, median"
        rows.append((name, round(value, 3), unit))
    for name, step in variants.items():
        if "every=10" not in name:
            # AdamW itself reads two scalars a parameter on a CPU, whoever looks on
            added = host_reads(step) - host_reads(Setup().step)
            rows.append((name, added, "host reads a step more than plain"))
    rows.append(("plain", host_reads(Setup().step), "host reads a step"))
    for tracker in trackers:
        tracker.__exit__(None, None, None)
    compiled, breaks = graphs()
    seconds, size = page()
    rows += [
        ("pullback, 20 compiled steps", compiled, "graphs"),
        ("pullback, 20 compiled steps", breaks, "graph breaks"),
        ("pullback, HTML of 1,000 tensors x 100 steps", round(seconds, 2), "s"),
        ("pullback, HTML of 1,000 tensors x 100 steps", round(size / 1e6, 2), "MB"),
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("what", "value", "unit"))
        writer.writerows(rows)
    for what, value, unit in rows:
        print(f"{what:<48} {value} {unit}")


if __name__ == "__main__":
    main()
