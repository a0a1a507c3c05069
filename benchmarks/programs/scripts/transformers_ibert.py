"""Fine-tune a small integer-only BERT, quantised."""

import torch
from transformers import IBertConfig, IBertForSequenceClassification

torch.manual_seed(0)
config = IBertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=20, quant_mode=True, num_labels=3,
)  # fmt: skip
model = IBertForSequenceClassification(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(3):
    tokens, labels = torch.randint(3, 50, (2, 8)), torch.randint(0, 3, (2,))
    loss = model(input_ids=tokens, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
