"""`Account`: what may be spent, what is reserved, and what was spent; never more than may be."""

import concurrent.futures
import math
import os
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, fields

from pullback.errors import ArgumentError, BudgetError

__all__ = ["Account", "Reservation", "Spending"]

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


@dataclass(frozen=True, eq=False)
class Reservation:
    """The most that one call may spend, held for it.

    Arguments:
        amounts: what is held.
        within: the reservations of the calls that wait for this one: a model may ask another.
        future: done when it is held, or raises `BudgetError`.
    """

    amounts: list[int]
    within: tuple["Reservation", ...]
    future: concurrent.futures.Future[None]


class Account:
    """What may be spent, shared by all models and threads of a run; never exceeded.

    Before a call its most is reserved; afterwards what it used is settled. A call for which there
    is no room waits while others that may use less than was reserved are under way, and is
    refused when there can be none: calls that wait themselves are not waited for.

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
        self._process = os.getpid()
        self._waiting: deque[Reservation] = deque()
        self._held: set[Reservation] = set()
        self._blocked: Counter[Reservation] = Counter()

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

    def reserve(self, most: Spending, within: tuple[Reservation, ...] = ()) -> Reservation:
        """Reserve the most that a call can spend.

        Arguments:
            most: what to reserve.
            within: the reservations of the calls that this one was asked in.

        Returns:
            what is held when its future is done.
        """
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._check_process()
        with self._lock:
            asked = Reservation(_amounts(most), tuple(self._held.intersection(within)), future)
            if self._began is None:
                self._began = time.monotonic()
            if asked.within:  # who has begun goes on first
                self._waiting.appendleft(asked)
            else:
                self._waiting.append(asked)
            self._blocked.update(asked.within)
            decided = self._decide()
        _tell(decided)
        return asked

    def _check_process(self) -> None:
        """Refuse a copy: what each process spends of its own, all together would exceed."""
        if os.getpid() != self._process:
            raise BudgetError(
                "A budget does not reach over a fork.", given=f"process {os.getpid()}",
                expected=f"{self._process}, where it was made",
                mend="Ask in the process that has the budget, or give each one of its own.",
            )  # fmt: skip

    def settle(self, asked: Reservation, spent: Spending) -> None:
        """Count what a call spent, in place of the most that was reserved for it."""
        with self._lock:
            self._held.remove(asked)
            self._reserved = _sum(self._reserved, [-amount for amount in asked.amounts])
            self._spent = _sum(self._spent, _amounts(spent))
            decided = self._decide()
        _tell(decided)

    def add(self, spent: Spending) -> None:
        """Count what was spent elsewhere: by the run that this one resumes."""
        with self._lock:
            self._spent = _sum(self._spent, _amounts(spent))
            decided = self._decide()
        _tell(decided)

    def propose(self) -> None:
        """Count a proposal of an optimiser.

        Raises:
            BudgetError: there may be no more.
        """
        self._check_process()
        amounts = _amounts(Spending(proposals=1))
        with self._lock:  # no call reserves proposals, so there is nobody to wait for
            error = self._refusal(amounts)
            if error is None:
                self._spent = _sum(self._spent, amounts)
        if error is not None:
            raise error

    def give_up(self, asked: Reservation) -> None:
        """No longer wait for a reservation; give it back if it was just made."""
        if asked.future.cancel():
            self.add(Spending())  # who waits behind it may go on
        elif asked.future.exception() is None:
            self.settle(asked, Spending())

    def _decide(self) -> list[tuple[concurrent.futures.Future[None], BudgetError | None]]:
        """Whose turn it is now; who waits longest goes first."""
        decided: list[tuple[concurrent.futures.Future[None], BudgetError | None]] = []
        while self._waiting:
            asked = self._waiting[0]
            error = self._refusal(asked.amounts)
            waits = error is None and not self._fits(asked.amounts, self._reserved)
            if waits and not asked.future.cancelled():
                break
            self._waiting.popleft()
            self._blocked -= Counter(asked.within)  # keeps what is positive
            if not asked.future.set_running_or_notify_cancel():
                continue
            if error is None:
                self._held.add(asked)
                self._reserved = _sum(self._reserved, asked.amounts)
            decided.append((asked.future, error))
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
        held = [0] * 4
        for each in self._held.intersection(self._blocked):
            held = _sum(held, each.amounts)
        if self._fits(amounts, held):
            return None
        for name, limit, spent, kept, need in zip(
            _NAMES, self._limits, self._spent, held, amounts, strict=True
        ):
            if limit is not None and need and spent + kept + need > limit:
                beside = f" and {_show(name, kept)} held for calls that wait" if kept else ""
                return BudgetError(
                    f"The budget has no room for this: {name}.",
                    given=f"{_show(name, need)} at most, beside {_show(name, spent)} spent{beside}",
                    expected=f"{_show(name, limit)} in all",
                    mend=f"Allow more {name}; what was paid for is kept where it is journaled.",
                )
        return None


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


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
