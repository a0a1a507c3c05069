"""Derived answers are right or refused by name, wherever a Function hides what it depends on."""

import os
import random

import pytest
import torch
from tests.fuzzing import examples
from tests.tensor.hidden.campaign import run
from tests.tensor.hidden.maths import MATHS
from tests.tensor.hidden.passages import PASSAGES
from tests.tensor.hidden.source import Sample, load
from tests.tensor.hidden.stores import STORES

import pullback

SEED = os.environ.get("PULLBACK_SEED", "20261121")
MANY = examples(110)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.timeout(300 + MANY)
def test_right_or_refused():
    counts = run(MANY, SEED, compiled=0.003)
    print(counts.report())
    assert counts.total() >= MANY
    wrong = [failure for failure in counts.failures if failure.verdict == "wrong"]
    shown = "\n".join(str(failure) for failure in counts.failures[:20])
    assert not wrong, (
        f"{len(wrong)} of {counts.total()} answers are silently wrong:\n"
        f"{shown}\n\n{wrong[0].script()}"
    )
    assert not counts.failures, f"an error that is not ours takes the place of a refusal:\n{shown}"
    # A library that refuses everything is right and of no use.
    usual = counts.ordinary
    assert usual["right"] >= 0.9 * sum(usual.values()), counts.report()
    # Of thousands of answers 6 in 10 are right; of some hundred, a few in 100 more or less.
    assert counts.total("right") >= (0.58 - 1.2 / MANY**0.5) * counts.total(), counts.report()


def samples():
    for i, store in enumerate(STORES):
        maths = next(m for m in MATHS if not store.number or m.name == "Total")
        yield Sample(maths, store, None, "forward", "complete", False, torch.float32)
        passage = PASSAGES[i % len(PASSAGES)]
        yield Sample(maths, STORES[0], passage, "forward", "complete", False, torch.float32)
        yield Sample(maths, STORES[0], passage, "backward", "complete", True, torch.float32)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("sample", list(samples()), ids=lambda sample: sample.place)
def test_first_order_is_equal_to_the_last_bit(sample):
    module = load(sample.source())
    original = getattr(module, f"Hidden{sample.maths.name}")
    generator = torch.Generator().manual_seed(random.Random(SEED).getrandbits(32))
    x = torch.rand(3, generator=generator) + 0.5
    cotangent = torch.rand(3, generator=generator)
    found = []
    for function in (original, pullback.complete(original)):
        leaf = x.clone().requires_grad_()
        y = function.apply(leaf)
        y = y[0] if isinstance(y, tuple) else y
        found.append((y, *torch.autograd.grad(y, leaf, cotangent)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
