"""Evaluators, functions or models: a score, an explanation, and feedback to what fell short."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._arguments import check_counts, checked
from pullback.tape import Variable, vmap
from pullback.text._failure import attempted, failure_in
from pullback.text._joining import Operation, Quote, as_variable, join, sum, written
from pullback.text._prompts import ask, fill_prompt, prompt, shorten
from pullback.text.lm import LM
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


def mean(scores: Sequence[float]) -> float:
    """The mean of the scores."""
    return math.fsum(scores) / len(scores)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """How predictions are scored."""

    function: Callable[[Any, Any], Any]
    purpose: str
    target: Any
    success: Callable[[float], bool]
    reduction: Callable[[Sequence[float]], Any]


class Evaluate(Operation):
    """Scores by a function; the feedback says what was wrong with each prediction that failed."""

    takes_failures = True

    @staticmethod
    def forward(spec: Evaluator, prediction: Variable, *target: Variable) -> tuple[Any, Any, Any]:
        said = f"The score by {spec.purpose!r}"
        scores = [
            0.0 if failure_in(each) is not None else finite(spec.function(each, wanted), said)
            for each, wanted in _pairs(spec, prediction, target)
        ]
        total = spec.reduction(scores)
        finite(total, f"The reduction of {spec.purpose!r}")
        failed = [n for n, score in enumerate(scores) if not spec.success(score)]
        which = f", the others at {', '.join(map(str, failed))}" if failed else ""
        explanation = (
            f"Scored by {spec.purpose!r}: {len(scores) - len(failed)} of {len(scores)} succeed"
            f"{which}; the score is {total:g}."
        )
        return Variable(total, "score"), Variable(explanation, "explanation"), Variable(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs; what no gradient reaches is told so."""
        Operation.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, score: Any, explanation: Any, _: Any) -> Any:
        spec: Evaluator = ctx.spec
        prediction, *target, _, _, scores = ctx.saved_variables
        explanation = explanation or None
        moved = explanation is not None or (score is not None and (score > 0 or score < 0))
        notes = None
        if moved:
            pairs = _pairs(spec, prediction, target)
            batch = isinstance(prediction._data, list | tuple)
            each = [prediction[n] for n in range(len(pairs))] if batch else [prediction]
            notes = [
                _complaint(spec, found, wanted, item, explanation)
                for found, (_, wanted), item in zip(scores.data, pairs, each, strict=True)
            ]
            notes = notes if batch else notes[0]
        return (None, notes, *[None] * len(target))


@checked
def exact_match(
    prediction: Variable, target: Any, reduction: Callable[[Sequence[float]], Any] = mean
) -> Evaluation:
    """Score 1 where a prediction equals its target, else 0.

    Arguments:
        prediction: a text, or a list of them for a batch.
        target: what is expected: plain data or a Variable, as many as there are predictions.
        reduction: makes one score of those of a batch.

    Raises:
        ArgumentError: there is not one target for each prediction, or there is none.

    Example:
        >>> answer = Variable("green", role="answer", requires_grad=True)
        >>> evaluation = exact_match(answer, "red")
        >>> evaluation.backward()
        >>> answer.grad[0].data
        "Scored 0 by 'exact match'. Got: green. Expected: red"
    """
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
    reduction: Callable[[Sequence[float]], Any] = mean,
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
    variable = isinstance(target, Variable)
    spec = Evaluator(eval_fn, purpose, None if variable else target, success, reduction)
    score, explanation, _ = Evaluate.apply(spec, prediction, *([target] if variable else []))
    return Evaluation(score, explanation)


def _pairs(
    spec: Evaluator, prediction: Variable, target: Sequence[Variable]
) -> list[tuple[Any, Any]]:
    """Each prediction with its target: of a batch many, else one."""
    data, wanted = prediction._data, target[0]._data if target else spec.target
    batch = isinstance(data, list | tuple)
    predictions = list(data) if batch else [data]
    if prediction.requires_grad and not all(isinstance(each, str) for each in predictions):
        raise ArgumentTypeError(
            "An evaluator gives feedback in words, and a prediction is no text.",
            given=repr(prediction)[:80], expected="a text or a list of texts",
            mend="Evaluate select(prediction, ...), or its detach().",
        )  # fmt: skip
    if not predictions:
        raise ArgumentError("There is no prediction to score.", given=repr(data))
    if not batch or wanted is None:
        return [(each, wanted) for each in predictions]
    if not isinstance(wanted, list | tuple) or len(wanted) != len(predictions):
        size = len(wanted) if isinstance(wanted, list | tuple) else "one value"
        raise ArgumentError(
            "There is not one target for each prediction.", given=f"{size} for {len(predictions)}"
        )
    return list(zip(predictions, wanted, strict=True))


def _complaint(spec: Evaluator, score: float, wanted: Any, prediction: Variable, more: Any) -> Any:
    """What is wrong with one prediction, in words."""
    if spec.success(score) and more is None:
        return None

    def said(prediction: Variable) -> Variable:
        expected = "" if wanted is None else f" Expected: {shorten(str(wanted), 2000)}"
        return Variable(
            f"Scored {score:g} by {spec.purpose!r}. "
            f"Got: {shorten(str(prediction.data), 2000)}.{expected}",
            f"feedback to {prediction.role or 'prediction'}",
        )

    complaint = Quote.apply(said, prediction)
    return complaint if more is None else [complaint, *getattr(more, "notes", (more,))]


def finite(value: Any, what: str) -> float:
    """The number, if it is one.

    Raises:
        ArgumentTypeError: it is none, or not finite.
    """
    if isinstance(value, Real) and math.isfinite(value):  # numpy's numbers are real, too
        return float(value)
    raise ArgumentTypeError(
        f"{what} is no number.", given=repr(value)[:80], expected="a finite number or a truth value"
    )


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
            with attempted() as failed:
                score, said = await ask(
                    spec.lm, messages, read_verdict, spec.retries, **spec.options
                )
            said = failed[0] if failed else said
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


@checked
def judge(
    lm: LM,
    criterion: Variable | str,
    prediction: Variable,
    target: Variable | str | Sequence[Variable | str] | None = None,
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
    check_counts(0, retries=retries)
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
    # As plain texts, so that one judge that failed does not hide what others said.
    plain = [
        Quote.apply(lambda text: Variable(str(text.data), text.role), each) for each in explanations
    ]
    return Evaluation(sum(list(scores)) / len(data), join("\n", plain))


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
