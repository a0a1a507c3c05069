"""Sparse attention, and a sparse loss."""

import torch
from entmax import entmax15, entmax15_loss, entmax_bisect, sparsemax

torch.manual_seed(0)


class SparseAttention(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, dim)
        self.value = torch.nn.Linear(dim, dim)
        self.alpha = torch.nn.Parameter(torch.tensor(1.4))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        weights = entmax15(scores, dim=-1) + sparsemax(scores, dim=-1)
        weights = weights + entmax_bisect(scores, self.alpha, dim=-1)
        return weights @ self.value(x) / 3


model = torch.nn.Sequential(SparseAttention(8), torch.nn.Flatten(), torch.nn.Linear(40, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    x, target = torch.randn(4, 5, 8), torch.randint(0, 6, (4,))
    loss = entmax15_loss(model(x), target).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
