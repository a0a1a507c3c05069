"""`Account`: what may be spent, what is reserved, and what was spent; never more than may be."""

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from pullback.errors import ArgumentError, BudgetError, ModelError, PullbackError
from pullback.text.lm._home import awaited

__all__ = ["Account", "Spending", "may_be_billed"]

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
        mine, others = asdict(self), asdict(other)
        return Spending(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True, eq=False)
class _Held:
    """The most that one call may spend.

    Arguments:
        amounts: what is held.
        within: what is held for the calls that wait for this one: a model may ask another.
        future: done when it is held, or raises `BudgetError`.
    """

    amounts: Counter[str]
    within: tuple["_Held", ...]
    future: concurrent.futures.Future[None]


_Decided = list[tuple[concurrent.futures.Future[None], BudgetError | None]]
_around: ContextVar[tuple[_Held, ...]] = ContextVar("pullback.text.held", default=())
"""What is held for the calls that are under way around this one."""


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
        counted = {name: limit for name, limit in limits.items() if limit is not None}
        self._limits = {
            name: math.floor(limit * PICO) if name == "cost" else int(limit)
            for name, limit in counted.items()
        }
        self._spent: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        self._began: float | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._waiting: deque[_Held] = deque()
        self._held: set[_Held] = set()
        self._blocked: Counter[_Held] = Counter()

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

    @contextlib.asynccontextmanager
    async def holding(self, most: Spending) -> AsyncIterator[list[Spending]]:
        """Hold the most that a call can spend inside, when there is room; time ends it, too.

        What it did spend is to be put into the list that is given. A call that ended without is
        counted as its most where it may have been billed.

        Raises:
            BudgetError: there is no room, and none is going to be; or the time is over.
        """
        around = _around.get()
        asked = self._reserve(most, around)
        await self._wait(asked)
        spent: list[Spending] = []
        otherwise = most
        _around.set((*around, asked))
        clock = asyncio.timeout(self.seconds_left)
        try:
            async with clock:
                yield spent
        except TimeoutError:
            if not clock.expired():
                raise
            raise BudgetError("The time of the budget is over; a call under way was ended.",
                              given=f"{self.limits['seconds']:g} s",
                              mend="Resume with more seconds.") from None  # fmt: skip
        except BaseException as error:
            otherwise = most if may_be_billed(error) else Spending()
            raise
        finally:
            _around.set(around)
            self._settle(asked, spent[0] if spent else otherwise)

    async def _wait(self, asked: _Held) -> None:
        try:
            if not asked.future.done():
                async with asyncio.timeout(self.seconds_left):
                    await asyncio.shield(awaited(asked.future))
        except TimeoutError:
            self._give_up(asked)
            raise BudgetError("The time of the budget is over.",
                              mend="Resume with more seconds.") from None  # fmt: skip
        except asyncio.CancelledError:
            self._give_up(asked)
            raise
        asked.future.result()

    def _reserve(self, most: Spending, around: Sequence[_Held]) -> _Held:
        self._check_process()
        with self._lock:
            within = tuple(each for each in around if each in self._held)
            asked = _Held(_amounts(most), within, concurrent.futures.Future())
            if self._began is None:
                self._began = time.monotonic()
            if within:  # who has begun goes on first
                self._waiting.appendleft(asked)
            else:
                self._waiting.append(asked)
            self._blocked.update(within)
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

    def _settle(self, asked: _Held, spent: Spending) -> None:
        """Count what a call spent, in place of the most that was held for it."""
        with self._lock:
            self._held.remove(asked)
            self._reserved -= asked.amounts
        self.add(spent)

    def add(self, spent: Spending) -> None:
        """Count what was spent: by a call, or elsewhere by the run that this one resumes."""
        with self._lock:
            self._spent += _amounts(spent)
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
            if error is not None:
                raise error
            self._spent += amounts

    def _give_up(self, asked: _Held) -> None:
        """No longer wait for room; give it back if it was just made."""
        if asked.future.cancel():
            self.add(Spending())  # who waits behind it may go on
        elif asked.future.exception() is None:
            self._settle(asked, Spending())

    def _decide(self) -> _Decided:
        """Whose turn it is now; who waits longest goes first."""
        decided: _Decided = []
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
                self._reserved += asked.amounts
            decided.append((asked.future, error))
        return decided

    def _fits(self, amounts: Counter[str], beside: Counter[str]) -> bool:
        return not self._exceeded(amounts, beside)

    def _exceeded(self, amounts: Counter[str], beside: Counter[str]) -> list[str]:
        """The limits that these amounts would exceed."""
        return [
            name for name, limit in self._limits.items()
            if amounts[name] and self._spent[name] + beside[name] + amounts[name] > limit
        ]  # fmt: skip

    def _refusal(self, amounts: Counter[str]) -> BudgetError | None:
        """Why there is no room and none is going to be: calls that wait themselves free none."""
        left = self.seconds_left
        if left is not None and left <= 0:
            return BudgetError("The time of the budget is over.",
                               given=f"{self.limits['seconds']:g} s",
                               mend="Resume with more seconds.")  # fmt: skip
        kept: Counter[str] = Counter()
        for each in self._held.intersection(self._blocked):
            kept += each.amounts
        if self._fits(amounts, kept):
            return None
        name = self._exceeded(amounts, kept)[0]
        beside = f" and {_show(name, kept)} held for calls that wait" if kept[name] else ""
        return BudgetError(
            f"The budget has no room for this: {name}.",
            given=f"{_show(name, amounts)} at most, beside {_show(name, self._spent)} spent"
            f"{beside}",
            expected=f"{_show(name, self._limits)} in all",
            mend=f"Allow more {name}; what was paid for is kept where it is journaled.",
        )


def may_be_billed(error: BaseException) -> bool:
    """Whether a call that ended so may have been, or may yet be, billed."""
    if isinstance(error, ModelError):
        return error.may_be_billed
    return not isinstance(error, PullbackError)


def _amounts(spending: Spending) -> Counter[str]:
    return Counter({**asdict(spending), "cost": math.ceil(spending.cost * PICO)})


def _spending(amounts: Counter[str]) -> Spending:
    cost = amounts["cost"] / PICO
    return Spending(amounts["calls"], amounts["tokens"], cost, amounts["proposals"])


def _show(name: str, amounts: Mapping[str, int]) -> str:
    return f"${amounts[name] / PICO:.6f}" if name == "cost" else f"{amounts[name]:,}"


def _tell(decided: _Decided) -> None:
    """Outside the lock, for who waits may run at once."""
    for future, error in decided:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
