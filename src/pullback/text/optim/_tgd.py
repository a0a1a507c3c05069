"""`TGD`: textual gradient descent; and what every new version of a text must satisfy."""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._arguments import Count, Natural, Positive, check_counts, checked
from pullback.internal._text import shown
from pullback.tape import Variable, at
from pullback.tape._concurrency import call_within_limit, run
from pullback.text._prompts import (
    ROLES,
    Prompt,
    Template,
    ask,
    between_tags,
    fields_in,
    fields_of,
    fill_prompt,
    listed,
    pattern_of,
    prompt,
    shorten,
)
from pullback.text.lm import LM, Request
from pullback.text.optim._optimizer import Optimizer, Version

__all__ = ["TGD", "Constraint", "keeps_fields", "max_length", "never"]


@checked
@dataclass(frozen=True)
class Constraint:
    """What every new version of a text must satisfy.

    Arguments:
        text: the constraint in words, as the model is told.
        check: given the new text, says what is wrong, or None. Without it the model is told and
            nothing is checked.

    Example:
        >>> polite = Constraint("Polite.", lambda text: None if "please" in text else "it is rude")
    """

    text: str
    check: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ArgumentError("A constraint needs words.", given=repr(self.text))


@checked
def max_length(characters: Count) -> Constraint:
    """At most so many characters.

    Example:
        >>> max_length(3).check("abcd")
        'it has 4 characters'
    """
    return Constraint(
        f"It has at most {characters} characters.",
        lambda text: f"it has {len(text)} characters" if len(text) > characters else None,
    )


@checked
def never(pattern: str, text: str = "") -> Constraint:
    """Nowhere what a regular expression finds.

    Arguments:
        pattern: the regular expression.
        text: the same in words.

    Example:
        >>> never("[0-9]", "No digits.").check("in 2 days")
        "it has '2' in it"
    """
    compiled = pattern_of(pattern)

    def check(value: str) -> str | None:
        found = compiled.search(value)
        return f"it has {found.group(0)!r} in it" if found else None

    return Constraint(text or f"Nothing in it matches {pattern!r}.", check)


@checked
def keeps_fields(template: str) -> Constraint | None:
    """The same fields in braces as this template, if only none; None for what is no template.

    Example:
        >>> keeps_fields("Say {word}.").check("Say it.")
        'it has the fields (none) instead of {word}'
    """
    try:
        fields = fields_of(template)
    except ArgumentError:
        return None
    wanted = ", ".join(f"{{{name}}}" for name in fields) or "(none)"

    def check(value: str) -> str | None:
        try:
            given = fields_of(value)
        except ArgumentError as error:
            return f"it is no template: {error.what} {error.given or ''}"
        if sorted(given) == sorted(fields):
            return None
        found = ", ".join(f"{{{name}}}" for name in given) or "(none)"
        return f"it has the fields {found} instead of {wanted}"

    return Constraint(f"It has just these fields, each in braces: {wanted}.", check)


