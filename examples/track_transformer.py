"""Train a small transformer, watch every layer of it, and write a page to look at.

Run it with ``python examples/track_transformer.py``; it takes a few seconds and writes
``scales.html``, ``scales.jsonl`` and, where matplotlib is installed, ``scales.png``. The model is
made with two mistakes, and the page names both. The bias of one feed-forward layer keeps its ReLU
shut, so that the ReLU is dead and no gradient reaches what is before it. The weights of one
block's attention decay with the wrong sign, by a factor of 1.05 a step, so that the scale of what
the block adds to the residual stream drifts upwards.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from pullback.tracking import Tracker

WORDS, WIDTH, LENGTH = 64, 64, 32


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalisation and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.before_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[batch, length, width]`` to the same shape."""
        parts = self.mix(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.movedim(-3, 0).transpose(-3, -2)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(-3, -2).flatten(-2))
        return x + self.feed_forward(self.before_feed_forward(x))


class Transformer(nn.Module):
    """A language model of a few blocks."""

    def __init__(self, words: int, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch, length, words]`` for tokens ``[batch, length]``."""
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def shut(block: nn.Module) -> None:
    """The first mistake: a bias so low that the ReLU after it never opens."""
    with torch.no_grad():
        block.feed_forward[0].bias.fill_(-20.0)


def decay(layer: nn.Module) -> None:
    """The second mistake: a decay by hand that lets the weights grow, 1.05 where 0.95 was meant."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(1.05)


def train(steps: int, folder: Path) -> Tracker:
    """Train on sequences that count upwards, and write what was seen to the folder."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Transformer(WORDS, WIDTH, 4)
    shut(model.blocks[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Tracker(model, jsonl=folder / "scales.jsonl") as tracker:
        for _ in range(steps):
            start = torch.randint(WORDS, (16, 1), generator=generator)
            tokens = (start + torch.arange(LENGTH + 1)) % WORDS
            loss = nn.functional.cross_entropy(
                model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay(model.blocks[2].project)
    return tracker


def main() -> None:
    """Train, print the table and what looks wrong, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    tracker = train(arguments.steps, arguments.folder)
    print(tracker.table())
    for finding in tracker.diagnose():
        print(finding)
    tracker.to_html(arguments.folder / "scales.html")
    tracker.to_png(arguments.folder / "scales.png")
    print(f"open {arguments.folder / 'scales.html'}")


if __name__ == "__main__":
    main()
