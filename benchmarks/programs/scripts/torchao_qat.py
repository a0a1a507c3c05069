"""Quantisation-aware training and int8 training with torchao."""

import torch
from torchao.prototype.quantized_training import int8_weight_only_quantized_training
from torchao.quantization import quantize_
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer

torch.manual_seed(0)


def train(model, name):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _step in range(3):
        x, y = torch.randn(4, 64), torch.randint(0, 5, (4,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{name} loss {loss.item():.4f}")


def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))


model = Int8DynActInt4WeightQATQuantizer(groupsize=32).prepare(make())
train(model, "qat")
model = make()
quantize_(model, int8_weight_only_quantized_training())
train(model, "int8")
