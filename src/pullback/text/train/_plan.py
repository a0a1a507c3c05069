"""`Plan`: what a run will cost at least, said before anything is spent."""

from collections.abc import Mapping
from dataclasses import dataclass

from pullback.errors import ArgumentError, BudgetError
from pullback.text._chat import ChatModule
from pullback.text._module import Module

__all__ = ["ENOUGH", "Plan", "count_calls"]

ENOUGH = 8  # proposals: after fewer, the best of them is as likely luck as a better text


def count_calls(module: Module) -> int:
    """How many calls of models a module makes at least for a sample: one a `ChatModule`.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> count_calls(ChatModule(Scripted(["x"]), "Be brief."))
        1
    """
    return sum(isinstance(each, ChatModule) for each in module.modules())


@dataclass(frozen=True)
class Plan:
    """What a run costs at least, in calls of models.

    Arguments:
        forward: calls a sample.
        train: training samples an epoch.
        batches: steps of the optimizer an epoch.
        held: held samples, measured for each proposal; 0 if proposals are not measured.
        parameters: texts that the optimizer rewrites.
        epochs: how many.
        budget: calls that may be made, or None.

    Example:
        >>> plan = Plan(forward=1, train=10, batches=2, held=10, parameters=1, epochs=3, budget=40)
        >>> print(plan)
        at least 106 calls: 10 to measure the start, and 16 a proposal for 6 proposals;
        the budget of 40 allows 1 of them, too few to tell a better text from luck
    """

    forward: int
    train: int
    batches: int
    held: int
    parameters: int
    epochs: int
    budget: int | None = None

    def __post_init__(self) -> None:
        counts: Mapping[str, int] = {
            name: value for name, value in vars(self).items() if name != "budget"
        }
        wrong = [name for name, value in counts.items() if value < 0]
        if wrong or (self.budget is not None and self.budget < 0):
            raise ArgumentError("A plan counts from 0.", given=repr(self))

    @property
    def proposals(self) -> int:
        """How many new versions will be proposed."""
        return self.epochs * self.batches

    @property
    def start(self) -> int:
        """Calls to measure the start."""
        return self.forward * self.held

    @property
    def each(self) -> int:
        """Calls for a proposal: forward, a critique of each, rewriting, and measuring.

        A critic is asked about no sample that succeeded, so only forward calls are certain.
        """
        samples = -(-self.train // self.batches) if self.batches else 0
        return samples * self.forward + self.parameters + self.forward * self.held

    @property
    def calls(self) -> int:
        """Calls of the whole run, at least."""
        return self.start + self.each * self.proposals

    @property
    def affordable(self) -> int:
        """How many proposals the budget pays for."""
        if self.budget is None or not self.each:
            return self.proposals
        return max(0, min(self.proposals, (self.budget - self.start) // self.each))

    @property
    def enough(self) -> bool:
        """Whether so many proposals can mean anything."""
        return self.affordable >= ENOUGH

    def check(self) -> None:
        """Refuse a budget that pays for no proposal.

        Raises:
            BudgetError: it does not; nothing was sent.
        """
        if self.budget is not None and self.proposals and not self.affordable:
            raise BudgetError(
                "The budget pays for no proposal.", given=f"{self.budget} calls",
                expected=f"at least {self.start + self.each} calls",
                mend="Raise the budget, or train and measure on fewer samples.",
            )  # fmt: skip

    def __str__(self) -> str:
        said = (
            f"at least {self.calls} calls: {self.start} to measure the start, and {self.each} a "
            f"proposal for {self.proposals} proposals"
        )
        if self.budget is not None:
            said += f";\nthe budget of {self.budget} allows {self.affordable} of them"
        return said if self.enough else f"{said}, too few to tell a better text from luck"
