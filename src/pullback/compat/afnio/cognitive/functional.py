"""afnio's operations over those of `pullback.text`; each takes lists as batches."""

import builtins
from collections.abc import Callable
from statistics import fmean
from typing import Any

from pullback import tape, text
from pullback.compat.afnio._client import BackwardCritic, as_lm
from pullback.compat.afnio._variable import Variable, adopt, adopt_pair
from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.tape._variable import data_of, roles_of
from pullback.text._chat import Call, Chat, read_conversation
from pullback.text._critic import current_critic
from pullback.text._evaluation import Evaluator, Judge, ask_judge, in_one

__all__ = [
    "add",
    "chat_completion",
    "deterministic_evaluator",
    "exact_match_evaluator",
    "lm_judge_evaluator",
    "split",
    "sum",
]

Success = Callable[[list[Any]], bool] | None
Reduction = Callable[[list[Any]], Any] | None


@checked
def add(x: tape.Variable, y: tape.Variable) -> Any:
    """The sum of two Variables, or of two lists item by item; texts are put together.

    Raises:
        TypeError: one is no Variable, or the kinds cannot be added.
        ValueError: a list is added to a single value, or to a list of another length.
    """
    _check_same_length(x._data, y._data)
    return _over_batch(lambda x, y: x + y, {"x": x, "y": y}, roles_of((x, y)))


@checked
def sum(x: list[tape.Variable] | tuple[tape.Variable, ...]) -> Any:
    """The sum of numbers; of texts, each in ``<ITEM>`` tags.

    Raises:
        TypeError: an entry is no Variable, or the kinds cannot be added.
    """
    batches = any(isinstance(value._data, list) for value in x)
    result = text.sum([item for value in x for item in value] if batches else x)
    result.role = roles_of(x)
    return adopt(result)


@checked
def split(x: tape.Variable, sep: Any = None, maxsplit: Any = -1) -> Any:
    """The parts of a text; of a list of texts, every part is a list.

    Raises:
        TypeError: it is no text, the separator no text, or the limit no whole number.
    """
    limit = -1 if data_of(maxsplit) is None else data_of(maxsplit)
    parts = _over_batch(lambda x: tuple(text.split(x, data_of(sep), limit)), {"x": x}, "")
    for number, part in enumerate(parts):
        part.role = f"split part {number} of {x.role}"
    return parts


@checked
def chat_completion(
    forward_model_client: Any,
    messages: Any,
    inputs: dict[str, Any] | None = None,
    **completion_args: Any,
) -> Variable:
    """What a model answers to messages, their placeholders filled in.

    Where an input is a list, it is asked once for each of its items, all at once.

    Raises:
        TypeError: the client, the messages or the inputs are none.
        ValueError: a placeholder has no input, or the lists differ in length. Nothing was sent
            then.
    """
    lm, options = as_lm(forward_model_client, completion_args)
    critic = current_critic() or BackwardCritic()

    def ask(**given: tape.Variable) -> Any:
        conversation, variables = read_conversation(messages, given, lax=True)
        call = Call(lm, conversation, "chat completion", critic, options=options)
        return Chat.apply(call, *variables)

    return _over_batch(ask, inputs or {}, "chat completion")


@checked
def deterministic_evaluator(
    prediction: tape.Variable,
    target: Any,
    eval_fn: Callable[[Any, Any], Any],
    eval_fn_purpose: Any,
    success_fn: Success = None,
    reduction_fn: Reduction = builtins.sum,
    reduction_fn_purpose: Any = "summation",
) -> tuple[Variable, Variable]:
    """A score and an explanation by a function of a prediction and its target.

    Raises:
        TypeError: an argument is of another type.
        ValueError: predictions and targets differ in number, or a purpose is empty.
    """
    _check_same_length(prediction._data, data_of(target))
    whole = lambda scores: [int(s) if s == int(s) else s for s in scores]  # noqa: E731
    result = text.deterministic(
        prediction, target, eval_fn, data_of(eval_fn_purpose), success=_passes(success_fn),
        reduction=lambda scores: _reduced(whole(scores), reduction_fn),
    )  # fmt: skip
    return adopt_pair(*result)


