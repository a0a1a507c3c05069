"""A Lightning module with a Function of its own: a binarised layer."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Binarize(torch.autograd.Function):
    """Sign forward; the gradient passes where the input is small."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 1).to(grad_output.dtype)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.last(Binarize.apply(self.first(x))), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(24, 6), torch.randint(0, 2, (24,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(data, batch_size=8, num_workers=1))
    print("trained")
