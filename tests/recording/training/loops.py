"""What the programs share: data, loops, one rank of a group."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 6


class Two(nn.Sequential):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


def classify(steps: int = STEPS) -> Iterator[tuple[Any, Any]]:
    """Batches of eight items with four features and four classes."""
    for _ in range(steps):
        yield torch.randn(8, 4), torch.randint(4, (8,))


def fit(model: Any, optimizer: Any = None, steps: int = STEPS) -> None:
    """The plainest loop."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in classify(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """A group of gloo with one rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def fit_lightning(module: Any) -> None:
    """One epoch of Lightning, silently."""
    import pytorch_lightning as pl

    data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randint(4, (48,)))
    pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, torch.utils.data.DataLoader(data, batch_size=8))  # fmt: skip
