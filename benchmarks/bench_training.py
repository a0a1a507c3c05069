"""What watching costs a program that trains: its CPU time with `watch_training` over that without.

Two programs take turns, watched and bare; the least time of each is compared. The cost lies in the
first steps, so it is given for programs of several lengths.
"""

import contextlib
import csv
import time
from pathlib import Path

import torch
from torch import nn

from pullback.recording import watch_training

RESULTS = Path(__file__).parent / "results" / "training.csv"
STEPS = (30, 300, 1000)
TURNS = 7


def program(steps: int) -> None:
    """A perceptron of three layers: about a millisecond for a step on one core."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x, y = torch.randn(64, 64), torch.randint(10, (64,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def seconds(steps: int, *, watched: bool) -> float:
    """CPU time of one run."""
    started = time.process_time()
    with watch_training() if watched else contextlib.nullcontext():
        program(steps)
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    seconds(10, watched=True)  # what is loaded once
    rows = []
    for steps in STEPS:
        turns = [
            (seconds(steps, watched=False), seconds(steps, watched=True)) for _ in range(TURNS)
        ]
        bare, watched = (min(times) for times in zip(*turns, strict=True))
        rows.append(
            {"steps": steps, "bare ms": f"{1e3 * bare:.0f}", "watched ms": f"{1e3 * watched:.0f}",
             "ratio": f"{watched / bare:.3f}"}
        )  # fmt: skip
        print(rows[-1])
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