@checked
class TGD(Optimizer):
    """Textual gradient descent: a model rewrites each text from the feedback on it.

    A step asks once for each text that has feedback, all at once. An answer that cannot be read
    or breaks a constraint is asked for again with the complaint; if none will do, the step is
    refused and no text has changed.

    With ``momentum`` the model also sees past versions with their scores and feedback, drawn so
    that a version is the likelier the better it scored: weights exp(score / temperature), without
    replacement.

    Arguments:
        params: text parameters, or groups of them.
        lm: the model that rewrites.
        constraints: what each new text must satisfy; plain words are told and not checked. A
            `TemplateParameter` must keep its fields in any case.
        momentum: how many past versions are shown.
        temperature: of the weights of past versions, in units of the score.
        seed: of the drawing.
        retries: how many more times to ask.
        limit: how many characters of feedback are sent at most.
        messages: pairs of a role and a template, in place of the prompt ``improve``.
        options: the model's own.

    Raises:
        ArgumentError: an argument cannot be used.
        ReplyError: by `step`: no answer would do.

    References:
        Yuksekgonul et al., TextGrad, arXiv:2406.07496; Ding et al., Scaling textual gradients via
        sampling-based momentum, arXiv:2506.00400.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Scripted({"too long": "<IMPROVED>Answer in one word.</IMPROVED>"})
        >>> prompt = Variable("Answer.", role="system prompt", requires_grad=True)
        >>> optimizer = TGD([prompt], lm)
        >>> prompt.grad = [Variable("The answers are too long.")]
        >>> optimizer.step()
        >>> prompt.data
        'Answer in one word.'
    """

    def __init__(
        self,
        params: Iterable[Any],
        lm: LM,
        *,
        constraints: Sequence[Constraint | str] = (),
        momentum: int = 0,
        temperature: Positive = 0.1,
        seed: int = 0,
        retries: Natural = 2,
        limit: Count = 8000,
        messages: Prompt | None = None,
        **options: Any,
    ) -> None:
        Request.of("", **options)  # refuses what is no option before anything is paid for
        known = fields_in(prompt("improve"))
        fields = known if messages is None else fields_in(messages)
        if not fields or fields - known or {role for role, _ in messages or ()} - {*ROLES}:
            raise ArgumentError(
                "The messages to the writer tell it nothing, have a field without a value, or "
                "another role.",
                given=shown(messages),
                expected=f"fields among {', '.join(sorted(known))}; {', '.join(ROLES)}",
            )  # fmt: skip
        self.lm, self.retries, self.limit, self.options = lm, retries, limit, options
        self.temperature, self.seed, self.steps = temperature, seed, 0
        self.messages = messages
        super().__init__(params, {"constraints": constraints, "momentum": momentum})

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group of parameters; see `Optimizer.add_param_group`."""
        chosen = {**self.defaults, **group}
        check_counts(0, momentum=chosen["momentum"])
        given = chosen["constraints"]
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise ArgumentTypeError("Constraints are a list.", given=shown(given))
        constraints = [each if isinstance(each, Constraint) else Constraint(each) for each in given]
        super().add_param_group({**group, "constraints": constraints})

    def step(self) -> None:
        """Rewrite each text that has feedback; all of them, or none.

        Raises:
            ReplyError: no answer for a text would do; no text has changed.
        """
        self._follow()
        every = [(each, group) for group in self.param_groups for each in group["params"]]
        work = [(number, *each) for number, each in enumerate(every) if each[0].grad]
        if not work:
            return
        values = self.values()
        for (number, parameter, _), value in zip(work, run(self._propose(work)), strict=True):
            said = tuple(note.data for note in parameter.grad)
            self.versions[number][-1] = replace(self.versions[number][-1], feedback=said)
            values[number] = value
        self.set_values(values)
        self.steps += 1

    async def _propose(self, work: list[Any]) -> list[str]:
        tasks = [asyncio.ensure_future(call_within_limit(self._ask, each)) for each in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(self, number: int, parameter: Variable, group: Mapping[str, Any]) -> str:
        constraints = list(group["constraints"])
        kept = self._kept(parameter)
        constraints += [kept] if kept is not None else []
        data = {
            "role": parameter.role or "a text",
            "value": parameter.data,
            "feedback": listed([note.data for note in parameter.grad], self.limit),
            "constraints": listed([each.text for each in constraints], self.limit),
            "earlier": self._earlier(number, group["momentum"]),
        }
        messages = fill_prompt(self.messages or prompt("improve"), **data)

        def read(answer: str) -> str:
            value = between_tags(answer, "IMPROVED", data.values())
            if not value.strip():
                raise ReplyError("The new text is empty.", expected="a text")
            for constraint in constraints:
                wrong = constraint.check(value) if constraint.check else None
                if not isinstance(wrong, str | None):
                    raise ArgumentTypeError(
                        f"The check of the constraint {constraint.text!r} gave no words.",
                        given=repr(wrong)[:80], expected="what is wrong, or None",
                    )  # fmt: skip
                if wrong:
                    raise ReplyError(
                        f"The new text breaks a constraint: {wrong}.",
                        given=shorten(repr(value), 200), expected=constraint.text,
                    )  # fmt: skip
            return value

        with at("proposal", self.steps, number):
            return await ask(self.lm, messages, read, self.retries, self.options)

    def _kept(self, parameter: Variable) -> Constraint | None:
        """A template keeps its fields; any other text has none, whatever braces are in it."""
        return keeps_fields(parameter.data) if isinstance(parameter, Template) else None

    def _earlier(self, number: int, momentum: int) -> str:
        drawn = self._draw(number, momentum)
        if not drawn:
            return "none"
        told = []
        for version in drawn:
            score = "not measured" if version.score is None else f"score {version.score:g}"
            said = listed(version.feedback, self.limit // 4)
            told.append(f"[{score}]\n{version.value}\n[feedback]\n{said}")
        return "\n\n".join(told)

    def _draw(self, number: int, momentum: int) -> list[Version]:
        """Past versions, without replacement, by weights exp(score / temperature).

        Adding independent Gumbel noise to the log weights and taking the largest draws so:
        Vieira 2014, https://timvieira.github.io/blog/post/2014/08/01/gumbel-max-trick/.
        """
        past = self.versions[number][:-1]
        scored = [version.score for version in past if version.score is not None]
        middle = math.fsum(scored) / len(scored) if scored else 0.0
        dice = random.Random(f"{self.seed} {self.steps} {number}")  # noqa: S311  # no secret

        def key(version: Version) -> float:
            score = middle if version.score is None else version.score
            return score / self.temperature - math.log(dice.expovariate(1.0) + 1e-300)

        best = sorted(((key(version), place) for place, version in enumerate(past)), reverse=True)
        return [past[place] for place in sorted(place for _, place in best[:momentum])]

    def state_dict(self) -> dict[str, Any]:
        """The texts, their past versions, and how many steps were made."""
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""
        steps = state.get("steps")
        if not isinstance(steps, int):
            raise ArgumentError("This is no state of a TGD.", given=f"steps={steps!r}")
        super().load_state_dict(state)
        self.steps = steps
