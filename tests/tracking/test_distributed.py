"""Two ranks together equal the data concatenated; a rank that dies is named."""

import datetime
import multiprocessing
import os
import socket
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pullback.errors import ProgramError, UnsupportedError
from pullback.tracking import Statistics, Tracker

SHARES = {"equal": (4, 4), "unequal": (1, 7), "empty": (0, 5)}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def data(rank: int, share: str) -> torch.Tensor:
    whole = torch.randn(sum(SHARES[share]), 5, generator=torch.Generator().manual_seed(7))
    return whole.split(SHARES[share])[rank]


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def start(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20))


def reduce_on_a_rank(rank: int, port: int, folder: str) -> None:
    start(rank, port)
    found = {}
    for share in SHARES:
        model = DistributedDataParallel(make())
        with Tracker(model) as tracker:
            model(data(rank, share)).square().sum().backward()
            merged = tracker.reduce()
        found[share] = {tuple(key): value.to_dict() for key, value in merged.items()}
    reduce_and_go_on(rank)
    torch.save(found, f"{folder}/{rank}.pt")
    die_or_reduce(rank, folder)


def reduce_and_go_on(rank: int) -> None:
    model = make()
    with Tracker(model) as tracker:
        counts = []
        for _ in range(2):
            model(torch.ones(1 + rank, 5)).sum().backward()
            tracker.step()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                counts.append((tracker.total("0").count, len(caught)))  # of this rank
                tracker.reduce()
                counts.append((tracker.total("0").count, len(caught)))
    mine = 6 * (1 + rank)
    assert counts == [(mine, 0), (18, 0), (2 * mine, 1), (36, 1)]


def die_or_reduce(rank: int, folder: str) -> None:
    model = make()
    with Tracker(model, jsonl=f"{folder}/{rank}.jsonl") as tracker:
        model(torch.ones(3, 5)).sum().backward()
        tracker.step()
        if rank == 1:
            os._exit(9)
        try:
            tracker.reduce()
        except ProgramError:
            Path(folder, "refused").write_text(str(tracker.total("0").count))
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left, until one died: to start them takes longer than all the rest."""
    folder = tmp_path_factory.mktemp("ranks")
    # Copies of this process have imported torch; what uses a device may not be copied.
    copies = sys.platform == "linux" and not torch.cuda.is_available()
    if not copies:
        multiprocessing.set_forkserver_preload(["torch", "pullback.tracking"])  # once for both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn where there are threads
        context = mp.start_processes(
            reduce_on_a_rank,
            (free_port(), str(folder)),
            nprocs=2,
            join=False,
            start_method="fork" if copies else "forkserver",
        )
    for process in context.processes:
        process.join(120)
    with pytest.raises(mp.ProcessExitedException):
        context.join()
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", SHARES)
def test_two_ranks_equal_the_concatenated_data(share: str, folder: Path) -> None:
    found = [torch.load(folder / f"{rank}.pt")[share] for rank in (0, 1)]
    assert found[0] == found[1]
    model = make()
    with Tracker(model) as tracker:
        model(torch.cat([data(0, share), data(1, share)])).square().sum().backward()
    for key, total in tracker.totals().items():
        name = "module" if key.name == "(root)" else f"module.{key.name}"
        merged = Statistics.from_dict(found[0][(name, *key[1:])])
        assert merged.count == total.count
        for field in ("mean", "std", "mean_abs", "max_abs", "min_abs"):
            assert getattr(merged, field) == pytest.approx(
                getattr(total, field), rel=1e-6, abs=1e-6
            )


def test_a_rank_that_dies_is_named_and_nothing_is_lost(folder: Path) -> None:
    assert (folder / "refused").read_text() == "18"
    lines = (folder / "1.jsonl").read_text().splitlines()
    assert sum('"seen"' in line for line in lines) == 8


def test_without_other_ranks_it_is_refused() -> None:
    model = make()
    with Tracker(model) as tracker:
        model(torch.ones(1, 5))
        with pytest.raises(UnsupportedError, match="no other ranks"):
            tracker.reduce()
