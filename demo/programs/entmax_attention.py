"""Learn which word of a sequence matters, with sparse attention and a sparse loss (entmax)."""

import torch
from entmax import Entmax15Loss, SparsemaxLoss, entmax15, entmax_bisect, sparsemax
from torch import nn


class Reader(nn.Module):
    """Attends to a sequence with one of entmax's sparse mappings and classifies the result."""

    def __init__(self, width: int, classes: int, mapping) -> None:
        super().__init__()
        self.score, self.read = nn.Linear(width, 1), nn.Linear(width, classes)
        self.mapping = mapping

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the classes for each sequence."""
        weights = self.mapping(self.score(words).squeeze(-1), dim=-1)
        return self.read((weights.unsqueeze(-1) * words).sum(1))


def main() -> None:
    """Train and print the result."""
    torch.manual_seed(0)
    words = torch.randn(128, 7, 10)
    marked = words[..., 0].argmax(-1)
    labels = words[torch.arange(128), marked, 1:5].argmax(-1)
    choices = ((sparsemax, SparsemaxLoss()), (entmax15, Entmax15Loss()), (entmax_bisect, None))
    for mapping, loss_of in choices:
        reader = Reader(10, 4, mapping)
        optimizer = torch.optim.Adam(reader.parameters(), lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            scores = reader(words)
            loss = nn.functional.cross_entropy(scores, labels) if loss_of is None else None
            loss = loss_of(scores, labels).mean() if loss is None else loss
            loss.backward()
            optimizer.step()
        right = (reader(words).argmax(-1) == labels).float().mean()
        print(f"{mapping.__name__:<14} loss {loss:.4f}  accuracy {right:.2f}")


if __name__ == "__main__":
    main()
