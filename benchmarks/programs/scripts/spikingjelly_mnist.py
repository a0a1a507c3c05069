"""A small convolutional spiking network, single step."""

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate

torch.manual_seed(0)
net = torch.nn.Sequential(
    layer.Conv2d(1, 4, 3, padding=1, bias=False),
    layer.BatchNorm2d(4),
    neuron.IFNode(surrogate_function=surrogate.ATan()),
    layer.MaxPool2d(2, 2),
    layer.Flatten(),
    layer.Linear(4 * 16, 10),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.Sigmoid(alpha=4.0)),
)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _step in range(3):
    image, label = torch.rand(6, 1, 8, 8), torch.randint(0, 10, (6,))
    rate = sum(net(image) for _ in range(4)) / 4
    loss = torch.nn.functional.mse_loss(rate, torch.nn.functional.one_hot(label, 10).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    functional.reset_net(net)
    print(f"loss {loss.item():.4f}")