def exact_match_evaluator(
    prediction: tape.Variable,
    target: Any,
    reduction_fn: Reduction = builtins.sum,
    reduction_fn_purpose: Any = "summation",
) -> tuple[Variable, Variable]:
    """The score 1 where a prediction is its target, else 0; see `deterministic_evaluator`."""
    return deterministic_evaluator(
        prediction, target, lambda given, wanted: int(given == wanted), "exact match", None,
        reduction_fn, reduction_fn_purpose,
    )  # fmt: skip


@checked
def lm_judge_evaluator(
    forward_model_client: Any,
    messages: Any,
    prediction: tape.Variable,
    target: Any = None,
    inputs: dict[str, Any] | None = None,
    success_fn: Success = None,
    reduction_fn: Reduction = builtins.sum,
    reduction_fn_purpose: Any = "summation",
    eval_mode: Any = True,
    **completion_args: Any,
) -> tuple[Variable, Variable]:
    """A score and an explanation by a model, which answers JSON with ``"score"`` and the other.

    With ``eval_mode`` the explanation is the feedback to the prediction; without it, what is said
    of the explanation goes to the messages, which are then being optimised.

    Raises:
        RuntimeError: the answer is no such JSON.
        TypeError: an argument is of another type.
        ValueError: predictions and targets differ in number, or a placeholder has no input.
    """
    lm, options = as_lm(forward_model_client, completion_args)
    if target is not None:
        _check_same_length(prediction._data, data_of(target))
    given = {"prediction": prediction, **({} if target is None else {"target": target})}

    def ask(**values: tape.Variable) -> Any:
        conversation, variables = read_conversation(messages, values, lax=True)
        own, sent = len(conversation.templates), conversation.messages
        place = own + list(values).index("prediction")
        others = tuple(n for n in range(len(variables)) if n != place)
        told = () if data_of(eval_mode) else others
        verdict = lambda each: ask_judge(lm, sent, each, 0, options, own=own)  # noqa: E731
        return Judge.apply(Evaluator(verdict, _passes(success_fn), place, told), *variables)

    score, explanation = _over_batch(ask, {**given, **(inputs or {})}, "judgement")
    if isinstance(prediction._data, list):
        score, explanation = in_one(
            score, explanation, lambda scores: _reduced(scores, reduction_fn)
        )
    return adopt_pair(score, explanation)


def _over_batch(ask: Callable[..., Any], inputs: dict[str, Any], role: str) -> Any:
    """Call with the inputs by name; where some are lists, once for each of their items, at once.

    Raises:
        ValueError: the lists differ in length, or are empty.
    """
    named = {
        name: value if isinstance(value, tape.Variable) else Variable(value, name)
        for name, value in inputs.items()
    }
    sizes = {len(value._data) for value in named.values() if isinstance(value._data, list)}
    if len(sizes) > 1 or 0 in sizes:
        raise ArgumentError(
            "The inputs of a batch differ in length, or are empty.",
            given=", ".join(map(str, sorted(sizes))),
        )
    if sizes:
        dims: Any = tuple(0 if isinstance(value._data, list) else None for value in named.values())
        each = lambda *values: ask(**dict(zip(named, values, strict=True)))  # noqa: E731
        result = tape.vmap(each, in_dims=dims)(*named.values())
    else:
        result = ask(**named)
    for variable in result if isinstance(result, tuple) else (result,):
        variable.role = role or variable.role
    return adopt(result)


def _check_same_length(first: Any, second: Any) -> None:
    """Refuse two lists of different lengths, and a list with a single value."""
    lists = isinstance(first, list), isinstance(second, list)
    if lists[0] != lists[1] or (all(lists) and len(first) != len(second)):
        raise ArgumentError(
            "Two values are no two single ones, nor two lists of one length.",
            given=f"{first!r:.60} and {second!r:.60}",
        )


def _passes(success_fn: Success) -> Callable[[float], bool]:
    return lambda score: score >= 1 if success_fn is None else bool(success_fn([score]))


def _reduced(scores: Any, reduction_fn: Reduction) -> float:
    return (reduction_fn or fmean)(scores)
