"""A unit-scaled network."""

import torch
import unit_scaling as uu
import unit_scaling.functional as U

torch.manual_seed(0)


class MLP(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = uu.LayerNorm(d)
        self.up, self.down = uu.Linear(d, 4 * d), uu.Linear(4 * d, d)
        self.head = uu.LinearReadout(d, 7)

    def forward(self, x):
        residual, skip = U.residual_split(x, tau=0.5)
        residual = self.down(U.gelu(self.up(self.norm(residual))))
        return self.head(U.residual_add(residual, skip, tau=0.5))


model = MLP(8)
optimizer = uu.optim.AdamW(model.parameters(), lr=0.1)
for _step in range(3):
    x, y = torch.randn(6, 8), torch.randint(0, 7, (6,))
    loss = U.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
