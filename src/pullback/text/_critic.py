"""Critics: who says what the inputs of an operation should change, given what is said of it."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from pullback.errors import ArgumentTypeError
from pullback.internal._setting import setting
from pullback.tape import Feedback, Variable

__all__ = ["Critic", "Relay", "Review", "Rule", "RuleCritic", "current_critic", "use_critic"]


@dataclass(frozen=True, eq=False)
class Review:
    """One operation that is to be criticised.

    Arguments:
        purpose: what the operation is for, in words.
        inputs: its input Variables.
        output: the Variable that it gave.
        instructions: for each input, whether it tells the operation what to do; the others are
            what it works on.
        wanted: for each input, whether its feedback is asked for.
        feedback: what was said of the output.
        written: given its inputs, the operation as one text, for a model to read; its purpose
            and its inputs if None.
    """

    purpose: str
    inputs: tuple[Variable, ...]
    output: Variable
    instructions: tuple[bool, ...]
    wanted: tuple[bool, ...]
    feedback: Variable
    written: Callable[[Sequence[Variable]], str] | None = None


class Critic(Protocol):
    """Says what each input of an operation should change.

    ``await critic.review(review)`` gives one answer an input: text Variables, `Feedback`, or None
    where there is nothing to say. What is to be criticised itself must be made by operations.
    """

    async def review(self, review: Review) -> Sequence[Any]:
        """One answer an input."""
        ...


class Relay:
    """Tells every input what was said of the output, as it is."""

    async def review(self, review: Review) -> Sequence[Any]:
        """The feedback, to each."""
        return [review.feedback if wanted else None for wanted in review.wanted]


@dataclass(frozen=True)
class Rule:
    """What must hold of an operation, whatever its input.

    Arguments:
        check: given the data of what the operation worked on (one, or a list of several) and of
            its output, says what is wrong, or None (or "") if nothing is.
        purpose: a pattern that the purpose of the operations it speaks of contains; all if empty.

    Example:
        >>> rule = Rule(lambda text, out: None if out.isupper() else "not upper case", "upper")
        >>> rule.check("a", "a")
        'not upper case'
    """

    check: Callable[[Any, Any], str | None]
    purpose: str = ""

    def applies(self, purpose: str) -> bool:
        """Whether the rule speaks of operations with this purpose."""
        return re.search(self.purpose, purpose, re.IGNORECASE) is not None


class RuleCritic:
    """Criticises by rules, without a model: blames the operation that breaks one.

    An operation whose rules all hold did as it should with what it was given, so what was said is
    passed on to that. One that breaks a rule is told so where its instructions are, and what it
    worked on is told nothing. Where no rule speaks of an operation, all its inputs are told what
    was said.

    Arguments:
        rules: what must hold.

    Example:
        >>> critic = RuleCritic([Rule(lambda text, out: None if out else "empty", "summary")])
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if not isinstance(rule, Rule):
                raise ArgumentTypeError("This is no rule.", given=repr(rule), expected="a Rule")
        self.rules = tuple(rules)

    async def review(self, review: Review) -> Sequence[Any]:
        """The complaints to the instructions, or the feedback to the rest."""
        rules = [rule for rule in self.rules if rule.applies(review.purpose)]
        if not rules:
            return await Relay().review(review)
        worked_on = [
            value.data
            for value, instructs in zip(review.inputs, review.instructions, strict=True)
            if not instructs
        ]
        given = worked_on[0] if len(worked_on) == 1 else worked_on
        complaints = [rule.check(given, review.output.data) for rule in rules]
        found = [complaint for complaint in complaints if complaint]
        told = [
            Variable(complaint, f"feedback to {review.purpose or 'an operation'}")
            for complaint in found
        ]
        return [
            None if not wanted or instructs != bool(found)
            else Feedback(told) if found else review.feedback
            for wanted, instructs in zip(review.wanted, review.instructions, strict=True)
        ]  # fmt: skip


_critic: ContextVar[Any] = ContextVar("pullback.text.critic", default=None)


def use_critic(critic: Critic) -> AbstractContextManager[Critic]:
    """Have the operations that are applied inside criticised by this critic.

    Example:
        >>> with use_critic(RuleCritic([])):
        ...     pass
    """
    if not callable(getattr(critic, "review", None)):
        raise ArgumentTypeError("A critic has a method review.", given=type(critic).__name__)
    return setting(_critic, critic)


def current_critic() -> Any:
    """The critic of operations that are applied here, or None."""
    return _critic.get()
