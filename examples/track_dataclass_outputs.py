"""Track a model in Hugging Face's style: keywords in, a dictionary or a dataclass out.

Run it with ``python examples/track_dataclass_outputs.py``. Each tensor of a nested output gets a
name of its own, such as ``encoder[hidden]`` or ``(root).logits``; the outputs stay as they were.
"""

from dataclasses import dataclass

import torch
from torch import nn

from pullback.tracking import Tracker


@dataclass
class Output:
    """What the classifier returns: ``logits [batch, 2]`` and the loss, a scalar."""

    logits: torch.Tensor
    loss: torch.Tensor


class Encoder(nn.Module):
    """Returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(100, 32), nn.Linear(32, 32)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Map tokens ``[batch, length]`` to hidden and pooled values."""
        hidden = torch.tanh(self.mix(self.embed(input_ids)))
        return {"hidden": hidden, "pooled": hidden.mean(1)}


class Classifier(nn.Module):
    """Returns a dataclass with the loss in it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(32, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Output:
        """Classify tokens ``[batch, length]`` and compare with labels ``[batch]``."""
        logits = self.head(self.encoder(input_ids=input_ids)["pooled"])
        return Output(logits, nn.functional.cross_entropy(logits, labels))


def main() -> None:
    """Train a few steps and print what was seen."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Tracker(model) as tracker:
        for _ in range(20):
            input_ids = torch.randint(100, (16, 12))
            output = model(input_ids=input_ids, labels=(input_ids[:, 0] < 50).long())
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
    print(tracker.table())


if __name__ == "__main__":
    main()
