"""Train a unit-scaled network: activations and gradients of variance one from the start."""

import torch
import unit_scaling as uu
import unit_scaling.functional as scaled
from torch import nn


class Network(nn.Module):
    """Two unit-scaled layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = uu.Linear(8, 32), uu.LinearReadout(32, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """The value at each point."""
        return self.last(scaled.gelu(self.first(points)))


if __name__ == "__main__":
    torch.manual_seed(0)
    points = torch.randn(200, 8)
    values = torch.sin(points[:, :1]) + 0.5 * points[:, 1:2]
    network = Network()
    optimizer = uu.optim.Adam(network.parameters(), lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = scaled.mse_loss(network(points), values)
        loss.backward()
        optimizer.step()
    print(f"mean squared error {loss:.4f}")
