"""A recurrent spiking network in norse."""

import norse.torch as norse
import torch

torch.manual_seed(0)
model = norse.SequentialState(
    torch.nn.Linear(10, 12),
    norse.LIFCell(p=norse.LIFParameters(method="super", alpha=torch.tensor(100.0))),
    torch.nn.Linear(12, 8),
    norse.LIFRecurrentCell(8, 8),
    norse.LICell(),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _step in range(3):
    data, target = (torch.rand(6, 4, 10) > 0.5).float(), torch.rand(4, 8)
    state = None
    outputs = []
    for time_step in data:
        out, state = model(time_step, state)
        outputs.append(out)
    loss = torch.nn.functional.mse_loss(torch.stack(outputs).mean(0), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
