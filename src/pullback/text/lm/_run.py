"""`Run`: one journal and one budget for every model of a program; `Plan`: what it needs of them."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from pullback.errors import ArgumentError, BudgetError, ReplyError
from pullback.internal._arguments import Count, Natural, Seconds, checked
from pullback.internal._setting import setting
from pullback.tape import graph
from pullback.tape._concurrency import awaited, begin, within
from pullback.text.lm._account import Account, Spending
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._journal import Journal
from pullback.text.lm._lm import LM, Ask, Step, activate, active, bound, entered, in_one
from pullback.text.lm._record import Record, Replay
from pullback.text.lm._request import Request
from pullback.text.lm._steps import Budget, most_of, spent_by
from pullback.text.prices import Price, price_of

__all__ = ["Plan", "Run", "current_run"]


# The names of what is noted here, and read when the run goes on, is shown or is replayed.
_OWN = ("plan", "search", "program", "damaged", "prices")
_GRAPH = "graph:"
ENDING = 5.0  # seconds for calls that are cancelled to say so
ENOUGH = 8  # proposals: after fewer, the best of them is as likely luck as a better text


@checked
@dataclass(frozen=True)
class Plan:
    """What a search will need at least, told before it spends.

    Arguments:
        start: calls before the first proposal, for example to measure the start.
        each: calls for each proposal.
        proposals: how many proposals there are to be.

    Raises:
        ArgumentError: a number is negative.

    Example:
        >>> print(Plan(start=20, each=10, proposals=10).describe(Account(calls=50)))
        at least 120 calls for 10 proposals; your budget of 50 calls allows 3 proposals
    """

    start: Natural
    each: Natural
    proposals: Natural

    @property
    def calls(self) -> int:
        """The fewest calls that do all of it."""
        return self.start + self.each * self.proposals

    def affords(self, account: Account | None, made: Natural | None = None) -> int:
        """How many proposals the calls and proposals of a budget allow.

        Arguments:
            account: the budget.
            made: the calls of it that are gone; those that it has counted if None.
        """
        limits = {} if account is None else account.limits
        count = min(self.proposals, int(limits.get("proposals", self.proposals)))
        if "calls" in limits and account is not None:
            gone = account.spent.calls if made is None else made
            left = limits["calls"] - gone - self.start
            count = min(count, max(int(left // self.each), 0) if self.each else count)
            count = 0 if left < 0 else count
        return count

    def describe(self, account: Account | None, made: int | None = None) -> str:
        """The plan in a sentence, with what the budget allows of it."""
        text = f"at least {self.calls:,} calls for {self.proposals:,} proposals"
        limits = {} if account is None else account.limits
        named = [f"{limits[name]:,} {name}" for name in ("calls", "proposals") if name in limits]
        if named:
            count = self.affords(account, made)
            text += f"; your budget of {' and '.join(named)} allows {count:,} proposal"
            text += "" if count == 1 else "s"
        return text


@checked
def plan_training(
    *,
    forward: Natural,
    train: Natural,
    batches: Natural,
    held: Natural,
    texts: Natural,
    epochs: Natural,
    final: Natural = 0,
) -> Plan:
    """The fewest calls of a training that measures each proposal on all held samples.

    Critics are not counted: they are asked about no sample that succeeds.

    Arguments:
        forward: calls a sample.
        train: training samples an epoch.
        batches: steps of the optimizer an epoch; each may propose.
        held: held samples, measured at the start and for each proposal.
        texts: texts that a proposal rewrites.
        epochs: how many.
        final: samples of the final split, measured with the start and with the end.

    Example:
        >>> plan_training(forward=1, train=10, batches=2, held=10, texts=1, epochs=3)
        Plan(start=10, each=16, proposals=6)
    """
    samples = -(-train // batches) if batches else 0
    each = samples * forward + texts + forward * held
    return Plan(forward * (held + 2 * final), each, epochs * batches)


def account_of(budget: Account | int | None) -> Account | None:
    """The budget given, or that of the run under way, or None."""
    if isinstance(budget, int):
        return Account(calls=budget)
    run = current_run()
    return budget if budget is not None or run is None else run.account


def check_plan(plan: Plan, account: Account | None) -> None:
    """Tell the run under way of the plan, and refuse a budget that pays for no proposal.

    A run that goes on is judged by its whole budget: the calls of its journal come for nothing.
    """
    run = current_run()
    if run is not None:
        run.expect(plan)
    made = 0 if run is not None and run.before else None  # what was paid for is not paid again
    if plan.proposals and not plan.affords(account, made):
        raise BudgetError(
            "The budget pays for no proposal.", given=plan.describe(account),
            expected=f"at least {plan.start + plan.each} calls and 1 proposal",
            mend="Raise the budget, or train and measure on fewer samples.",
        )  # fmt: skip


def remark(proposals: int) -> str:
    """What is to be said of a search of so many proposals, to go after a sentence."""
    return "; too few to tell a better text from luck" if proposals < ENOUGH else ""


def within_budget(account: Account | None) -> AbstractContextManager[Any]:
    """Hold every model that is asked inside to an account, also one that no `Budget` wraps."""
    run = current_run()
    if account is None or (run is not None and run.account is account):  # which holds them itself
        return nullcontext()
    # What a budget of the run further in would say of the longest answer is said further out.
    longest = None
    if run is not None and run.account is not None and {"tokens", "cost"} & set(account.limits):
        longest = run.max_output_tokens
    return setting(bound, lambda lm: Budget(lm, account, max_output_tokens=longest).step)


@checked
class Run:
    """One journal and one budget for every model that a program asks, whatever wraps it.

    While it is entered, each request to a model that wraps no other is answered from the journal,
    or reserved in the budget, sent, and written. The same program run again with the same journal
    pays for nothing twice. What an earlier run spent counts: the budget is that of the whole. A
    call goes on when who asked for it is interrupted, so that its answer is kept; leaving the run
    waits for it. What began inside and asks after that is refused: a thread of a step that was
    left, for example.

    Arguments:
        journal: the path of the journal; made if it is not there.
        account: what may be spent in all; anything if None.
        max_output_tokens: as of `Budget`.
        replay: answer from the journal alone, and send nothing.
        patience: seconds to wait, when leaving, for calls under way.
        watch: called with the run after every call began or ended.

    Raises:
        RecordingError: the journal cannot be read.
        ArgumentError: another run is under way in this process.

    Example:
        >>> import tempfile
        >>> from pullback.text.lm import Scripted
        >>> path = tempfile.mkdtemp() + "/run.sqlite"
        >>> with Run(path) as run:
        ...     Scripted(["first"])("Hi").text, run.paid, run.recorded
        ('first', 1, 0)
        >>> with Run(path) as run:
        ...     Scripted(["second"])("Hi").text, run.paid, run.recorded
        ('first', 0, 1)
    """

    def __init__(
        self,
        journal: str | os.PathLike[str],
        *,
        account: Account | None = None,
        max_output_tokens: Count | None = None,
        replay: bool = False,
        patience: Seconds = 10.0,
        watch: Callable[["Run"], None] | None = None,
    ) -> None:
        _refuse_another(journal)  # before its file is made
        self.account = account
        self.under_way = 0
        self.plans: list[Plan] = []
        self.described: list[str] = []
        self.replays = replay
        self._patience = patience
        self.max_output_tokens = max_output_tokens
        self.watch = watch
        self._changed = threading.Condition()
        self._answers: set[Future[Completion]] = set()
        self.journal = Journal(journal, read_only=replay)
        calls = self.journal.calls()
        self.before = [call for call in calls if call.answer is not None]
        self.in_doubt = [call for call in calls if call.answer is None]
        noted = self.journal.notes().get("prices", {})
        self._prices = {name: Price(**price) for name, price in noted.items()}
        if account is not None and not replay:
            account.add(Spending(self.journal.damaged))  # they were paid; how much, nobody knows
            for call in calls:
                price = self._prices.get(call.model) or price_of(call.model)
                most = most_of(call.request, price, otherwise=max_output_tokens or 0)
                account.add(spent_by(call.answer, most, price))

    def __enter__(self) -> "Run":
        if active() is not None:  # by one that was made since this was
            self.journal.close()
        _refuse_another(self.journal.path)
        activate(self)
        self._inside = ExitStack()
        self._inside.enter_context(setting(entered, self))
        self._inside.enter_context(within(()))  # places are counted from the beginning of a run
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.wait()
            for answer in list(self._answers):
                answer.cancel()
            self._wait(ENDING)
            if isinstance(exc[1], ReplyError):  # it would end every run that goes on from here
                self.retire_failures()
        finally:
            activate(None)
            self._inside.close()
            self.journal.close()

    def wait(self) -> None:
        """Wait for the calls under way, as long as the patience lasts."""
        self._wait(self._patience)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            # An answer that was begun is under way although its loop had no time for it yet: were
            # the run left then, it would be sent and never written.
            self._changed.wait_for(lambda: not (self.under_way or self._answers), seconds)

    def steps(self, lm: LM) -> list[Step]:
        """What a model's requests go through in this run, the innermost first."""
        if self.replays:
            replay = Replay(self.journal, model=lm.model)
            return [lambda request, ask: in_one(replay.answer, request), self._counted]
        if lm.price is not None and self._prices.get(lm.model) != lm.price:
            # A run that goes on counts what is in doubt before the program has made this model.
            with self._changed:
                self._prices[lm.model] = lm.price
                self._note("prices", {name: asdict(each) for name, each in self._prices.items()})
        # The journal stands before the budget: an answer that is known reserves nothing.
        steps: list[Step] = [Record(lm, self.journal).step, self._counted]
        if self.account is None:
            return steps
        held = Budget(lm, self.account, max_output_tokens=self.max_output_tokens)
        return [held.step, *steps]

    async def keep(self, answer: Coroutine[Any, Any, Completion]) -> Completion:
        """Await an answer, which goes on when who asked for it is interrupted."""
        # In a loop of the tape, which ends with the process: who asks may be cancelled, and its
        # own loop may end, but what was sent is paid for and to be kept.
        with self._changed:
            future = begin(answer)
            self._answers.add(future)
        future.add_done_callback(self._kept)
        return await asyncio.shield(awaited(future))

    def _kept(self, answer: Future[Completion]) -> None:
        with self._changed:
            self._answers.discard(answer)
            self._changed.notify_all()

    def retire_failures(self) -> None:
        """Let the next run ask again what failed in this one."""
        if not self.replays:
            self.journal.retire_failures()

    @property
    def paid(self) -> int:
        """How many answers were paid for in this run."""
        return self.journal.paid.calls

    @property
    def recorded(self) -> int:
        """How many answers came from the journal."""
        return self.journal.recorded

    async def _counted(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        self._count(1)
        try:
            async for chunk in ask(request):
                yield chunk
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self.under_way += change
            self._changed.notify_all()
        if self.watch is not None:
            self.watch(self)

    def describe(self) -> str:
        """What was asked so far and what it cost, in words."""
        return (
            f"{self.paid} calls, {self.recorded} from the journal, {self.under_way} under way, "
            f"{self.journal.paid.usage.tokens:,} tokens, {self.journal.paid.cost}"
        )

    def note(self, name: str, value: Any) -> None:
        """Keep plain JSON in the journal, by a name that is not the run's own.

        A journal that is replayed stays as it is.

        Raises:
            ArgumentError: what the run keeps itself has this name.
        """
        if name in _OWN or name.startswith(_GRAPH):
            raise ArgumentError("What the run itself keeps has this name.", given=repr(name),
                                expected=f"none of {', '.join(_OWN)} and {_GRAPH}...")  # fmt: skip
        self._note(name, value)

    def _note(self, name: str, value: Any) -> None:
        if not self.replays:
            self.journal.note(name, value)

    def expect(self, plan: Plan) -> None:
        """Tell, before it spends, what the program is going to need.

        Answers of the journal count for nothing: the program is going to take them again.
        """
        self.plans.append(plan)
        self.described.append(plan.describe(self.account, self.paid + self.recorded))
        self._note("plan", self.described)
        if self.watch is not None:
            self.watch(self)

    def keep_graph(self, roots: Any, name: str = "graph") -> None:
        """Keep a graph of the tape in the journal, to look at, with what was said of its leaves.

        Arguments:
            roots: Variables with a history, or gradient edges.
            name: one graph is kept for each.
        """
        self._note(f"{_GRAPH}{name}", graph.to_json(roots))

    def keep_search(self, found: Mapping[str, Any]) -> None:
        """Keep what a search found, to be drawn: its steps, its texts, and why it stopped."""
        self._note("search", found)


def _refuse_another(journal: str | os.PathLike[str]) -> None:
    if active() is not None:
        raise ArgumentError("Another run is under way in this process.", given=os.fspath(journal))


def current_run() -> Run | None:
    """The run under way in this process, or None: to tell it a plan, or to give it a graph."""
    return active()
