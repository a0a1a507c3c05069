"""Five hundred kernels over a cluster of this machine, of which a worker is killed in the middle.

The kernels are those of `tests/verification`, at several seeds, over two workers of Dask. After a
fifth of the reports a worker is killed; after half of them the whole run is given up, and another
goes on from the file. Shown: every kernel has a report, none has two, and each is what the kernel
deserves. It needs Dask: ``pip install dask distributed``.
"""

import csv
import json
import os
import signal
import sys
import time
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.verification.bases import BASES
from tests.verification.kernels import DTYPES, FORBIDDEN, RIGHT, WRONG

from pullback import Report, verify
from pullback.report import gather_reports

RESULTS = Path(__file__).parent / "results" / "many.csv"


# Each kernel with its base and dtype, by name.
KERNELS: dict[str, tuple[Any, str, torch.dtype]] = {
    f"wrong/{kind}/{base}": (fault, base, torch.float32)
    for kind, (fault, bases) in WRONG.items()
    for base in bases
} | {
    f"right/{kind}/{base}/{dtype}": (maker, base, dtype)
    for kind, maker in RIGHT.items()
    for base in BASES
    for dtype in DTYPES
}


def work(subject: str) -> Report:
    """Verify one kernel at one seed."""
    name, _, seed = subject.rpartition("#")
    make, base, dtype = KERNELS[name]
    torch.manual_seed(int(seed))
    torch.set_num_threads(1)
    inputs = BASES[base].make(dtype)
    return verify(
        make(BASES[base]), BASES[base].reference, inputs,
        forbid=FORBIDDEN, seed=int(seed), isolate=False,
    )  # fmt: skip


def deserved(name: str, report: Report) -> bool:
    """Whether a wrong kernel is caught, or a right one passes."""
    return report.ok is name.startswith("right")


def main(count: int) -> None:
    """Run and write the table."""
    from dask.distributed import Client, LocalCluster

    seeds = range(1 + count // len(KERNELS))
    subjects = [f"{name}#{seed}" for seed in seeds for name in KERNELS][:count]
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.jsonl"
        ask = partial(gather_reports, work, subjects, results=path)
        with (
            LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            first = ask(executor=client.get_executor())
            begun = list(islice(first, count // 5))
            victim = next(iter(client.run(os.getpid).values()))
            os.kill(victim, signal.SIGKILL)
            begun += islice(first, count // 2 - count // 5)
            first.close()
            found = dict(ask(executor=client.get_executor()))
        lines = [json.loads(line)["name"] for line in path.read_text().splitlines() if line]
    reports = {name: it for name, it in found.items() if isinstance(it, Report)}
    table = {
        "subjects": len(subjects),
        "before it was given up": len(begun),
        "reports": len(reports),
        "made twice": sum(n > 1 for n in Counter(lines).values()),
        "as deserved": sum(deserved(name, report) for name, report in reports.items()),
        "seconds": round(time.perf_counter() - started),
    }
    with RESULTS.open("w", newline="") as stream:
        csv.writer(stream).writerows([("what", "number"), *table.items()])
    print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
