"""The cost of tracking a train step, beside plain training and, where installed, unit-scaling.

``python -m benchmarks.bench_tracking`` prints a table and writes ``results/bench_tracking.csv``.
Every figure is a ratio to plain training in the same run: the variants take turns, and the
median over rounds of the ratio of neighbours is shown, so that a machine that is busy with other
work disturbs all of them alike. Peers are measured if they can be imported.
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

RESULTS = Path(__file__).parent / "results" / "bench_tracking.csv"
WIDTH, HEADS, BLOCKS, BATCH, LENGTH = 256, 4, 4, 16, 128


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


def timed(step: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def ratios(variants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """For each round and variant, its time over that of plain steps just before and after."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    plain = Setup()
    for step in (plain.step, *variants.values()):
        timed(step, 2)
    for _ in range(rounds):
        for name, step in variants.items():
            # every=10 is measured over whole cadences, so that its mean is what is compared
            repeats = 10 if "10" in name else 2
            before = timed(plain.step, repeats)
            middle = timed(step, repeats)
            after = timed(plain.step, repeats)
            found[name].append(2 * middle / (before + after))
    return found


def peers() -> dict[str, Callable[[], None]]:
    """unit_scaling's two ways, each on a model of its own."""
    if importlib.util.find_spec("unit_scaling") is None:
        return {}
    from unit_scaling.transforms import track_scales
    from unit_scaling.utils import ScaleTracker

    whole = Setup()
    whole.called = track_scales(whole.model)

    leaves = Setup()
    for module in leaves.model.modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda module, inputs, output: ScaleTracker.track(output)[0]
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
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
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
    found = ratios(variants, rounds)
    rows: list[tuple[str, Any, str]] = []
    for name, values in found.items():
        rows.append(
            (f"{name}: step time over plain, median", round(statistics.median(values), 3), "")
        )
        rows.append((f"{name}: step time over plain, least", round(min(values), 3), ""))
    for name, step in variants.items():
        if "every=10" not in name:
            rows.append((f"{name}: host reads a step", host_reads(step), ""))
    rows.append(("plain: host reads a step", host_reads(Setup().step), ""))
    for tracker in trackers:
        tracker.__exit__(None, None, None)
    compiled, breaks = graphs()
    seconds, size = page()
    rows += [
        ("pullback: graphs in 20 compiled steps", compiled, ""),
        ("pullback: graph breaks in 20 compiled steps", breaks, ""),
        ("pullback: HTML of 1,000 tensors x 100 steps", round(seconds, 2), "s"),
        ("pullback: HTML of 1,000 tensors x 100 steps", round(size / 1e6, 2), "MB"),
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("what", "value", "unit"))
        writer.writerows(rows)
    for what, value, unit in rows:
        print(f"{what:<55} {value} {unit}")


if __name__ == "__main__":
    main()
