"""LoRA by hand over a frozen 4-bit layer, and an 8-bit one."""

import bitsandbytes as bnb
import torch

torch.manual_seed(0)


class LoraLinear4bit(torch.nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        dense = torch.nn.Linear(size, size)
        self.base = bnb.nn.Linear4bit(size, size, quant_type="nf4", compute_dtype=torch.float32)
        self.base.load_state_dict(dense.state_dict())
        self.base.requires_grad_(False)
        self.down = torch.nn.Linear(size, rank, bias=False)
        self.up = torch.nn.Linear(rank, size, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


int8 = bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False, threshold=6.0)
int8.requires_grad_(False)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 64), LoraLinear4bit(64), torch.nn.GELU(), int8, torch.nn.Linear(64, 3)
).to("cpu")
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for _step in range(3):
    x, y = torch.randn(5, 8), torch.randint(0, 3, (5,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
