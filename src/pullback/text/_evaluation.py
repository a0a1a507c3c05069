"""Evaluators, functions or models: a score, an explanation, and feedback to what fell short."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from statistics import fmean
from typing import Any, NamedTuple

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._arguments import Natural, checked
from pullback.tape import Variable, is_grad_enabled, vmap
from pullback.text._failure import attempted, failure_in
from pullback.text._joining import Operation, Quote, as_variable, join, written
from pullback.text._prompts import ask, fill_prompt, prompt, shorten
from pullback.text.lm import LM, Request
from pullback.text.lm._json import parse_object

__all__ = ["Evaluation", "deterministic", "exact_match", "judge"]


class Evaluation(NamedTuple):
    """What an evaluator gives.

    Arguments:
        score: a number Variable; its backward needs no gradient.
        explanation: a text Variable; what is said of it is added to the feedback.
    """

    score: Variable
    explanation: Variable

    def backward(self, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Send the evaluator's feedback back to what it evaluated."""
        self.score.backward(None, retain_graph, create_graph)


def is_full(score: float) -> bool:
    """Whether a score is 1, so that there is nothing to improve."""
    return score >= 1.0


@dataclass(frozen=True, eq=False)
class Evaluator:
    """How one text is scored, by a function or by a model: a coroutine function of a `Judge`.

    Of the Variables one is the prediction that is scored; what is said of the explanation is said
    to the criteria.
    """

    verdict: Callable[[Sequence[Variable]], Any]
    success: Callable[[float], bool]
    prediction: int = 0
    criteria: tuple[int, ...] = (0,)

    def outputs(self, verdict: tuple[Any, str], variables: Sequence[Variable]) -> Any:
        """The score and the explanation, which is the feedback to a text that falls short."""
        score, said = verdict
        role = variables[self.prediction].role
        return Variable(score, "score"), Variable(said, f"judgement of {role or 'prediction'}")


