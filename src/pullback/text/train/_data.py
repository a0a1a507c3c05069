"""Data: samples by number, in an order, in batches; the same order for the same seed."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import Count, checked, is_whole
from pullback.internal._text import shown
from pullback.tape import Variable

__all__ = [
    "DataLoader",
    "Dataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "WeightedRandomSampler",
]


@runtime_checkable
class Dataset(Protocol):
    """Samples by number: any list will do."""

    def __getitem__(self, index: int) -> Any:
        """A sample."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...


class Sampler:
    """An order of samples: its iterator gives their numbers, once an epoch."""

    def __iter__(self) -> Iterator[int]:
        raise ArgumentTypeError(f"{type(self).__name__} has no __iter__.")

    def __len__(self) -> int:
        raise ArgumentTypeError(f"{type(self).__name__} has no __len__.")


@checked
class SequentialSampler(Sampler):
    """The samples in their order.

    Example:
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Seeded(Sampler):
    """Draws anew each epoch; the n-th epoch of a seed is the same in any process."""

    def __init__(self, num_samples: int, most: int, replacement: bool, seed: int | None) -> None:
        self.num_samples, self.replacement = num_samples, replacement
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self.epoch = 0
        if not most or (not replacement and num_samples > most):
            raise ArgumentError(
                "So many samples cannot be drawn.", given=f"{num_samples=}",
                expected=f"1 to {most}, or replacement=True",
            )  # fmt: skip

    def _draw(self, dice: random.Random) -> list[int]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        dice = random.Random(f"{self.seed} {self.epoch}")  # noqa: S311  # an order, no secret
        self.epoch += 1
        return iter(self._draw(dice))

    def __len__(self) -> int:
        return self.num_samples


@checked
class RandomSampler(_Seeded):
    """The samples in a random order, or drawn with replacement.

    Arguments:
        data_source: the samples.
        replacement: whether one may come twice.
        num_samples: how many an epoch; all if None.
        seed: of the drawing; from the system if None.

    Raises:
        ArgumentError: more are asked for than there are, without replacement; or none.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: Count | None = None,
        seed: int | None = None,
    ) -> None:
        size = len(data_source)
        super().__init__(size if num_samples is None else num_samples, size, replacement, seed)
        self.data_source = data_source

    def _draw(self, dice: random.Random) -> list[int]:
        size = len(self.data_source)
        if self.replacement:
            return [dice.randrange(size) for _ in range(self.num_samples)]
        return dice.sample(range(size), self.num_samples)


@checked
class WeightedRandomSampler(_Seeded):
    """Samples drawn by weights.

    Arguments:
        weights: one for each sample, from 0; they need not sum to 1.
        num_samples: how many an epoch.
        replacement: whether one may come twice.
        seed: of the drawing; from the system if None.

    Raises:
        ArgumentError: a weight is negative or no number, none is positive, or more are asked for
            than have a weight, without replacement.

    Example:
        >>> set(WeightedRandomSampler([0.0, 1.0, 1.0], 20, seed=0))
        {1, 2}
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: Count,
        replacement: bool = True,
        seed: int | None = None,
    ) -> None:
        self.weights = [float(weight) for weight in weights]
        positive = sum(weight > 0 for weight in self.weights)
        known = all(math.isfinite(weight) and weight >= 0 for weight in self.weights)
        if not (known and positive):
            raise ArgumentError("Weights are numbers from 0, some of them positive.",
                                given=shown(weights))  # fmt: skip
        super().__init__(num_samples, positive, replacement, seed)

    def _draw(self, dice: random.Random) -> list[int]:
        numbers = range(len(self.weights))
        if self.replacement:
            most = max(self.weights)  # beside which no sum is infinite, and no weight vanishes
            weights = [weight / most for weight in self.weights]
            return dice.choices(numbers, weights, k=self.num_samples)
        # Without replacement: Efraimidis and Spirakis 2006, the largest of u^(1/w).
        keys = [
            (math.log(1.0 - dice.random()) / weight if weight else -math.inf, number)
            for number, weight in zip(numbers, self.weights, strict=True)
        ]
        return [number for _, number in sorted(keys, reverse=True)[: self.num_samples]]


@checked
class DataLoader:
    """Batches of a dataset.

    Arguments:
        dataset: the samples.
        batch_size: how many a batch; None for samples alone, as they are.
        shuffle: whether in a random order.
        sampler: gives the order instead.
        drop_last: whether a last batch that is smaller is left out.
        seed: of the order.
        collate_fn: makes a batch of a list of samples; `collate` if None.

    Raises:
        ArgumentError: the batch size is no positive number, or an order is given twice.

    Example:
        >>> loader = DataLoader([(Variable("a"), 1), (Variable("b"), 2), (Variable("c"), 3)], 2)
        >>> [(texts.data, numbers) for texts, numbers in loader]
        [(['a', 'b'], [1, 2]), (['c'], [3])]
    """

    def __init__(  # noqa: PLR0917  # torch's signature
        self,
        dataset: Dataset,
        batch_size: Count | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if shuffle and sampler is not None:
            raise ArgumentError("The order is given by shuffle and by a sampler.",
                                expected="one of them")  # fmt: skip
        if batch_size is None and drop_last:
            raise ArgumentError("There is no last batch without batches.", given="drop_last=True")
        if isinstance(sampler, Iterator):
            raise ArgumentTypeError("A sampler gives an order each epoch; this is used up.",
                                    given=shown(sampler), mend="Pass a list.")  # fmt: skip
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        if sampler is None:
            random_order = RandomSampler(dataset, seed=seed) if shuffle else None
            sampler = random_order or SequentialSampler(dataset)
        self.sampler = sampler
        self.collate_fn = collate_fn or collate

    def __iter__(self) -> Iterator[Any]:
        numbers = iter(self.sampler)
        if self.batch_size is None:
            yield from map(self._sample, numbers)
            return
        while chosen := list(itertools.islice(numbers, self.batch_size)):
            if len(chosen) < self.batch_size and self.drop_last:
                return
            yield self.collate_fn(list(map(self._sample, chosen)))

    def _sample(self, number: Any) -> Any:
        size = len(self.dataset)
        if is_whole(number) and not -size <= number < size:
            raise ArgumentError("The sampler names a sample that there is not.",
                                given=f"{number}", expected=f"below {size}")  # fmt: skip
        return self.dataset[number]

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[bad-argument-type]
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


def collate(samples: list[Any]) -> Any:
    """A batch of samples: Variables become one of a list, tuples and dicts are gone through."""
    first = samples[0]
    if any(type(sample) is not type(first) for sample in samples):
        raise ArgumentTypeError(
            "The samples of a batch differ in structure.",
            given=", ".join(sorted({type(sample).__name__ for sample in samples})),
        )
    if isinstance(first, Variable):
        batch = Variable([sample.data for sample in samples], first.role)
        return batch.requires_grad_(any(sample.requires_grad for sample in samples))
    if isinstance(first, Mapping):
        if any(sample.keys() != first.keys() for sample in samples):
            raise ArgumentTypeError("The samples of a batch have different keys.",
                                    given=repr([list(s) for s in samples])[:120])  # fmt: skip
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        if len({len(sample) for sample in samples}) != 1:
            raise ArgumentTypeError("The samples of a batch differ in length.")
        return tuple(collate(list(column)) for column in zip(*samples, strict=True))
    return list(samples)
