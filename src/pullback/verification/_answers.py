"""What a kernel or its reference answers: outputs and gradients, as tensors in a row."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from pullback.conformance import Arguments, NoEnd, reseed
from pullback.internal.torch import pytree

__all__ = ["Answer", "Placing", "Runner", "Slow", "Subject", "outputs_of", "same_bits"]

Placing = Callable[[torch.Tensor], torch.Tensor]
"""Values -> the tensor that is handed over, without history."""


class Slow(Exception):
    """The reference gives no answer in time."""


@dataclass(frozen=True)
class Answer:
    """What one call gave."""

    outputs: tuple[torch.Tensor, ...] = ()
    # Zeros where one was None; none where none were asked for.
    gradients: tuple[torch.Tensor, ...] = ()
    history: bool = False  # whether some output could be differentiated
    fault: str = ""  # why there is no answer

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor with a name for a report."""
        for number, tensor in enumerate(self.outputs):
            yield f"output[{number}]" if len(self.outputs) > 1 else "the output", tensor
        for number, tensor in enumerate(self.gradients):
            yield f"gradient[{number}]", tensor


class Subject:
    """A function, Function, custom operator or module, called the same way in every dtype."""

    def __init__(self, given: Any) -> None:
        owner = getattr(given, "__self__", given)  # the Function of an `apply`
        is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        self.given = owner if is_function else given
        self.call: Callable[..., Any] = owner.apply if is_function else given

    def of(self, dtype: torch.dtype) -> Callable[..., Any]:
        """It as it computes in a dtype: the parameters of a module are cast."""
        if isinstance(self.given, torch.nn.Module):
            return copy.deepcopy(self.given).to(dtype)
        return self.call

    @property
    def name(self) -> str:
        """``"package.module:name"``."""
        named = self.given if hasattr(self.given, "__qualname__") else type(self.given)
        return f"{named.__module__}:{named.__qualname__}".replace("<locals>.", "")


@dataclass(kw_only=True)
class Runner:
    """Calls a kernel or its reference on copies of arguments."""

    kernel: Subject
    reference: Subject
    seed: int  # of everything random, before each call, and of the cotangents
    gradients: bool = True  # whether they are asked for
    cotangents: Placing = lambda tensor: tensor  # before they are handed over

    def run(
        self, function: Callable[..., Any], arguments: Arguments, place: Placing = torch.clone
    ) -> Answer:
        """The answer to arguments, of which copies are handed over, in memory of their own."""
        tensors = [place(value) for value in arguments.values]
        reseed(self.seed)
        try:
            return self.call(function, arguments, tensors)
        except NoEnd:
            raise
        except Exception as error:  # whatever the kernel raises is what it answers
            return Answer(
                fault=f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            )

    def refer(self, arguments: Arguments, dtype: torch.dtype) -> Answer:
        """What the reference answers in a dtype; `Slow` where it gives no answer in time."""
        try:
            return self.run(self.reference.of(dtype), arguments)
        except NoEnd as error:
            raise Slow from error

    def call(
        self, function: Callable[..., Any], arguments: Arguments, tensors: Sequence[torch.Tensor]
    ) -> Answer:
        """The answer to these very tensors; what it raises is raised."""
        points = [tensors[k] for k in arguments.differentiable]
        for point in points:
            point.requires_grad_(self.gradients)
        outputs = outputs_of(function, arguments, tensors)
        history = any(output.requires_grad for output in outputs)
        found: tuple[torch.Tensor, ...] = ()
        if self.gradients and history:
            found = self._gradients(outputs, points)
        kept = tuple(output.detach() for output in outputs)
        return Answer(kept, found, history)

    def _gradients(
        self, outputs: Sequence[torch.Tensor], points: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        roots = [output for output in outputs if output.requires_grad]
        weights = [self.weights(root, number) for number, root in enumerate(roots)]
        found = torch.autograd.grad(roots, points, weights, materialize_grads=True)
        return tuple(gradient.detach() for gradient in found)

    def weights(self, output: torch.Tensor, number: int) -> torch.Tensor:
        """The cotangent of an output: the same numbers in every dtype that can hold them.

        They are rounded to the coarsest dtype, so that the truth is told of the same.
        """
        drawn = torch.Generator().manual_seed(self.seed + number)
        numbers = torch.randn(output.shape, generator=drawn, dtype=torch.float64, device="cpu")
        return self.cotangents(numbers.to(torch.bfloat16).to(output))

    def silent(self) -> Self:
        """The same without gradients."""
        return replace(self, gradients=False)


def outputs_of(
    function: Callable[..., Any], arguments: Arguments, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors that a function returns for these very tensors in the place of its arguments'."""
    every = arguments.with_differentiable(tuple(range(len(tensors))))
    args, kwargs = every.build(tensors)
    leaves = pytree.tree_leaves(function(*args, **kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def same_bits(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same number for number, NaN included."""
    pairs = list(zip(one.named(), other.named(), strict=False))
    return len(one.outputs) == len(other.outputs) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(nan=1.5e4), b.nan_to_num(nan=1.5e4))
        for (_, a), (_, b) in pairs
    )
