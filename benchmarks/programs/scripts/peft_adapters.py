"""Fine-tune a small Llama through two kinds of adapters."""

import torch
from peft import LoHaConfig, RandLoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2,
)  # fmt: skip
targets = ["q_proj", "v_proj"]
for adapter in (
    LoHaConfig(r=2, target_modules=targets),
    RandLoraConfig(r=2, target_modules=targets),
):
    model = get_peft_model(LlamaForCausalLM(config), adapter).train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3)
    for _step in range(2):
        tokens = torch.randint(0, 64, (2, 8))
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{type(adapter).__name__} loss {loss.item():.4f}")
