"""Estimate a pose from points by gradient descent on a manifold."""

import pypose as pp
import torch

torch.manual_seed(0)


class PoseInverse(torch.nn.Module):
    def __init__(self, *dim):
        super().__init__()
        self.pose = pp.Parameter(pp.randn_se3(*dim))

    def forward(self, poses):
        return (self.pose.Exp() @ poses).Log().tensor()


poses = pp.randn_SE3(4)
points = torch.randn(4, 3)
model = PoseInverse(4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _step in range(3):
    loss = model(poses).square().sum() + model.pose.Exp().Act(points).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
