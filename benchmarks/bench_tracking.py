"""The cost of tracking a train step, beside plain training and, where installed, unit-scaling.

``python -m benchmarks.bench_tracking`` prints a table and writes ``results/tracking.csv``, section
by section, so that a run that is cut off leaves the figures it had. Every time is a ratio to plain
training in the same run: in each round every variant takes one step, in turn, and a variant's step
is divided by the plain step of its round. Rounds come in several runs, one after the other, of
which the median is written down, and the least and the most. Peers are measured where they can be
imported, see README.md.
"""

import argparse
import csv
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from pullback.tracking import Key, Run, Series, Statistics, Tracker
from pullback.tracking.report._html import write_html
from pullback.tracking.run._log import Points

RESULTS = Path(__file__).parent / "results" / "tracking.csv"
LIMITS = {"pullback every=1": 1.15, "pullback every=10": 1.03}
PAIRS, LEAST = "x plain, median of pairs", "x plain, least over least"
WARM_UP = 2  # rounds
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


def ratios(
    variants: dict[str, Callable[[], None]], rounds: int, seconds: float
) -> dict[tuple[str, str], float]:
    """Of one run, for each variant, its time a step over that of the plain step beside it.

    The order turns from round to round. With ``every=10`` a step is measured or not: the mean is
    made of the figure of either kind. Ends after so many rounds, or after so many seconds but not
    before two steps of the slower kind; after half as many again, one must do.
    """
    turns = {"plain": Setup().step, **variants}
    names = list(turns)
    times: dict[str, list[float]] = {name: [] for name in names}
    end = float("inf")
    for index in range(rounds):
        if index == WARM_UP:  # what a compiler takes is over
            end = time.perf_counter() + seconds
        over = time.perf_counter() - end
        if over > 0 and index > (20 if over < seconds / 2 else 10):
            break
        for name in names[index % len(names) :] + names[: index % len(names)]:
            start = time.perf_counter()
            turns[name]()
            times[name].append(time.perf_counter() - start)
    plain = np.array(times["plain"])[WARM_UP:]
    kept = len(plain)
    found = {("plain", "s a step"): float(np.median(plain))}
    for name in variants:
        each = np.array(times[name])[WARM_UP:]
        sparse = "every=10" in name
        measured = (np.arange(kept) + WARM_UP) % 10 == 0 if sparse else np.full(kept, True)
        share = 0.1 if sparse else 1.0
        for way, ratio in (
            (PAIRS, lambda chosen, each=each: np.median(each[chosen] / plain[chosen])),
            (LEAST, lambda chosen, each=each: each[chosen].min() / plain.min()),
        ):
            value = share * ratio(measured)
            if share < 1:
                value += (1 - share) * ratio(~measured)
            found[name, way] = float(value)
    return found


def spread(runs: list[dict[tuple[str, str], float]]) -> Iterator[tuple[str, Any, str, Any]]:
    """The median of several runs, with the least and the most of them."""
    for name, way in runs[0]:
        values = [run[name, way] for run in runs]
        limit = LIMITS.get(name, "") if way == PAIRS else ""
        yield name, round(float(np.median(values)), 3), f"{way}, median of {len(runs)} runs", limit
        for each, value in (("least", min(values)), ("most", max(values))):
            yield name, round(value, 3), f"{way}, {each} of {len(runs)} runs", ""


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


def timed(runs: int, rounds: int, seconds: float) -> Iterator[list[tuple[str, Any, str, Any]]]:
    """The sections that share one set of trackers: times, then host reads."""
    each, tenth = Setup(), Setup()
    with Tracker(each.model), Tracker(tenth.model, every=10):
        variants: dict[str, Callable[[], None]] = {
            "pullback every=1": each.step,
            "pullback every=10": tenth.step,
            **peers(),
        }
        yield list(spread([ratios(variants, rounds, seconds) for _ in range(runs)]))
        # AdamW itself reads two scalars a parameter on a CPU, whoever looks on
        plain = host_reads(Setup().step)
        yield [("plain", plain, "host reads a step", "")] + [
            (
                name,
                host_reads(step) - plain,
                "host reads a step more than plain",
                0 if "pullback" in name else "",
            )
            for name, step in variants.items()
            if "every=10" not in name
        ]


def compiled() -> list[tuple[str, Any, str, Any]]:
    what = "pullback, 20 compiled steps, every third measured"
    count, breaks = graphs()
    return [(what, count, "graphs", 1), (what, breaks, "graph breaks", 0)]


def written() -> list[tuple[str, Any, str, Any]]:
    what = "pullback, HTML of 1,000 tensors x 100 steps"
    seconds, size = page()
    return [(what, round(seconds, 2), "s", 2), (what, round(size / 1e6, 2), "MB", 2)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100, help="steps of each variant in a run")
    parser.add_argument("--seconds", type=float, default=40, help="stop a run after that")
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("what", "value", "unit", "limit"))
        sections = (
            iter([written()]),
            timed(chosen.runs, chosen.rounds, chosen.seconds),
            (compiled() for _ in range(1)),
        )
        for rows in itertools.chain(*sections):
            writer.writerows(rows)
            file.flush()
            for what, value, unit, limit in rows:
                wanted = f"(at most {limit})" if limit != "" else ""
                print(f"{what:<45} {value} {unit} {wanted}", flush=True)


if __name__ == "__main__":
    main()
