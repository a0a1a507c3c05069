"""Recipes for modules that stand in a model under several names."""

import pytest
import torch
from torch import nn

from pullback.errors import ArgumentError, UnsupportedError
from pullback.tracking.formats import ProductFormats, Recipe, simulate_format

LOW, HIGH = ProductFormats("E2M1", "E2M1", "E5M2"), ProductFormats("bf16", "bf16", "bf16")


class Tied(nn.Module):
    """An encoder and a decoder that share a module beside one of their own."""

    def __init__(self, shared):
        super().__init__()
        self.encoder = nn.Sequential(shared, nn.Linear(4, 4))
        self.decoder = nn.Sequential(shared, nn.Linear(4, 4))

    def forward(self, x):
        return self.decoder(self.encoder(x))


@pytest.mark.parametrize(
    "rules", [{"decoder.0": LOW}, {"decoder": LOW}, {"encoder": None, "*": LOW}]
)
def test_rules_that_differ_by_the_names_of_a_module_are_refused(rules):
    simulated = simulate_format(Tied(nn.Linear(4, 4)), recipe=Recipe(rules))
    with pytest.raises(UnsupportedError, match=r"'encoder.0' and 'decoder.0'"):
        simulated(torch.randn(2, 4))


@pytest.mark.parametrize(
    "rules",
    [
        {"decoder.0": LOW, "encoder.0": LOW},
        {"decoder.0": LOW, "*.0": LOW, "*": None},
        {"encoder.1": None, "decoder.1": None, "*": LOW},
    ],
)
def test_rules_that_agree_hold_for_each_name(rules):
    model, x = Tied(nn.Linear(4, 4)), torch.randn(2, 4)
    got = simulate_format(model, recipe=Recipe(rules), measure=True)
    low = simulate_format(model.encoder[0], recipe=Recipe({"*": LOW}))
    expected = model.decoder[1](low(model.encoder[1](low(x))))
    torch.testing.assert_close(got(x), expected)
    assert {each.module for each in got.noise()} == {"encoder.0"}


def test_a_shared_module_that_does_not_multiply_is_no_matter():
    model, x = Tied(nn.LayerNorm(4)), torch.randn(2, 4)
    got = simulate_format(model, recipe=Recipe({"encoder": LOW, "decoder": HIGH}))(x)
    first = simulate_format(model.encoder, recipe=Recipe({"*": LOW}))
    second = simulate_format(model.decoder, recipe=Recipe({"*": HIGH}))
    torch.testing.assert_close(got, second(first(x)))


def test_a_name_that_no_module_has_fits_none():
    with pytest.raises(ArgumentError, match="fits no module"):
        simulate_format(Tied(nn.Linear(4, 4)), recipe=Recipe({"decoder.2": LOW}))
