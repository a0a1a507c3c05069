"""Find the rotation that aligns two noisy point clouds by gradient descent through Procrustes."""

import roma
import torch

torch.manual_seed(0)
truth = roma.random_rotmat(dtype=torch.float64)
source = torch.randn(60, 3, dtype=torch.float64)
target = source @ truth.T + 0.01 * torch.randn(60, 3, dtype=torch.float64)

matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([matrix], lr=0.05)
for _ in range(150):
    optimizer.zero_grad()
    rotation = roma.special_procrustes(matrix)
    loss = (source @ rotation.T - target).square().mean()
    loss.backward()
    optimizer.step()
error = roma.rotmat_geodesic_distance(rotation.detach(), truth)
print(f"loss {loss:.2e}, angle to the truth {float(error) * 180 / torch.pi:.3f} degrees")
