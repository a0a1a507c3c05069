"""`Work`: what every promise is tested with, and what a test of one says."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pullback.conformance import Arguments, guarded, keep, outside, reseed
from pullback.report import Verdict
from pullback.verification._answers import Answer, Placing, dtype_of
from pullback.verification._error import Judge, Result

__all__ = ["Promise", "Trial", "Work", "broken", "promise", "raises", "wrong"]

Trial = tuple[str, Arguments | None, Placing]
"""What was changed, the arguments if there are such, and where their tensors lie."""

_TRIALS = 64


@dataclass(frozen=True)
class Promise:
    """One thing that a kernel promises who says that it computes what its reference does.

    Arguments:
        id: its stable name.
        promise: what is promised.
        mend: how a kernel that breaks it is mended.
        test: says how a kernel stands to it; ``None`` if it holds.
        alone: whether it can be judged where the numbers are wrong as given.
    """

    id: str
    promise: str
    mend: str
    test: Callable[["Work"], Result | None]
    alone: bool = False


def promise(
    said: str, mend: str, *, alone: bool = False
) -> Callable[[Callable[["Work"], Result | None]], Promise]:
    """Make a promise of what tests it, under the name of that."""
    return lambda test: Promise(test.__name__, said, mend, test, alone)


@dataclass(kw_only=True)
class Work(Judge):
    """A kernel, its reference, and arguments."""

    make: Callable[[], tuple[Any, ...]] | None  # fresh arguments, where the caller gave that
    forbid: tuple[Any, ...]  # functions of torch, or names of functions and operators
    sizes: bool = True  # whether others than those of the example are tried, but by the promise

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the example."""
        return dtype_of(self.given)

    def fresh(self, number: int) -> Arguments:
        """The arguments with other values of the same kind, other ones for each number."""
        if self.make is not None:
            with guarded():
                reseed(self.seed + 7919 * number)
                return Arguments.of(self.make())
        drawn = torch.Generator().manual_seed(self.seed + 7919 * number)
        pairs = [(given, keep(given, _redrawn(given, drawn))) for given in self.given.values]
        return self.given.with_values([given if new is None else new for given, new in pairs])

    def changed(
        self, change: Callable[[torch.Tensor], torch.Tensor], arguments: Arguments | None = None
    ) -> Arguments | None:
        """The arguments, or others, with something done to every differentiated tensor.

        ``None`` where the result is of another kind, or where the reference may not be defined.
        """
        made = []
        arguments = arguments or self.given
        for given in arguments.points():
            value = keep(given, change(given))
            if value is None or value.dtype != given.dtype or outside(given, value):
                return None
            made.append(value)
        return arguments.with_points(made)

    def raw(self, tensors: list[torch.Tensor]) -> Answer:
        """The kernel's own outputs for these very tensors, not copied."""
        reseed(self.seed)
        outputs = self.outputs(self.kernel.of(self.dtype), self.given, tensors)
        return Answer(tuple(output.detach() for output in outputs.values()), names=(*outputs,))

    def copies(self, arguments: Arguments) -> list[torch.Tensor]:
        """Tensors of their own, with the values of the arguments."""
        return [value.clone() for value in arguments.values]

    def over(self, trials: Iterable[Trial], *, refusals: bool = False) -> Result:
        """The worst of several comparisons, in which a kernel may raise where it may refuse."""
        tried, refused, last = 0, [], ""
        possible = ((name, made, place) for name, made, place in trials if made is not None)
        for name, arguments, place in itertools.islice(possible, _TRIALS):
            found = self.compare(arguments, place)
            if found.verdict is Verdict.CRASHES and self.gradients:
                # What is wrong before backward raises is wrong.
                outputs = self.silent().compare(arguments, place)
                found = outputs if outputs.fault else found
            if found.fault:
                return wrong(name, found)
            if found.verdict is Verdict.CRASHES:
                refused.append(f"{name}: {found.detail}")
                continue
            if found.verdict is Verdict.SKIPPED:
                last = found.detail
                continue
            tried += 1
        if refused and not refusals:
            return raises(refused[0])
        if refused:
            return Result(Verdict.LACKING, f"{tried} hold; refused: {'; '.join(refused[:3])}")
        if not tried:
            return Result(Verdict.SKIPPED, last or "nothing could be changed")
        return Result(Verdict.HOLDS, f"right at {tried} variations")


def wrong(name: str, found: Result) -> Result:
    """A comparison that went wrong, for a report."""
    where = f"{name}: " if name else ""
    return replace(found, detail=f"{where}{found.fault}.")


def raises(said: str) -> Result:
    """An error of the kernel where the reference has none."""
    return Result(Verdict.CRASHES, f"It raises where the reference answers: {said}")


broken = partial(Result, Verdict.BROKEN)


def _redrawn(value: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """The entries in another order, each changed by up to a fifth; whole numbers as they are."""
    if not value.is_floating_point() or not value.numel():
        return value
    order = torch.randperm(value.numel(), generator=drawn, device="cpu")
    uniform = torch.rand(value.shape, generator=drawn, dtype=torch.float64, device="cpu")
    factor = 1 + 0.4 * (uniform - 0.5).to(value.device)
    moved = value.flatten()[order].view(value.shape)
    whole = bool((value == value.round()).all())
    return moved if whole else (moved.double() * factor).to(value.dtype)
