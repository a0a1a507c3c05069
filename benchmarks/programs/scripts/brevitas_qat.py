"""Quantisation-aware training with brevitas."""

import brevitas.nn as qnn
import torch
from brevitas.quant import Int8ActPerTensorFloat, Int8WeightPerTensorFloat

torch.manual_seed(0)


class QuantNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = qnn.QuantConv2d(
            1, 4, 3, weight_bit_width=4, input_quant=Int8ActPerTensorFloat, bias=True
        )
        self.act = qnn.QuantReLU(bit_width=4)
        self.fc = qnn.QuantLinear(4 * 36, 5, bias=True, weight_quant=Int8WeightPerTensorFloat)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).flatten(1))


model = QuantNet().train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(3):
    x, y = torch.rand(4, 1, 8, 8), torch.randint(0, 5, (4,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
