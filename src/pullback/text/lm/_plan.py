"""`Plan`: what a run will need at least, and what a budget buys of it, before anything is spent."""

from dataclasses import dataclass

from pullback.errors import ArgumentError, BudgetError
from pullback.text.lm._account import Account
from pullback.text.lm._lm import active

__all__ = ["Plan", "account_of", "check_plan", "plan_training", "remark"]

ENOUGH = 8  # proposals: after fewer, the best of them is as likely luck as a better text


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

    start: int
    each: int
    proposals: int

    def __post_init__(self) -> None:
        if min(self.start, self.each, self.proposals) < 0:
            raise ArgumentError("A plan counts in numbers that are not negative.", given=repr(self))

    @property
    def calls(self) -> int:
        """The fewest calls that do all of it."""
        return self.start + self.each * self.proposals

    def affords(self, account: Account | None, made: int | None = None) -> int:
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


def plan_training(
    *, forward: int, train: int, batches: int, held: int, texts: int, epochs: int, final: int = 0
) -> Plan:
    """The fewest calls of a training.

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
    run = active()
    return budget if budget is not None or run is None else run.account


def check_plan(plan: Plan, account: Account | None) -> None:
    """Tell the run under way of the plan, and refuse a budget that pays for no proposal.

    A run that goes on is judged by its whole budget: the calls of its journal come for nothing.

    Raises:
        BudgetError: it does not; nothing was sent.
    """
    run = active()
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
    """What is to be said of a search of so many proposals, to go after a sentence.

    Example:
        >>> remark(3)
        '; too few to tell a better text from luck'
    """
    return "; too few to tell a better text from luck" if proposals < ENOUGH else ""
