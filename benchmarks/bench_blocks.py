"""A small transformer trained in formats with blocks, with and without a tracker's advice.

    python -m benchmarks.bench_blocks

The first steps are watched as they are; the advice is what `Tracker.advise_blocks` says of them.
Then the model is trained from the same start in bfloat16, in the format throughout, and in the
format but for what the advice keeps in bfloat16. The data are a chain of 32 states, so that the
loss has a floor that is not zero. The last column is what a rotation of each block would leave of
the kept factors.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from pullback.tracking import Tracker, simulate_format
from pullback.tracking.formats import ProductFormats, Recipe

RESULTS = Path(__file__).parent / "results" / "blocks.csv"
FORMATS = ("mxfp8", "mxfp4", "nvfp4")
STATES, LENGTH, BATCH, WIDTH, HEADS = 32, 32, 8, 32, 2
WATCHED, LAST = 60, 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(STATES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, STATES, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.05)

    def forward(self, states):
        x = self.token(states) + self.place.weight[: states.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def chains(seed):
    """Batches of one chain, whose next state depends on the last one alone."""
    rows = torch.randn(STATES, STATES, generator=torch.Generator().manual_seed(1))
    table = rows.mul(2).softmax(-1).cumsum(-1)
    generator = torch.Generator().manual_seed(seed)
    while True:
        states = [torch.randint(STATES, (BATCH,), generator=generator)]
        drawn = torch.rand(BATCH, LENGTH, 1, generator=generator)
        for i in range(LENGTH):
            states.append((table[states[-1]] < drawn[:, i]).sum(-1).clamp(max=STATES - 1))
        yield torch.stack(states, 1)


def train(run, parameters, steps, seed):
    """The mean loss of the last steps, of AdamW with a warm-up and a decay to 2 %."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    rates = [min(1, (step + 1) / 20) * (1 - step / steps) + 0.02 for step in range(steps)]
    losses = []
    for rate, states in zip(rates, chains(seed), strict=False):
        optimizer.param_groups[0]["lr"] = 1e-2 * rate
        logits = run(states[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), states[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-LAST:]) / LAST


def model_of(seed):
    torch.manual_seed(seed)
    return Transformer()


def loss_of(recipe, steps, seed):
    model = model_of(seed)
    return train(simulate_format(model, recipe=recipe), model.parameters(), steps, seed)


def advice_for(blocks):
    model = model_of(0)
    with Tracker(model, every=10, blocks=blocks) as tracker:
        train(model, model.parameters(), WATCHED, 0)
    return tracker.advise_blocks()


def uniform(number_format):
    return Recipe({"*": ProductFormats(number_format, number_format, number_format)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    def mean_loss(recipe):
        losses = [loss_of(recipe, options.steps, seed) for seed in range(options.seeds)]
        return sum(losses) / len(losses)

    base = mean_loss(uniform("bf16"))
    rows = [["bf16", "uniform", f"{base:.4f}", "0.0", "", "", ""]]
    for blocks in FORMATS:
        advice = advice_for(blocks)
        kept = [advice.errors[factor] for factor in advice.keep]
        for variant, recipe in (
            ("uniform", uniform(blocks)),
            ("with the advice", advice.recipe("bf16")),
        ):
            loss = mean_loss(recipe)
            over = f"{100 * (loss / base - 1):.1f}"
            rows.append([blocks, variant, f"{loss:.4f}", over, "", "", ""])
        rows[-1][4:] = [
            "; ".join(f"{role} of {module}" for module, role in advice.keep),
            "; ".join(f"{each.decibels:.1f}" for each in kept),
            "; ".join(f"{each.decibels_rotated:.1f}" for each in kept),
        ]
        print(advice)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["format", "variant", "loss", "over_bf16_percent", "kept", "sqnr_db", "rotated_sqnr_db"]
        )
        writer.writerows(rows)
    for row in rows:
        print("  ".join(str(cell).ljust(16) for cell in row).rstrip())


if __name__ == "__main__":
    main()