class Evaluate(Operation):
    """One text, scored where it is applied; nothing is said of one whose judge has failed."""

    takes_failures = True

    @staticmethod
    def forward(spec: Evaluator, *variables: Variable) -> Any:
        return spec.outputs(spec.verdict(variables), variables)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs, and whether there is anything to say."""
        Operation.setup_context(ctx, inputs, output)
        unknown = failure_in(output[1].data) is not None
        ctx.passed = unknown or bool(inputs[0].success(output[0].data))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, score: Any, explanation: Any) -> Any:
        spec: Evaluator = ctx.spec
        *inputs, _, verdict = ctx.saved_variables
        told: list[list[Any]] = [[] for _ in inputs]
        # How large the gradient of a score is says nothing about a text; whether there is one
        # does: a score that was multiplied by 0 asks for no improvement.
        moved = score is not None and (score > 0 or score < 0)
        if not ctx.passed and (moved or (explanation and spec.prediction in spec.criteria)):
            # With its history only where the feedback may be criticised: it would keep the graph.
            told[spec.prediction].append(verdict if is_grad_enabled() else verdict.detach())
        for number in spec.criteria if explanation else ():
            told[number] += getattr(explanation, "notes", (explanation,))
        return (None, *[each or None for each in told])


class Judge(Evaluate):
    """One text, scored by a model, beside others."""

    random = "drawn"

    @staticmethod
    async def forward(spec: Evaluator, *variables: Variable) -> Any:  # type: ignore[bad-override]
        return spec.outputs(await spec.verdict(variables), variables)


class Total(Operation):
    """The score of a batch; whoever fell short in it is told as it would be alone."""

    @staticmethod
    def forward(reduction: Callable[[Sequence[float]], Any], *scores: Variable) -> Variable:
        total = reduction([score.data for score in scores])
        finite(total, "The reduction of the scores")
        return Variable(total, "score")

    @staticmethod
    def backward(ctx: Any, score: Any) -> Any:
        # Whatever the reduction: who scores asks only whether there is a gradient (`Evaluate`).
        return (None, *[score for _ in ctx.needs_input_grad[1:]])


@checked
def exact_match(
    prediction: Variable, target: Any, reduction: Callable[[Sequence[float]], Any] = fmean
) -> Evaluation:
    """Score 1 where a prediction equals its target, else 0.

    Arguments:
        prediction: a text, or a list of them for a batch.
        target: what is expected: plain data or a Variable, as many as there are predictions.
        reduction: makes one score of those of a batch.

    Raises:
        ArgumentError: there is not one target for each prediction, or there is none: of a text
            too, no target is None.

    Example:
        >>> answer = Variable("green", role="answer", requires_grad=True)
        >>> evaluation = exact_match(answer, "red")
        >>> evaluation.backward()
        >>> answer.grad[0].data
        "Scored 0 by 'exact match'. Got: green. Expected: red"
    """
    wanted = target.data if isinstance(target, Variable) else target
    if wanted is None and prediction.data is not None:
        raise ArgumentError("There is no target to match.", given="target=None")
    return deterministic(
        prediction, target, lambda a, b: bool(a == b), "exact match", reduction=reduction
    )


@checked
def deterministic(
    prediction: Variable,
    target: Any,
    eval_fn: Callable[[Any, Any], Any],
    purpose: str,
    *,
    success: Callable[[float], bool] = is_full,
    reduction: Callable[[Sequence[float]], Any] = fmean,
) -> Evaluation:
    """Score by a function of one prediction and its target.

    Predictions that succeed are told nothing, and what made them is not run back. A `Failure` in
    place of a prediction scores 0.

    Arguments:
        prediction: a text, or a list of them for a batch.
        target: plain data or a Variable: one, or a list of one for each prediction. None if the
            function needs none.
        eval_fn: given a prediction and its target, gives a finite number or a truth value.
        purpose: what is scored, in words.
        success: whether a score needs no improvement.
        reduction: makes one score of those of a batch.

    Raises:
        ArgumentError: the purpose is empty, or there is not one target for each prediction.
        ArgumentTypeError: a score is no number, or the prediction is one and wants a gradient.

    Example:
        >>> answers = Variable(["yes", "no"], role="answers", requires_grad=True)
        >>> score, explanation = deterministic(answers, ["yes", "yes"], str.__eq__, "agreement")
        >>> score.data
        0.5
    """
    if not purpose.strip():
        raise ArgumentError("An evaluator needs a purpose.", given=repr(purpose))
    wanted = target.data if isinstance(target, Variable) else target
    data, batch = prediction.data, isinstance(prediction.data, list | tuple)
    if prediction.requires_grad and not all(
        isinstance(each, str) for each in (data if batch else [data])
    ):
        raise ArgumentTypeError(
            "An evaluator gives feedback in words, and a prediction is no text.",
            given=repr(prediction)[:80], expected="a text or a list of texts",
            mend="Evaluate select(prediction, ...), or its detach().",
        )  # fmt: skip

    def one(found: Variable, wanted: Any) -> Any:
        verdict = partial(judge_by, eval_fn, purpose, wanted)
        return Evaluate.apply(Evaluator(verdict, success), found)

    if not batch:
        score, explanation = one(prediction, wanted)
        return Evaluation(Total.apply(reduction, score), explanation)
    check_batch(data, wanted, single=wanted is None)
    # One target each, by its number: of equal predictions each may have another.
    # Gone through and not picked out one by one, which would make a list of feedback for each.
    targets = [None] * len(data) if wanted is None else wanted
    found = [one(*each) for each in zip(prediction, targets, strict=True)]
    total = Total.apply(reduction, *[score for score, _ in found])
    failed = [f"{n}" for n, (score, _) in enumerate(found) if not success(score.data)]
    which = f", the others at {', '.join(failed)}" if failed else ""
    said = (
        f"Scored by {purpose!r}: {len(found) - len(failed)} of {len(found)} succeed{which}; "
        f"the score is {total.data:g}."
    )
    told = Quote.apply(lambda *_: Variable(said, "explanation"), *[each for _, each in found])
    return Evaluation(total, told)


def judge_by(
    function: Callable[[Any, Any], Any], purpose: str, wanted: Any, variables: Sequence[Variable]
) -> tuple[float, str]:
    """What a function says of a text: a failure scores 0, and its cause is what it got."""
    given = variables[0].data
    failed = failure_in(given) is not None
    score = 0.0 if failed else finite(function(given, wanted), f"The score by {purpose!r}")
    expected = "" if wanted is None else f" Expected: {shorten(str(wanted), 2000)}"
    return score, f"Scored {score:g} by {purpose!r}. Got: {shorten(str(given), 2000)}.{expected}"


def check_batch(data: Sequence[Any], wanted: Any, *, single: bool) -> None:
    """Refuse a batch without a prediction, or without one target for each, or one for all."""
    size = len(wanted) if isinstance(wanted, list | tuple) else 1
    if not data or not (single or (isinstance(wanted, list | tuple) and size == len(data))):
        raise ArgumentError(
            "There is not one target for each prediction, or no prediction.",
            given=f"{size} for {len(data)}",
        )


def finite(value: Any, what: str) -> float:
    """The number; what is none, or not finite, is refused."""
    # The truth value of numpy, which comparing its texts gives, is no bool, nor a scalar of torch.
    number = value.item() if getattr(value, "shape", None) == () else value
    with suppress(OverflowError):  # of a whole number beyond all floats
        if isinstance(number, Real | Decimal) and math.isfinite(number):
            return float(number)
    raise ArgumentTypeError(
        f"{what} is no number.", given=repr(value)[:80], expected="a finite number or a truth value"
    )


async def ask_judge(
    lm: LM, messages: Any, variables: Sequence[Variable], retries: int, options: Mapping[str, Any],
    *, own: int,
) -> tuple[float, str]:  # fmt: skip
    """What a model says of texts; where one of them has failed, or the judge does, that it has.

    The first of them are of whoever asks, the others the data: what it repeats of those is no
    judgement.
    """
    failure = failure_in([variable.data for variable in variables])
    if failure is not None:
        return 0.0, f"Nothing was judged: {failure}"
    sent = messages(variables)
    read = partial(read_verdict, data=list(map(written, variables[own:])))
    with attempted() as failed:
        return await ask(lm, sent, read, retries, options)
    return 0.0, failed[0]


@checked
def judge(
    lm: LM,
    criterion: Variable | str,
    prediction: Variable,
    target: Variable | str | Sequence[Variable | str] | None = None,
    *,
    success: Callable[[float], bool] = is_full,
    retries: Natural = 2,
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
        ReplyError: no answer could be read: it is no JSON with a score from 0 to 1, or true or
            false for those, and an explanation.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Scripted({"Ciao": '{"score": 1, "explanation": "It is Italian."}'})
        >>> judge(lm, "Is it Italian?", Variable("Ciao", role="translation")).score.data
        1.0
    """
    Request.of("", **options)  # refuses what is no option before anything is paid for
    rule, expected = as_variable(criterion), "none" if target is None else target
    parts = prompt("judge")

    def messages(variables: Sequence[Variable]) -> Any:
        named = zip(("criterion", "prediction", "target"), map(written, variables), strict=True)
        return fill_prompt(parts, **dict(named))

    verdict = lambda each: ask_judge(lm, messages, each, retries, options, own=1)  # noqa: E731
    one = partial(Judge.apply, Evaluator(verdict, success, 1), rule)
    data = prediction.data
    if not isinstance(data, list | tuple):
        return Evaluation(*one(prediction, as_variable(expected)))
    many = expected.data if isinstance(expected, Variable) else expected
    batched = isinstance(many, list | tuple)
    check_batch(data, many, single=not batched)
    given = expected if batched else as_variable(expected)
    scores, explanations = vmap(one, in_dims=(0, 0 if batched else None))(prediction, given)
    return in_one(scores, explanations, fmean)


def in_one(scores: Any, explanations: Any, reduction: Callable[[Sequence[float]], Any]) -> Any:
    """One evaluation of those of a batch; a judge that failed hides nothing of what others said."""
    plain = [
        Quote.apply(lambda text: Variable(str(text.data), text.role), each) for each in explanations
    ]
    return Evaluation(Total.apply(reduction, *scores), join("\n", plain))


def read_verdict(answer: str, data: Sequence[str] = ()) -> tuple[float, str]:
    """The score and explanation in a judge's answer, whatever is said around them.

    Two that differ are refused: one may be what the text says.
    """
    verdict = parse_object(answer, "its judgement", ("score", "explanation"), data)
    score, explanation = verdict.get("score"), verdict.get("explanation")
    number = isinstance(score, bool | int | float) and 0 <= score <= 1
    if not number or not isinstance(explanation, str) or not explanation.strip():
        raise ReplyError(
            "The judgement has no score from 0 to 1 with an explanation.",
            given=repr(verdict)[:200], expected='{"score": 0.5, "explanation": "why"}',
        )  # fmt: skip
    return float(score), explanation
