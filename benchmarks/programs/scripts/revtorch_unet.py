"""A reversible sequence of blocks."""

import revtorch
import torch

torch.manual_seed(0)


def block():
    make = lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Tanh())  # noqa: E731
    return revtorch.ReversibleBlock(make(), make())


body = revtorch.ReversibleSequence(torch.nn.ModuleList([block(), block()]))
first, last = torch.nn.Conv2d(1, 6, 1), torch.nn.Conv2d(6, 1, 1)
optimizer = torch.optim.SGD([*first.parameters(), *body.parameters(), *last.parameters()], lr=0.1)
for _step in range(3):
    x = torch.randn(2, 1, 6, 6)
    loss = (last(body(first(x))) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
