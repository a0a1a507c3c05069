"""A simulated model whose outputs compute later is refused: nothing would round what they do."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pullback.errors import UnsupportedError
from pullback.tracking.formats import ProductFormats, Recipe, simulate_format


class Later(nn.Module):
    """Returns what multiplies after its forward."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(3, 3), kind

    def steps(self, x):
        yield self.layer(x)

    async def wait(self, x):
        return self.layer(x)

    async def stream(self, x):
        yield self.layer(x)

    def forward(self, x):
        return {
            "generator": self.steps,
            "coroutine": self.wait,
            "asynchronous": self.stream,
            "map": lambda x: map(self.layer, [x]),
            "function": lambda x: lambda: self.layer(x),
            "method": lambda x: self.steps,
            "partial": lambda x: functools.partial(functional.linear, x),
            "module": lambda x: self.layer,
            "within": lambda x: {"loss": (x, [self.steps(x)])},
            "dataclass": lambda x: Result(x, self.steps),
        }[self.kind](x)


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    step: Any


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "kind",
    [
        "generator",
        "coroutine",
        "asynchronous",
        "map",
        "function",
        "method",
        "partial",
        "module",
        "within",
        "dataclass",
    ],
)
def test_what_multiplies_after_forward_is_refused(kind):
    with pytest.raises(UnsupportedError, match="after its forward"):
        simulate_format(Later(kind), forward="E2M1")(torch.randn(2, 3))


def test_what_a_part_computes_after_its_forward_is_refused_where_formats_go_by_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Later("generator")

        def forward(self, x):
            return next(self.part(x))

    model, x = Model(), torch.randn(2, 3)
    expected = simulate_format(model.part.layer, forward="E2M1")(x)
    assert torch.equal(simulate_format(model, forward="E2M1")(x), expected)
    with pytest.raises(UnsupportedError, match="after its forward"):
        simulate_format(model, recipe=Recipe({"part": None, "*": ProductFormats("E2M1")}))(x)
