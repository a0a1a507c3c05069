"""`judge`: a language model as the evaluator."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.tape import Variable, vmap
from pullback.text._evaluation import Evaluation, is_full
from pullback.text._failure import attempted, failure_in
from pullback.text._joining import Quote, as_variable, join, sum, written
from pullback.text._operation import Operation
from pullback.text._prompts import ask, check_retries, fill_prompt, prompt
from pullback.text.lm import LM
from pullback.text.lm._json import parse_object

__all__ = ["Judge", "JudgeOne", "judge"]


@dataclass(frozen=True, eq=False)
class Judge:
    """Who judges, by which messages, and when there is nothing to improve.

    Arguments:
        lm: the model.
        messages: given the Variables, what is sent.
        prediction: which of the Variables is judged.
        criteria: which of them are told what is said of the explanation.
        success: whether a score needs no improvement.
        retries: how many more times to ask.
        options: the model's own.
    """

    lm: LM
    messages: Callable[[Sequence[Variable]], Any]
    prediction: int
    criteria: tuple[int, ...]
    success: Callable[[float], bool]
    retries: int
    options: Mapping[str, Any] = field(default_factory=dict)


class JudgeOne(Operation):
    """One text, judged; the explanation is the feedback to it.

    A text that is a failure scores 0 and is told why. So does one whose judge fails, and is told
    nothing, for nothing is known of it.
    """

    takes_failures = True
    random = "drawn"

    @staticmethod
    async def forward(spec: Judge, *variables: Variable) -> Any:
        failure = failure_in([variable.data for variable in variables])
        said = f"Nothing was judged: {failure}"
        score = 0.0
        if failure is None:
            messages = spec.messages(variables)
            with attempted() as tried:
                score, said = await ask(
                    spec.lm, messages, read_verdict, spec.retries, **spec.options
                )
            said = said if tried.failure is None else tried.failure
        role = variables[spec.prediction].role
        return Variable(score, "score"), Variable(said, f"judgement of {role}")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs, and whether there is anything to say."""
        Operation.setup_context(ctx, inputs, output)
        unknown = failure_in(output[1].data) is not None
        ctx.passed = unknown or bool(inputs[0].success(output[0].data))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, score: Any, explanation: Any) -> Any:
        spec: Judge = ctx.spec
        *inputs, _, verdict = ctx.saved_variables
        told: list[Any] = [None] * len(inputs)
        moved = score is not None and (score > 0 or score < 0)
        if moved and not ctx.passed:
            told[spec.prediction] = verdict
        for number in spec.criteria if explanation else ():
            told[number] = explanation
        return (None, *told)


def judge(
    lm: LM,
    criterion: Variable | str,
    prediction: Variable,
    target: Variable | str | list[str] | None = None,
    *,
    success: Callable[[float], bool] = is_full,
    retries: int = 2,
    **options: Any,
) -> Evaluation:
    """Score texts from 0 to 1 by a criterion, with a language model as the judge.

    The explanation is the feedback to a text that does not succeed; what is said of the
    explanation goes to the criterion, which may be a `Parameter` itself. The texts of a batch are
    judged at once, identical ones once, and their score is the mean.

    Arguments:
        lm: the model.
        criterion: what makes a text good.
        prediction: a text, or a list of them for a batch.
        target: what is expected: for a batch one for all or a list; None if there is none.
        success: whether a score needs no improvement.
        retries: how many more times to ask where an answer cannot be read.
        options: the model's own.

    Raises:
        ArgumentError: there is not one target for each prediction, or the retries are no number.
        ReplyError: no answer could be read: it is no JSON with a score from 0 to 1 and an
            explanation.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Scripted({"Ciao": '{"score": 1, "explanation": "It is Italian."}'})
        >>> judge(lm, "Is it Italian?", Variable("Ciao", role="translation")).score.data
        1.0
    """
    if not isinstance(lm, LM):
        raise ArgumentTypeError("A language model judges.", given=type(lm).__name__)
    check_retries(retries)
    rule, expected = as_variable(criterion), "none" if target is None else target
    parts = prompt("judge")

    def messages(variables: Sequence[Variable]) -> Any:
        named = zip(("criterion", "prediction", "target"), map(written, variables), strict=True)
        return fill_prompt(parts, **dict(named))

    spec = Judge(lm, messages, 1, (0,), success, retries, options)
    one = partial(JudgeOne.apply, spec, rule)
    data = prediction.data
    if not isinstance(data, list | tuple):
        return Evaluation(*one(prediction, as_variable(expected)))
    many = expected.data if isinstance(expected, Variable) else expected
    batched = isinstance(many, list | tuple)
    if not data or (batched and len(many) != len(data)):
        raise ArgumentError(
            "There is not one target for each prediction, or no prediction.",
            given=f"{len(many) if batched else 1} for {len(data)}",
        )  # fmt: skip
    given = expected if batched else as_variable(expected)
    scores, explanations = vmap(one, in_dims=(0, 0 if batched else None))(prediction, given)
    count = len(data)
    said = [explanations[number] for number in range(count)]
    total = sum([scores[number] for number in range(count)])
    # As plain texts, so that one judge that failed does not hide what others said.
    plain = [Quote.apply(lambda text: Variable(str(text.data), text.role), each) for each in said]
    return Evaluation(total / count, join("\n", plain))


def read_verdict(answer: str) -> tuple[float, str]:
    """The score and explanation in a judge's answer, whatever is said around them.

    Raises:
        ReplyError: it has none, others, or two that differ: one may be what the text says.

    Example:
        >>> read_verdict('{"score": true, "explanation": "Right."}')
        (1.0, 'Right.')
    """
    verdict = parse_object(answer, "its judgement", ("score", "explanation"))
    score, explanation = verdict.get("score"), verdict.get("explanation")
    number = isinstance(score, bool | int | float) and math.isfinite(score) and 0 <= score <= 1
    if not number or not isinstance(explanation, str) or not explanation.strip():
        raise ReplyError(
            "The judgement has no score from 0 to 1 with an explanation.",
            given=repr(verdict)[:200], expected='{"score": 0.5, "explanation": "why"}',
        )  # fmt: skip
    return float(score), explanation
