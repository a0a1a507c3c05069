"""Evaluators: a score and an explanation."""

import builtins
from collections.abc import Callable
from typing import Any

from pullback import tape, text
from pullback.compat.afnio._client import as_lm
from pullback.compat.afnio._messages import check_messages
from pullback.compat.afnio._variable import Variable, adopt, check_same_length, plain
from pullback.compat.afnio.autodiff.lm_ops import check_evaluation, over_batch
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text._conversation import read_conversation
from pullback.text._judge import Judge, JudgeOne

__all__ = ["DeterministicEvaluator", "ExactMatchEvaluator", "LMJudgeEvaluator"]


class DeterministicEvaluator:
    """Scores by a function of a prediction and its target."""

    @staticmethod
    def apply(
        prediction: Any,
        target: Any,
        eval_fn: Callable[[Any, Any], Any],
        eval_fn_purpose: Any,
        success_fn: Callable[[list[Any]], bool] | None = None,
        reduction_fn: Callable[[list[Any]], Any] | None = builtins.sum,
        reduction_fn_purpose: Any = "summation",
    ) -> tuple[Variable, Variable]:
        """Evaluate.

        Raises:
            TypeError: an argument is of another type.
            ValueError: predictions and targets differ in number, or a purpose is empty.
        """
        purpose, reduced = plain(eval_fn_purpose), plain(reduction_fn_purpose)
        _check(prediction, eval_fn, purpose, success_fn, reduction_fn, reduced)
        check_same_length(prediction._data, plain(target))
        reduce = reduction_fn or (lambda scores: scores[0] if len(scores) == 1 else mean(scores))
        result = text.deterministic(
            prediction, target, eval_fn, purpose,
            success=lambda score: score >= 1 if success_fn is None else bool(success_fn([score])),
            reduction=lambda scores: reduce([_whole(score) for score in scores]),
        )  # fmt: skip
        return check_evaluation(result)


class ExactMatchEvaluator:
    """Scores 1 where a prediction is its target, else 0."""

    @staticmethod
    def apply(
        prediction: Any,
        target: Any,
        reduction_fn: Callable[[list[Any]], Any] | None = builtins.sum,
        reduction_fn_purpose: Any = "summation",
    ) -> tuple[Variable, Variable]:
        """Evaluate; see `DeterministicEvaluator.apply`."""
        return DeterministicEvaluator.apply(
            prediction, target, _equal, "exact match", None, reduction_fn, reduction_fn_purpose
        )


class LMJudgeEvaluator:
    """A model scores, and explains."""

    @staticmethod
    def apply(
        forward_model_client: Any,
        messages: Any,
        prediction: Any,
        target: Any = None,
        inputs: dict[str, Any] | None = None,
        success_fn: Callable[[list[Any]], bool] | None = None,
        reduction_fn: Callable[[list[Any]], Any] | None = builtins.sum,
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
        _check(prediction, len, "judge", success_fn, reduction_fn, plain(reduction_fn_purpose))
        if target is not None:
            check_same_length(prediction._data, plain(target))
        given = {"prediction": prediction, **({} if target is None else {"target": target})}
        given |= inputs or {}
        named = {
            name: value if isinstance(value, tape.Variable) else Variable(value, name)
            for name, value in given.items()
        }
        names = list(named)

        def passed(score: float) -> bool:
            return score >= 1 if success_fn is None else bool(success_fn([score]))

        def ask(*values: tape.Variable) -> Any:
            fields = dict(zip(names, values, strict=True))
            conversation, variables = read_conversation(messages, fields, unused=True, every=True)
            place = conversation.count + names.index("prediction")
            others = tuple(n for n in range(len(variables)) if n != place)
            told = () if plain(eval_mode) else others
            spec = Judge(lm, conversation, place, told, passed, 0, options)
            return JudgeOne.apply(spec, *variables)

        scores, explanations = over_batch(ask, list(named.values()), "judgement")
        if not isinstance(prediction._data, list):
            return adopt(scores), adopt(explanations)
        count = len(prediction._data)
        total = _reduced([scores[n] for n in range(count)], reduction_fn)
        return adopt(total), adopt(text.join("\n", [explanations[n] for n in range(count)]))


def mean(scores: list[float]) -> float:
    """The mean."""
    return builtins.sum(scores) / len(scores)


def _reduced(scores: list[tape.Variable], reduction_fn: Any) -> tape.Variable:
    total = text.sum(scores)
    if reduction_fn is None or reduction_fn is builtins.sum:
        return total if reduction_fn else total / len(scores)
    wanted = float(reduction_fn([float(score._data) for score in scores]))
    return total + (wanted - float(total._data))


def _whole(score: float) -> float | int:
    return int(score) if score == int(score) else score


def _equal(prediction: Any, target: Any) -> int:
    return int(prediction == target)


def _check(
    prediction: Any, eval_fn: Any, purpose: Any, success_fn: Any, reduction_fn: Any, reduced: Any
) -> None:
    if not isinstance(prediction, tape.Variable):
        raise ArgumentTypeError("A prediction is a Variable.", given=type(prediction).__name__)
    for function in (eval_fn, success_fn, reduction_fn):
        if function is not None and not callable(function):
            raise ArgumentTypeError("A function was expected.", given=repr(function)[:80])
    if not isinstance(purpose, str) or not isinstance(reduced, str | None):
        raise ArgumentTypeError("A purpose is a text.", given=f"{purpose!r}, {reduced!r}")
    if not purpose.strip() or (reduction_fn is not None and not (reduced or "").strip()):
        raise ArgumentError("A purpose is empty.", given=f"{purpose!r}, {reduced!r}")
