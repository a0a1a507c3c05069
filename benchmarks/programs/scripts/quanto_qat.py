"""Quantisation-aware training with quanto."""

import torch
from optimum.quanto import qint8, quantize

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
quantize(model, weights=qint8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _step in range(3):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
