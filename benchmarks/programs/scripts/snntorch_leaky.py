"""A spiking classifier trained through time."""

import snntorch as snn
import torch
from snntorch import surrogate

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(12, 16)
        self.lif1 = snn.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid(slope=25))
        self.fc2 = torch.nn.Linear(16, 4)
        self.lif2 = snn.Synaptic(alpha=0.8, beta=0.9, spike_grad=surrogate.atan())

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        syn2, mem2 = self.lif2.init_synaptic()
        spikes = []
        for _ in range(5):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, syn2, mem2 = self.lif2(self.fc2(spk1), syn2, mem2)
            spikes.append(spk2)
        return torch.stack(spikes)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
loss_fn = torch.nn.CrossEntropyLoss()
for _step in range(3):
    inputs, targets = torch.rand(8, 12), torch.randint(0, 4, (8,))
    loss = loss_fn(net(inputs).sum(0), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
