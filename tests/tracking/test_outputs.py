"""Outputs of every kind under torch.func, where a tracker puts its own tensors in their place."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from pullback.tracking import Tracker


class Pair(tuple):
    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> "Pair":
        return super().__new__(cls, (first, second))


class Labelled(list):
    def __init__(self, first: Any, label: str) -> None:
        super().__init__([first])
        self.label = label


@dataclasses.dataclass
class Scaled:
    value: Any
    factor: dataclasses.InitVar[float]
    double: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self, factor: float) -> None:
        self.double = self.value * factor


class Frozen(Mapping):
    def __init__(self, *, y: Any) -> None:
        self.items_ = {"y": y}

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Returning(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(3, 3), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.layer(x))


def tracked(make: Callable[[torch.Tensor], Any], take: Callable[[Any], torch.Tensor]) -> Tracker:
    """A tracker that saw a model under ``torch.func.grad``, which is held to its gradient."""
    model, x = Returning(make), torch.randn(2, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        output = model(x)
        assert type(output) is type(make(x))
        return take(output).sum()

    expected = torch.func.grad(loss)(x)
    with Tracker(model) as tracker:
        assert torch.equal(torch.func.grad(loss)(x), expected)
    return tracker


@pytest.mark.parametrize(
    ("make", "take", "names"),
    [
        (lambda y: Pair(y, 2 * y), lambda o: o[1], {"(root)[0]", "(root)[1]"}),
        (lambda y: Labelled(y, "kept"), lambda o: o[0] * (o.label == "kept"), {"(root)[0]"}),
        (lambda y: Scaled(y, 3.0), lambda o: o.double, {"(root).value", "(root).double"}),
        (lambda y: torch.max(y, 0), lambda o: o.values, {"(root)[0]"}),
        (lambda y: (y, y.shape), lambda o: o[0], {"(root)[0]"}),
    ],
    ids=["tuple", "list", "dataclass", "return type", "size"],
)
def test_containers_that_are_not_made_from_their_parts(make, take, names):
    tracker = tracked(make, take)
    for name in names:
        assert tracker.total(name).count
    assert any(key.name in names and key.direction == "backward" for key in tracker.totals())


def test_what_cannot_be_measured_is_left_and_named():
    tracker = tracked(lambda y: (y, y.to_sparse(), y.to("meta")), lambda o: o[0])
    assert tracker.total("(root)[0]", "backward").count == 6
    assert set(tracker.skipped) == {"(root)[1]", "(root)[2]"}


def test_a_mapping_that_cannot_be_rebuilt_is_left_and_named():
    tracker = tracked(lambda y: Frozen(y=y), lambda o: o["y"])
    assert "Frozen" in tracker.skipped["(root)"]


@pytest.mark.parametrize("transformed", [False, True])
def test_keys_that_read_alike_are_told_apart(transformed: bool) -> None:
    model = Returning(lambda x: {1: x[:1], "1": x, "y": x[:2]})

    def loss(x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        return found[1].sum() + found["1"].sum() + found["y"].sum()

    with Tracker(model, names="(root)") as tracker:
        if transformed:
            torch.func.grad(loss)(torch.ones(4, 3))
        else:
            loss(torch.ones(4, 3)).backward()
        tracker.step()
    counts = {key.name: total.count for key, total in tracker.totals().items()}
    assert counts == {"(root)[1]": 3, "(root)['1']": 12, "(root)[y]": 6}
