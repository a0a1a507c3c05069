"""A model in which the gate never learns, and nothing says so: the loss falls all the same."""

import torch
from torch import nn


class Gated(nn.Module):
    """A layer behind a gate that opens where a score is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Values of shape (..., 1) for inputs of shape (..., 8)."""
        opened = (self.gate(x) > 0).float()
        return self.head(self.body(x).tanh() * opened)


torch.manual_seed(0)
model = Gated()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    x = torch.randn(64, 8)
    loss = (model(x)[:, 0] - x.sum(-1).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 13 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
