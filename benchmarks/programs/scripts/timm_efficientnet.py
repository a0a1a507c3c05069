"""Image classifiers with memory-saving activations."""

import torch
from efficientnet_pytorch import EfficientNet
from timm.layers.activations_me import HardMishMe, HardSwishMe, MishMe, SwishMe

torch.manual_seed(0)
small = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), SwishMe(), torch.nn.Conv2d(4, 4, 3), MishMe(),
    torch.nn.Conv2d(4, 4, 3), HardSwishMe(), HardMishMe(), torch.nn.Flatten(),
    torch.nn.LazyLinear(5),
)  # fmt: skip
swish = EfficientNet.from_name("efficientnet-b0", num_classes=5)._swish
head = torch.nn.Sequential(torch.nn.Linear(12, 6), swish, torch.nn.Linear(6, 5))
small(torch.rand(1, 3, 12, 12))
optimizer = torch.optim.SGD([*small.parameters(), *head.parameters()], lr=0.1)
for _step in range(3):
    image, vector, y = torch.rand(4, 3, 12, 12), torch.randn(4, 12), torch.randint(0, 5, (4,))
    loss = torch.nn.functional.cross_entropy(small(image) + head(vector), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
