"""Evaluators: a score and an explanation."""

import builtins
from collections.abc import Callable
from typing import Any

from pullback import tape, text
from pullback.compat.afnio._blocks import check_messages
from pullback.compat.afnio._client import as_lm
from pullback.compat.afnio._variable import (
    Variable,
    adopt,
    check_same_length,
    over_batch,
    plain,
)
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text._conversation import read_conversation
from pullback.text._judge import Judge, JudgeOne

__all__ = ["DeterministicEvaluator", "ExactMatchEvaluator", "LMJudgeEvaluator"]

Success = Callable[[list[Any]], bool] | None
Reduction = Callable[[list[Any]], Any] | None


class DeterministicEvaluator:
    """Scores by a function of a prediction and its target."""

    @staticmethod
    def apply(
        prediction: Any,
        target: Any,
        eval_fn: Callable[[Any, Any], Any],
        eval_fn_purpose: Any,
        success_fn: Success = None,
        reduction_fn: Reduction = builtins.sum,
        reduction_fn_purpose: Any = "summation",
    ) -> tuple[Variable, Variable]:
        """Evaluate.

        Raises:
            TypeError: an argument is of another type.
            ValueError: predictions and targets differ in number, or a purpose is empty.
        """
        _check(prediction, [eval_fn, success_fn, reduction_fn], reduction_fn_purpose)
        check_same_length(prediction._data, plain(target))
        result = text.deterministic(
            prediction, target, eval_fn, plain(eval_fn_purpose), success=_passes(success_fn),
            reduction=lambda scores: _reduced([_whole(score) for score in scores], reduction_fn),
        )  # fmt: skip
        return adopt(result.score), adopt(result.explanation)


class ExactMatchEvaluator:
    """Scores 1 where a prediction is its target, else 0."""

    @staticmethod
    def apply(
        prediction: Any,
        target: Any,
        reduction_fn: Reduction = builtins.sum,
        reduction_fn_purpose: Any = "summation",
    ) -> tuple[Variable, Variable]:
        """Evaluate; see `DeterministicEvaluator.apply`."""
        return DeterministicEvaluator.apply(
            prediction, target, lambda given, wanted: int(given == wanted), "exact match", None,
            reduction_fn, reduction_fn_purpose,
        )  # fmt: skip


class LMJudgeEvaluator:
    """A model scores, and explains."""

    @staticmethod
    def apply(
        forward_model_client: Any,
        messages: Any,
        prediction: Any,
        target: Any = None,
        inputs: dict[str, Any] | None = None,
        success_fn: Success = None,
        reduction_fn: Reduction = builtins.sum,
        reduction_fn_purpose: Any = "summation",
        eval_mode: Any = True,
        **completion_args: Any,
    ) -> tuple[Variable, Variable]:
        """Evaluate: the model answers JSON with ``"score"`` and ``"explanation"``.

        With ``eval_mode`` the explanation is the feedback to the prediction; without it, what is
        said of the explanation goes to the messages, which are then being optimised.

        Raises:
            RuntimeError: the answer is no such JSON.
            TypeError: an argument is of another type.
            ValueError: predictions and targets differ in number, or a placeholder has no input.
        """
        lm, options = as_lm(forward_model_client, completion_args)
        check_messages(messages)
        _check(prediction, [success_fn, reduction_fn], reduction_fn_purpose)
        if target is not None:
            check_same_length(prediction._data, plain(target))
        given = {"prediction": prediction, **({} if target is None else {"target": target})}

        def ask(**values: tape.Variable) -> Any:
            conversation, variables = read_conversation(messages, values, unused=True, every=True)
            place = conversation.count + list(values).index("prediction")
            others = tuple(n for n in range(len(variables)) if n != place)
            told = () if plain(eval_mode) else others
            spec = Judge(lm, conversation.messages, place, told, _passes(success_fn), 0, options)
            return JudgeOne.apply(spec, *variables)

        score, explanation = over_batch(ask, {**given, **(inputs or {})}, "judgement")
        if isinstance(prediction._data, list):
            scores = list(score)
            score, explanation = text.sum(scores), text.join("\n", list(explanation))
            wanted = _reduced([each._data for each in scores], reduction_fn)
            score = score + (wanted - score._data)
        return adopt(score), adopt(explanation)


def _passes(success_fn: Success) -> Callable[[float], bool]:
    return lambda score: score >= 1 if success_fn is None else bool(success_fn([score]))


def _reduced(scores: list[Any], reduction_fn: Reduction) -> float:
    return (reduction_fn or (lambda each: builtins.sum(each) / len(each)))(scores)


def _whole(score: float) -> float | int:
    return int(score) if score == int(score) else score


def _check(prediction: Any, functions: list[Any], reduction_purpose: Any) -> None:
    purpose = plain(reduction_purpose)
    if not isinstance(prediction, tape.Variable):
        raise ArgumentTypeError("A prediction is a Variable.", given=type(prediction).__name__)
    for function in functions:
        if function is not None and not callable(function):
            raise ArgumentTypeError("A function was expected.", given=repr(function)[:80])
    if functions[-1] is not None and not (isinstance(purpose, str) and purpose.strip()):
        raise ArgumentError("The purpose of the reduction is no text.", given=repr(purpose))
