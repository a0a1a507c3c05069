"""Two ranks under torchrun: data in parallel, and a sum over ranks with its gradient."""

import torch
import torch.distributed as dist
from pytorch_revgrad import RevGrad
from sparsemax import Sparsemax
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    features = torch.nn.Linear(6, 8)
    heads = torch.nn.ModuleDict(
        {
            "label": torch.nn.Sequential(torch.nn.Linear(8, 3), Sparsemax(dim=-1)),
            "domain": torch.nn.Sequential(RevGrad(), torch.nn.Linear(8, 2)),
        }
    )

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.heads = features, heads

        def forward(self, x):
            h = self.features(x).relu()
            return self.heads["label"](h), self.heads["domain"](h)

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        x, label, domain = torch.randn(5, 6), torch.randint(0, 3, (5,)), torch.randint(0, 2, (5,))
        p, d = model(x)
        loss = -(p[torch.arange(5), label] + 1e-3).log().mean()
        loss = loss + torch.nn.functional.cross_entropy(d, domain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
