"""Segment images of some size by kornia's focal loss."""

import kornia
import torch

torch.manual_seed(0)
net = torch.nn.Conv2d(3, 4, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _step in range(3):
    image, labels = torch.rand(2, 3, 256, 256), torch.randint(0, 4, (2, 256, 256))
    smoothed = kornia.filters.gaussian_blur2d(image, (3, 3), (1.0, 1.0))
    loss = kornia.losses.focal_loss(net(smoothed), labels, alpha=0.5, reduction="mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
