"""A reversible block that rebuilds its input in backward."""

import memcnn
import torch

torch.manual_seed(0)
block = memcnn.InvertibleModuleWrapper(
    memcnn.AdditiveCoupling(
        Fm=torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.Tanh()),
        Gm=torch.nn.Conv2d(2, 2, 3, padding=1),
    ),
    keep_input=False,
)
head = torch.nn.Conv2d(4, 1, 1)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
for _step in range(3):
    x = torch.randn(2, 4, 6, 6)
    loss = head(block(x * 1.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
