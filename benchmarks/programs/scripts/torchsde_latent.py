"""Fit a neural SDE by the stochastic adjoint."""

import torch
import torchsde

torch.manual_seed(0)


class SDE(torch.nn.Module):
    noise_type = "general"
    sde_type = "ito"

    def __init__(self):
        super().__init__()
        self.drift = torch.nn.Linear(3, 3)
        self.diffusion = torch.nn.Linear(3, 6)

    def f(self, t, y):
        return torch.tanh(self.drift(y))

    def g(self, t, y):
        return self.diffusion(y).view(-1, 3, 2).sigmoid()


sde = SDE()
times = torch.linspace(0, 1, 5)
optimizer = torch.optim.Adam(sde.parameters(), lr=1e-2)
for _step in range(3):
    start = torch.full((4, 3), 0.1)
    path = torchsde.sdeint_adjoint(sde, start, times, method="euler", dt=0.25)
    loss = (path[-1] - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
