"""A deep graph network with reversible blocks, and a sparse cross entropy."""

import torch
from torch_geometric.nn import GCNConv, GroupAddRev
from torch_geometric.utils import cross_entropy

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.conv = GCNConv(size, size)

    def forward(self, x, edge_index):
        return self.conv(self.norm(x).relu(), edge_index)


model = torch.nn.ModuleList([GroupAddRev(Block(4), num_groups=2) for _ in range(2)])
first, head = torch.nn.Linear(5, 8), torch.nn.Linear(8, 6)
optimizer = torch.optim.Adam([*model.parameters(), *first.parameters(), *head.parameters()])
edges = torch.randint(0, 10, (2, 30))
for _step in range(3):
    h = first(torch.randn(10, 5))
    for block in model:
        h = block(h, edges)
    labels = torch.stack([torch.arange(10), torch.randint(0, 6, (10,))])
    loss = cross_entropy.sparse_cross_entropy(head(h), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
