"""`Account`: what may be spent, what is reserved, and what was spent; never more than may be."""

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from pullback.errors import ArgumentError, BudgetError, ModelError, PullbackError
from pullback.internal._limiter import Limiter
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
    """

    amounts: Counter[str]
    within: tuple["_Held", ...]


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
        self._turn = Limiter(1)  # who is first waits for room, the others for their turn
        self._changed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._held: set[_Held] = set()
        self._blocked: Counter[_Held] = Counter()  # of these, those whose calls wait for room

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
        self._check_process()
        around = _around.get()
        asked = _Held(_amounts(most), tuple(each for each in around if each in self._held))
        await self._hold(asked)
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
            raise self._over("; a call under way was ended") from None
        except BaseException as error:
            otherwise = most if may_be_billed(error) else Spending()
            raise
        finally:
            _around.set(around)
            with self._changing():
                self._held.remove(asked)
                self._reserved -= asked.amounts
                self._spent += _amounts(spent[0] if spent else otherwise)

    async def _hold(self, asked: _Held) -> None:
        """Hold it when its turn has come and there is room; what has begun waits for no turn."""
        with self._lock:
            self._began = time.monotonic() if self._began is None else self._began
        try:
            async with asyncio.timeout(self.seconds_left):
                async with contextlib.nullcontext() if asked.within else self._turn.place():
                    await self._room(asked)
        except TimeoutError:
            raise self._over() from None

    async def _room(self, asked: _Held) -> None:
        with self._changing():
            self._blocked.update(asked.within)
        try:
            while (changed := self._take(asked)) is not None:
                await asyncio.shield(awaited(changed))
        finally:
            with self._changing():
                self._blocked -= Counter(asked.within)  # keeps what is positive

    def _take(self, asked: _Held) -> concurrent.futures.Future[None] | None:
        """Hold it if there is room; else what is done when anything has changed."""
        with self._lock:
            if self._blocked and not asked.within:  # a call inside another goes first
                return self._changed
            error = self._refusal(asked.amounts)
            if error is not None:
                raise error
            if self._exceeded(asked.amounts, self._reserved):
                return self._changed
            self._held.add(asked)
            self._reserved += asked.amounts
            return None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Change what is spent, held or blocked inside; who waits for room looks again."""
        with self._lock:
            yield
            changed, self._changed = self._changed, concurrent.futures.Future()
        changed.set_result(None)

    def _check_process(self) -> None:
        """Refuse a copy: what each process spends of its own, all together would exceed."""
        if os.getpid() != self._process:
            raise BudgetError(
                "A budget does not reach over a fork.", given=f"process {os.getpid()}",
                expected=f"{self._process}, where it was made",
                mend="Ask in the process that has the budget, or give each one of its own.",
            )  # fmt: skip

    def add(self, spent: Spending) -> None:
        """Count what was spent elsewhere, by the run that this one resumes."""
        with self._changing():
            self._spent += _amounts(spent)

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
            return self._over()
        kept: Counter[str] = Counter()
        for each in self._held.intersection(self._blocked):
            kept += each.amounts
        exceeded = self._exceeded(amounts, kept)
        if not exceeded:
            return None
        name = exceeded[0]
        beside = f" and {_show(name, kept)} held for calls that wait" if kept[name] else ""
        return BudgetError(
            f"The budget has no room for this: {name}.",
            given=f"{_show(name, amounts)} at most, beside {_show(name, self._spent)} spent"
            f"{beside}",
            expected=f"{_show(name, self._limits)} in all",
            mend=f"Allow more {name}; what was paid for is kept where it is journaled.",
        )

    def _over(self, more: str = "") -> BudgetError:
        return BudgetError(
            f"The time of the budget is over{more}.", given=f"{self.limits['seconds']:g} s",
            mend="Resume with more seconds.",
        )  # fmt: skip


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
