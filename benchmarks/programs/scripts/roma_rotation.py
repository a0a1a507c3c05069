"""Regress rotations by special orthogonal Procrustes."""

import roma
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 9))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _step in range(3):
    x = torch.randn(8, 6)
    target = roma.random_rotmat(8)
    rotation = roma.special_procrustes(net(x).reshape(8, 3, 3))
    loss = (rotation - target).square().mean() + roma.rotmat_geodesic_distance(
        rotation, target
    ).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
