"""A quadratic program as a layer."""

import torch
from qpth.qp import QPFunction

torch.manual_seed(0)
n = 4
net = torch.nn.Linear(6, n)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
G, h = torch.cat([torch.eye(n), -torch.eye(n)]).double(), torch.ones(2 * n).double()
empty = torch.empty(0).double()
for _step in range(3):
    p = net(torch.randn(3, 6)).double()
    Q = torch.eye(n).double()
    z = QPFunction(verbose=False)(Q, p, G, h, empty, empty)
    loss = (z - 0.3).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
