"""Train a small Reformer: reversible layers, hashed attention."""

import torch
from transformers import ReformerConfig, ReformerModelWithLMHead

torch.manual_seed(0)
config = ReformerConfig(
    vocab_size=40, hidden_size=16, attention_head_size=8, num_attention_heads=2,
    attn_layers=["local", "lsh"], axial_pos_embds=False, max_position_embeddings=32,
    local_attn_chunk_length=8, lsh_attn_chunk_length=8, num_buckets=4, num_hashes=2,
    feed_forward_size=32, is_decoder=True, pad_token_id=0, eos_token_id=2,
)  # fmt: skip
model = ReformerModelWithLMHead(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(3):
    tokens = torch.randint(3, 40, (2, 32))
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
