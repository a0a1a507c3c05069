"""Fit a neural ODE by the adjoint; the model is in the script."""

import torch
from torchdiffeq import odeint_adjoint, odeint_event

torch.manual_seed(0)


class Dynamics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )

    def forward(self, t, y):
        return self.net(y**3)


dynamics = Dynamics()
optimizer = torch.optim.RMSprop(dynamics.parameters(), lr=1e-2)
times = torch.linspace(0, 1, 4)
for _step in range(3):
    start = torch.rand(3, 2) + 1
    path = odeint_adjoint(dynamics, start, times, method="dopri5", rtol=1e-4, atol=1e-5)
    loss = (path[-1] - 1).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")

velocity = torch.tensor([-1.0], requires_grad=True)
for _step in range(2):
    state = torch.stack([torch.ones(1), velocity]).flatten()
    event, _ = odeint_event(
        lambda t, y: torch.stack([y[1], torch.tensor(-9.8)]), state, torch.tensor(0.0),
        event_fn=lambda t, y: y[0], method="dopri5",
    )  # fmt: skip
    event.backward()
    print(f"the ball falls for {event.item():.4f} s")
