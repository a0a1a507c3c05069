"""What a training needs at least, and what its budget buys of it, before anything is spent."""

from pullback.errors import BudgetError
from pullback.text._chat import ChatModule
from pullback.text._module import Module
from pullback.text.lm import Account, Plan, current_run

__all__ = ["account_of", "check_plan", "count_calls", "describe_plan", "plan_training", "remark"]

ENOUGH = 8  # proposals: after fewer, the best of them is as likely luck as a better text


def count_calls(module: Module) -> int:
    """How many calls of models a module makes at least for a sample: one a `ChatModule`.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> count_calls(ChatModule(Scripted(["x"]), "Be brief."))
        1
    """
    return sum(isinstance(each, ChatModule) for each in module.modules())


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
    run = current_run()
    return budget if budget is not None or run is None else run.account


def check_plan(plan: Plan, account: Account | None) -> None:
    """Tell the run under way of the plan, and refuse a budget that pays for no proposal.

    A run that goes on is judged by its whole budget: the calls of its journal come for nothing.

    Raises:
        BudgetError: it does not; nothing was sent.
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


def describe_plan(plan: Plan, account: Account | None) -> str:
    """The plan, what the budget buys of it, and whether that can mean anything."""
    return plan.describe(account) + remark(plan.affords(account))


def remark(proposals: int) -> str:
    """What is to be said of a search of so many proposals, to go after a sentence.

    Example:
        >>> remark(3)
        '; too few to tell a better text from luck'
    """
    return "; too few to tell a better text from luck" if proposals < ENOUGH else ""
