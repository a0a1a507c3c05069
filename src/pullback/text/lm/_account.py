"""`Account`: what may be spent, what is reserved, and what was spent; never more than may be."""

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from pullback.errors import ArgumentError, BudgetError, ModelError, PullbackError
from pullback.internal._arguments import Amount, Natural, checked
from pullback.tape._concurrency import awaited

__all__ = ["Account", "Spending"]

PICO = 10**12  # money is counted in whole picodollars: sums of floats would drift over a limit


@checked
@dataclass(frozen=True)
class Spending:
    """Amounts of what a budget counts.

    Arguments:
        calls: requests that were sent.
        tokens: of messages and answers.
        cost: US dollars.
        proposals: new versions that an optimiser tried.
    """

    calls: Natural = 0
    tokens: Natural = 0
    cost: Amount = 0.0
    proposals: Natural = 0


@dataclass(eq=False)
class _Held:
    """The most that one call may spend; ``there`` is done when that is held, or fails.

    It is within what is held for the calls that wait for it: a model may ask another. By its
    request it is known further on its way, once.
    """

    amounts: Counter[str]
    within: tuple["_Held", ...] = ()
    request: Any = None
    there: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)


_around: ContextVar[tuple[_Held, ...]] = ContextVar("pullback.text.held", default=())
"""What is held for the calls that are under way around this one."""


@checked
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
        calls: Amount | None = None,
        tokens: Amount | None = None,
        cost: Amount | None = None,
        seconds: Amount | None = None,
        proposals: Amount | None = None,
    ) -> None:
        given = {"calls": calls, "tokens": tokens, "cost": cost, "proposals": proposals,
                 "seconds": seconds}  # fmt: skip
        self.limits = {name: limit for name, limit in given.items() if limit is not None}
        if not self.limits:
            raise ArgumentError("A budget limits something.", given="no limit",
                                expected=", ".join(given))  # fmt: skip
        self._limits = {
            name: math.floor(limit * PICO) if name == "cost" else int(limit)
            for name, limit in self.limits.items() if name != "seconds"
        }  # fmt: skip
        self._spent: Counter[str] = Counter()
        self._began: float | None = None
        self._lock = threading.Lock()
        self.id, self._process = uuid.uuid4().hex, os.getpid()
        self._held: set[_Held] = set()
        self._waiting: list[_Held] = []

    @property
    def spent(self) -> Spending:
        """What was spent so far."""
        return _spending(self._spent)

    @property
    def reserved(self) -> Spending:
        """The most that calls under way may spend."""
        with self._lock:
            return _spending(sum((each.amounts for each in self._held), Counter()))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time is over; None if it is not limited."""
        limit = self.limits.get("seconds")
        if limit is None:
            return None
        return limit if self._began is None else self._began + limit - time.monotonic()

    @contextlib.asynccontextmanager
    async def holding(self, most: Spending, request: Any = None) -> AsyncIterator[list[Spending]]:
        """Hold the most that a call can spend inside, when there is room; time ends it, too.

        What it did spend is to be put into the list that is given. A call that ended without is
        counted as its most where it may have been billed.

        Raises:
            BudgetError: there is no room, and none is going to be; or the time is over.
        """
        self._check_process()
        around, spent = _around.get(), []
        asked = _Held(_amounts(most), tuple(each for each in around if each in self._held), request)
        with self._lock:
            self._began = time.monotonic() if self._began is None else self._began
            self._waiting.append(asked)
            self._serve()
        # The body runs in the context of this task, so that calls inside of it see what is held.
        _around.set((*around, asked))
        clock, otherwise = asyncio.timeout(self.seconds_left), Spending()
        try:
            async with clock:
                if not asked.there.done():  # who need not wait goes on before others begin
                    await asyncio.shield(awaited(asked.there))
                asked.there.result()
                otherwise = most
                yield spent
        except TimeoutError:
            if not clock.expired():
                raise
            raise self._over("; a call under way was ended" * (otherwise is most)) from None
        except BaseException as error:
            otherwise = otherwise if may_be_billed(error) else Spending()
            raise
        finally:
            _around.set(around)
            self._leave(asked, spent[0] if spent else otherwise)

    def covers(self, request: Any) -> bool:
        """Whether this call is held already, by a budget further out; it is so only once.

        A model that asks another the very same several times makes a call more with each.
        """
        with self._lock:
            for each in _around.get():
                if each.request is request and each in self._held:
                    each.request = None
                    return True
        return False

    def _leave(self, asked: _Held, spent: Spending) -> None:
        """Hold or want something no longer, and count what was spent; who waits may go on."""
        with self._lock:
            if asked in self._held:
                self._held.remove(asked)
            elif asked in self._waiting:
                self._waiting.remove(asked)
            self._spent += _amounts(spent)
            self._serve()

    def _serve(self) -> None:
        """Hold what there is room for, in the order in which it came; refuse what never has any.

        Calls inside others go first, and none of them waits for another.
        """
        served = True
        while served:
            served = False
            # A call inside another may hold the other up: what that one has reserved comes back
            # only when this one ends. Were it to wait in the queue, it could wait for itself. Of
            # the rest the first alone is tried: if smaller ones were let past it, it could wait for
            # ever.
            inside = [each for each in self._waiting if each.within]
            for asked in inside or self._waiting[:1]:
                error = self._refusal(asked.amounts)
                if error is None and self._exceeded(asked.amounts, self._held):
                    continue
                served = True
                self._waiting.remove(asked)
                if error is not None:
                    asked.there.set_exception(error)
                    continue
                self._held.add(asked)
                asked.there.set_result(None)

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
        with self._lock:
            self._spent += _amounts(spent)
            self._serve()

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

    def _exceeded(self, amounts: Counter[str], beside: set[_Held]) -> list[str]:
        """The limits that these amounts would exceed, beside what is held."""
        return [
            name for name, limit in self._limits.items()
            if amounts[name] and self._spent[name] + _sum(name, beside) + amounts[name] > limit
        ]  # fmt: skip

    def _refusal(self, amounts: Counter[str]) -> BudgetError | None:
        """Why there is no room and none is going to be: calls that wait themselves free none."""
        left = self.seconds_left
        if left is not None and left <= 0:
            return self._over()
        kept = self._held.intersection(o for asked in self._waiting for o in asked.within)
        exceeded = self._exceeded(amounts, kept)
        if not exceeded:
            return None
        name = exceeded[0]
        waits = _sum(name, kept)
        beside = f" and {_show(name, waits)} held for calls that wait" if waits else ""
        return BudgetError(
            f"The budget has no room for this: {name}.",
            given=f"{_show(name, amounts[name])} at most, beside "
            f"{_show(name, self._spent[name])} spent{beside}",
            expected=f"{_show(name, self._limits[name])} in all",
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
    # Rounded up, as a limit is rounded down: no sum of roundings can exceed it.
    return Counter({**asdict(spending), "cost": math.ceil(spending.cost * PICO)})


def _spending(amounts: Counter[str]) -> Spending:
    cost = amounts["cost"] / PICO
    return Spending(amounts["calls"], amounts["tokens"], cost, amounts["proposals"])


def _sum(name: str, held: set[_Held]) -> int:
    return sum(each.amounts[name] for each in held)


def _show(name: str, amount: int) -> str:
    return f"${amount / PICO:.6f}" if name == "cost" else f"{amount:,}"
