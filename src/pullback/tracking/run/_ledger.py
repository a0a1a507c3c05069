"""`Ledger`: rows that have arrived on the host, merged, kept and handed on."""

from collections import deque
from collections.abc import Callable
from itertools import groupby

import numpy as np

from pullback.tracking.measure._layout import NANS, NEGATIVE_INFINITIES, POSITIVE_INFINITIES, WIDTH
from pullback.tracking.measure._statistics import Statistics, merge_rows
from pullback.tracking.run._history import History
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.run._run import NonFinite, Series, no_points

__all__ = ["Identities", "Ledger", "Sink"]

Identities = list[tuple[Key, Place]]
Sink = Callable[[Identities, np.ndarray], None]

PREDECESSORS = 5


class Ledger:
    """The totals of every tensor, the history of the last moments, and the first non-finite one.

    Arguments:
        history: how many moments are kept.
    """

    def __init__(self, history: int = 1000) -> None:
        self.history = History(history)
        self.first_nonfinite: NonFinite | None = None
        self.sinks: list[Sink] = []
        self.latest: tuple[Identities, np.ndarray] = ([], np.zeros((0, WIDTH)))
        self._numbers: dict[Key, int] = {}
        self._rows = np.zeros((16, WIDTH))
        self._before: deque[tuple[Key, float]] = deque(maxlen=PREDECESSORS)

    def absorb(self, identities: Identities, rows: np.ndarray) -> None:
        """Take in rows in the order of their execution."""
        self.latest = (identities, rows)
        numbers = [self._number(key) for key, _ in identities]
        self._merge(np.asarray(numbers), rows)
        self._look_for_nonfinite(identities, rows)
        moments = groupby(range(len(rows)), key=lambda index: identities[index][1])
        for place, indices in moments:
            chosen = list(indices)
            self.history.add(place, [numbers[i] for i in chosen], rows[chosen])
        for sink in self.sinks:
            sink(identities, rows)

    def statistics(self, key: Key) -> Statistics | None:
        """All that was measured of a tensor, merged."""
        number = self._numbers.get(key)
        return None if number is None else Statistics.from_row(self._rows[number])

    def series(self) -> tuple[Series, ...]:
        """Every tensor in the order of its first appearance."""
        points = self.history.by_tensor()
        return tuple(
            Series(key, Statistics.from_row(self._rows[number]), points.get(number, no_points()))
            for key, number in self._numbers.items()
        )

    def totals(self) -> dict[Key, Statistics]:
        """The merged statistics of every tensor."""
        return {key: Statistics.from_row(self._rows[n]) for key, n in self._numbers.items()}

    def _number(self, key: Key) -> int:
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        if number >= len(self._numbers) - 1 and not self._rows[number].any():
            self._rows[number] = Statistics(0).to_row()
        return number

    def _merge(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Merge rows into the totals; a tensor that occurs twice takes two rounds."""
        left = np.arange(len(numbers))
        while len(left):
            unique, first = np.unique(numbers[left], return_index=True)
            self._rows[unique] = merge_rows(self._rows[unique], rows[left[first]])
            left = np.delete(left, first)

    def _look_for_nonfinite(self, identities: Identities, rows: np.ndarray) -> None:
        if self.first_nonfinite is not None:
            return
        bad = rows[:, NANS] + rows[:, POSITIVE_INFINITIES] + rows[:, NEGATIVE_INFINITIES] > 0
        index = int(np.argmax(bad)) if bad.any() else len(rows)
        for i in range(max(0, index - PREDECESSORS), index):
            self._before.append((identities[i][0], Statistics.from_row(rows[i]).scale))
        if index < len(rows):
            key, place = identities[index]
            self.first_nonfinite = NonFinite(
                key, place, Statistics.from_row(rows[index]), tuple(self._before)
            )
