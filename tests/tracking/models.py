"""Models and a training loop that the tests of tracking share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map


class Around(torch.Tensor):
    """A tensor around another one, as a DTensor is: it has no elements of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Around":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def bare(given: Any) -> Any:
            return given.inner if isinstance(given, Around) else given

        result = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            return result  # a layer gives plain tensors
        return tree_map(lambda each: cls(each) if isinstance(each, torch.Tensor) else each, result)


def sequential() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 7), nn.Sequential(nn.Tanh())
    )


class Nested(nn.Module):
    """Returns a dictionary with a tuple in it, and something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"hidden": (self.one(x), self.two(x)), "name": "nested", "ids": torch.arange(3)}


@dataclass
class ModelOutput:
    """A dataclass as Hugging Face's models return them."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class HuggingFaceStyle(nn.Module):
    """Keyword arguments in, a dataclass with the loss out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.encoder, self.classifier = Nested(), nn.Linear(7, 2)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> ModelOutput:
        hidden = torch.cat(self.encoder(inputs)["hidden"], -1)
        logits = self.classifier(hidden)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ModelOutput(logits, loss)


class Tied(nn.Module):
    """Calls one layer three times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sin(self.layer(x))
        return x


def loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.square().mean()
    if isinstance(output, ModelOutput):
        return output.logits.square().mean()
    return sum(part.square().mean() for part in output["hidden"])


def train(
    model: nn.Module,
    steps: int = 20,
    called: Callable[..., Any] | None = None,
    after: Callable[[], None] = lambda: None,
) -> list[torch.Tensor]:
    """Train, and give every loss and gradient on the way."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(4)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(
            (model if called is None else called)(torch.randn(4, 5, generator=generator))
        )
        loss.backward()
        seen.append(loss.detach().clone())
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        after()
    return seen


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
