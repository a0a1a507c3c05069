"""`Plan`: what a run will need at least, and what a budget buys of it."""

from dataclasses import dataclass

from pullback.errors import ArgumentError
from pullback.text.lm._account import Account

__all__ = ["Plan"]


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
