"""Track a module while Lightning trains it: put the tracker around ``trainer.fit``.

Run it with ``python examples/track_lightning.py``. It needs ``pip install pytorch-lightning``, and
says so where that is missing. Nothing of the module or the trainer changes.
"""

import importlib
import importlib.util

import torch
from torch import nn

from pullback.tracking import Tracker


def main() -> None:
    """Fit a small module for an epoch and print what was seen."""
    if importlib.util.find_spec("pytorch_lightning") is None:
        print("This example needs Lightning: pip install pytorch-lightning")
        return
    lightning = importlib.import_module("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return (self.net(batch) - batch.sum(-1, keepdim=True)).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    module = Module()
    loader = torch.utils.data.DataLoader([torch.randn(8) for _ in range(256)], batch_size=16)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    with Tracker(module) as tracker:
        trainer.fit(module, loader)
    print(tracker.table())


if __name__ == "__main__":
    main()
