"""`Account`: what may be spent, what is reserved, and what was spent; never more than may be."""

import concurrent.futures
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, fields

from pullback.errors import ArgumentError, BudgetError

__all__ = ["Account", "Spending"]

PICO = 10**12  # money is counted in whole picodollars: sums of floats would drift over a limit


@dataclass(frozen=True)
class Spending:
    """Amounts of what a budget counts.

    Arguments:
        calls: requests that were sent.
        tokens: of messages and answers.
        cost: US dollars.
        proposals: new versions that an optimiser tried.

    Example:
        >>> Spending(calls=1, tokens=10) + Spending(calls=1, cost=0.5)
        Spending(calls=2, tokens=10, cost=0.5, proposals=0)
    """

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    proposals: int = 0

    def __add__(self, other: "Spending") -> "Spending":
        """Both together."""
        if not isinstance(other, Spending):
            return NotImplemented
        return Spending(*(getattr(self, name) + getattr(other, name) for name in _NAMES))


_NAMES = tuple(field.name for field in fields(Spending))


class Account:
    """What may be spent, shared by all models and threads of a run; never exceeded.

    Before a call its most is reserved; afterwards what it used is settled. A call for which there
    is no room waits while others that may use less than was reserved are under way, and is
    refused when there can be none.

    Arguments:
        calls, tokens, cost, proposals: the most of each; any amount if None.
        seconds: the most time from the first call on.

    Raises:
        ArgumentError: a limit is negative or not a number, or there is none at all.

    Example:
        >>> account = Account(calls=2, cost=0.01)
        >>> account.spent
        Spending(calls=0, tokens=0, cost=0.0, proposals=0)
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
        proposals: int | None = None,
    ) -> None:
        limits = {"calls": calls, "tokens": tokens, "cost": cost, "proposals": proposals}
        given = {**limits, "seconds": seconds}
        self.limits = {name: limit for name, limit in given.items() if limit is not None}
        if not self.limits:
            raise ArgumentError("A budget limits something.", given="no limit",
                                expected=", ".join(given))  # fmt: skip
        for name, limit in self.limits.items():
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not number or not math.isfinite(limit) or limit < 0:
                raise ArgumentError("A limit of a budget is a number, not negative.",
                                    given=f"{name}={limit!r}")  # fmt: skip
        self._limits = [
            None if limit is None else math.floor(limit * PICO) if name == "cost" else int(limit)
            for name, limit in limits.items()
        ]
        self._spent = [0] * 4
        self._reserved = [0] * 4
        self._began: float | None = None
        self._lock = threading.Lock()
        self._waiting: deque[tuple[list[int], concurrent.futures.Future[None]]] = deque()

    @property
    def spent(self) -> Spending:
        """What was spent so far."""
        return _spending(self._spent)

    @property
    def reserved(self) -> Spending:
        """The most that calls under way may spend."""
        return _spending(self._reserved)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time is over; None if it is not limited."""
        limit = self.limits.get("seconds")
        if limit is None:
            return None
        return limit if self._began is None else self._began + limit - time.monotonic()

    def reserve(self, most: Spending) -> concurrent.futures.Future[None]:
        """Reserve the most that a call can spend.

        Returns:
            a future that is done when it is reserved, or raises `BudgetError`.
        """
        amounts = _amounts(most)
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
            self._waiting.append((amounts, future))
            decided = self._decide()
        _tell(decided)
        return future

    def settle(self, most: Spending, spent: Spending) -> None:
        """Count what a call spent, in place of the most that was reserved for it."""
        with self._lock:
            for place, (most_of, spent_of) in enumerate(
                zip(_amounts(most), _amounts(spent), strict=True)
            ):
                self._reserved[place] -= most_of
                self._spent[place] += spent_of
            decided = self._decide()
        _tell(decided)

    def add(self, spent: Spending) -> None:
        """Count what was spent elsewhere: by the run that this one resumes."""
        self.settle(Spending(), spent)

    def propose(self) -> None:
        """Count a proposal of an optimiser.

        Raises:
            BudgetError: there may be no more.
        """
        one = Spending(proposals=1)
        self.reserve(one).result(timeout=0)
        self.settle(one, one)

    def give_up(self, most: Spending, future: concurrent.futures.Future[None]) -> None:
        """No longer wait for a reservation; give it back if it was just made."""
        if not future.cancel() and future.exception() is None:
            self.settle(most, Spending())

    def _decide(self) -> list[tuple[concurrent.futures.Future[None], BudgetError | None]]:
        """Whose turn it is now; who waits longest goes first."""
        decided: list[tuple[concurrent.futures.Future[None], BudgetError | None]] = []
        while self._waiting:
            amounts, future = self._waiting[0]
            error = self._refusal(amounts)
            if error is None and not self._fits(amounts, self._reserved):
                break
            self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            if error is None:
                self._reserved = [a + b for a, b in zip(self._reserved, amounts, strict=True)]
            decided.append((future, error))
        return decided

    def _fits(self, amounts: list[int], beside: list[int]) -> bool:
        rows = zip(self._limits, self._spent, beside, amounts, strict=True)
        return all(
            limit is None or not need or spent + held + need <= limit
            for limit, spent, held, need in rows
        )

    def _refusal(self, amounts: list[int]) -> BudgetError | None:
        left = self.seconds_left
        if left is not None and left <= 0:
            return BudgetError("The time of the budget is over.",
                               given=f"{self.limits['seconds']:g} s",
                               mend="Resume with more seconds.")  # fmt: skip
        if self._fits(amounts, [0] * 4):
            return None
        for name, limit, spent, need in zip(
            _NAMES, self._limits, self._spent, amounts, strict=True
        ):
            if limit is not None and need and spent + need > limit:
                return BudgetError(
                    f"The budget has no room for this: {name}.",
                    given=f"{_show(name, need)} at most, beside {_show(name, spent)} spent",
                    expected=f"{_show(name, limit)} in all",
                    mend=f"Allow more {name}; what was paid for is kept where it is journaled.",
                )
        return None


def _amounts(spending: Spending) -> list[int]:
    cost = math.ceil(spending.cost * PICO)
    return [spending.calls, spending.tokens, cost, spending.proposals]


def _spending(amounts: list[int]) -> Spending:
    calls, tokens, cost, proposals = amounts
    return Spending(calls, tokens, cost / PICO, proposals)


def _show(name: str, amount: int) -> str:
    return f"${amount / PICO:.6f}" if name == "cost" else f"{amount:,}"


def _tell(decided: list[tuple[concurrent.futures.Future[None], BudgetError | None]]) -> None:
    """Outside the lock, for who waits may run at once."""
    for future, error in decided:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
