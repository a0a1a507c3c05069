"""Train a small BLOOM by the Trainer's own loop, written out."""

import torch
from transformers import BloomConfig, BloomForCausalLM

torch.manual_seed(0)
config = BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=2)
model = BloomForCausalLM(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(3):
    tokens = torch.randint(0, 64, (2, 10))
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
