"""What a newcomer waits for: a program with four small Functions, alone and checked.

Each figure is the least of some runs of the whole command, its start included, by the clock and in
CPU time of all its processes: the one is what a quiet machine shows, the other hardly depends on
what else a machine does. Every run has a cache of torch's compiler of its own. The first verdict is
that of the command, as the terminal shows it, from its start on, and that of `check(isolate=True)`
in a fresh process, from the start of the process on.
"""

import csv
import math
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "program.csv"
REPEATS = 2

PROGRAM = """
import torch

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y
    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return cotangent * y, cotangent * x

class Tangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * (1 - y * y)

class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent @ w.mT, x.mT @ cotangent

if __name__ == "__main__":
    x, y, w = (torch.randn(*shape, requires_grad=True) for shape in ((4, 3), (4, 3), (3, 2)))
    outputs = Cube.apply(x), Product.apply(x, y), Tangent.apply(x), Linear.apply(x, w)
    sum(output.sum() for output in outputs).backward()
"""

FIRST = """
import time
import torch
from train import Cube
from pullback import check

class First(Exception):
    pass

def stop(finding):
    print(time.time())
    raise First

try:
    check(Cube, torch.ones(3), isolate=True, on_finding=stop)
except First:
    pass
"""


def cpu_seconds() -> float:
    """The CPU time of every process that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """How long a command takes, in a folder: by the clock, and in CPU time."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        )  # fmt: skip
        taken = time.perf_counter() - started
    # A Function that lacks something is no failure; `Linear` crashes under autocast, rightly said.
    assert done.returncode in (0, 1), done.stderr
    return taken, cpu_seconds() - before


def first_verdict(folder: Path) -> tuple[float, float]:
    """How long the first verdict takes, from the start of a process on."""
    before, started = cpu_seconds(), time.time()
    said = subprocess.run(
        [sys.executable, "first.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    return float(said.stdout) - started, cpu_seconds() - before


def shown(terminal: int) -> Iterator[str]:
    """What a program writes to a terminal, until it has ended."""
    while True:
        try:
            yield os.read(terminal, 2**16).decode(errors="replace")
        except OSError:  # nobody writes to it any more
            return


def first_shown(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """How long it takes until a terminal shows the clause after the first one of a Function."""
    before, started = cpu_seconds(), time.perf_counter()
    terminal, inside = pty.openpty()
    taken = math.nan
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdout=inside, stderr=inside,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ):  # fmt: skip
        os.close(inside)
        for text in shown(terminal):
            begun = re.search(r"\b(?!starts|prepare|infer|derivative)[a-z-]+ \d+ s of ", text)
            if begun and math.isnan(taken):
                taken = time.perf_counter() - started
    os.close(terminal)
    return taken, cpu_seconds() - before


def least(runs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The least of either time."""
    clock, cpu = zip(*runs, strict=True)
    return min(clock), min(cpu)


def main() -> None:
    check = ["-m", "pullback.cli", "check"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        (folder / "first.py").write_text(FIRST)
        commands = {
            "alone": ["train.py"],
            "checked": [*check, "--", "python", "train.py"],
            "checked without compile": [*check, "--without", "compile", "--", "python", "train.py"],
        }
        rows = [
            (what, *least(seconds(words, folder) for _ in range(REPEATS)))
            for what, words in commands.items()
        ]
        first = [first_shown(commands["checked"], folder) for _ in range(REPEATS)]
        rows.append(("checked, first verdict", *least(first)))
        first = [first_verdict(folder) for _ in range(REPEATS)]
        rows.append(("check(isolate=True), first verdict", *least(first)))
    table = Table(title="Seconds of a program with four small Functions")
    table.add_column("what")
    table.add_column("by the clock", justify="right")
    table.add_column("CPU", justify="right")
    for what, clock, cpu in rows:
        table.add_row(what, f"{clock:.1f}", f"{cpu:.1f}")
    Console().print(table)
    with RESULTS.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["what", "seconds", "cpu_seconds"])
        writer.writerows((what, f"{clock:.2f}", f"{cpu:.2f}") for what, clock, cpu in rows)


if __name__ == "__main__":
    main()
