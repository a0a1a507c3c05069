"""Classify series by a neural controlled differential equation."""

import torch
import torchcde

torch.manual_seed(0)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4 * 3)

    def forward(self, t, z):
        return self.linear(z).tanh().view(*z.shape[:-1], 4, 3)


field, readout = Field(), torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam([*field.parameters(), *readout.parameters()], lr=1e-2)
for _step in range(2):
    x, y = torch.randn(3, 6, 3), torch.randint(0, 2, (3,)).float()
    path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
    z = torchcde.cdeint(X=path, func=field, z0=torch.zeros(3, 4), t=path.interval, adjoint=True)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(readout(z[:, -1])[:, 0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
