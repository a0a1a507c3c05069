"""Train a small learned image codec."""

import torch
from compressai.entropy_models import EntropyBottleneck
from compressai.layers import GDN
from compressai.ops import quantize_ste

torch.manual_seed(0)


class Codec(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 5, 2, 2), GDN(8), torch.nn.Conv2d(8, 8, 5, 2, 2)
        )
        self.decode = torch.nn.Sequential(
            torch.nn.ConvTranspose2d(8, 8, 4, 2, 1), GDN(8, inverse=True),
            torch.nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )  # fmt: skip
        self.bottleneck = EntropyBottleneck(8)

    def forward(self, x):
        y = self.encode(x)
        _, likelihoods = self.bottleneck(y)
        return self.decode(quantize_ste(y)), likelihoods


model = Codec()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(3):
    image = torch.rand(2, 3, 16, 16)
    restored, likelihoods = model(image)
    rate = -likelihoods.log2().mean()
    loss = rate + 100 * (restored - image).square().mean() + model.bottleneck.loss() * 1e-3
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
