"""Learn a deformation of a volume; MONAI's resampling and filters."""

import torch
from monai.losses import LocalNormalizedCrossCorrelationLoss
from monai.networks.blocks import MemoryEfficientSwish
from monai.networks.layers import GaussianFilter

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv3d(2, 4, 3, padding=1),
    MemoryEfficientSwish(),
    torch.nn.Conv3d(4, 1, 3, padding=1),
)
smooth = GaussianFilter(3, sigma=1.0, requires_grad=True)
similarity = LocalNormalizedCrossCorrelationLoss(spatial_dims=3, kernel_size=3)
optimizer = torch.optim.Adam([*net.parameters(), *smooth.parameters()], lr=1e-2)
for _step in range(3):
    fixed, moving = torch.rand(1, 1, 6, 6, 6), torch.rand(1, 1, 6, 6, 6)
    predicted = smooth(net(torch.cat([fixed, moving], 1)))
    loss = similarity(predicted, fixed)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
