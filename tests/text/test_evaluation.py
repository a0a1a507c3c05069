"""Evaluators: scores are finite, feedback goes to what fell short alone, nothing runs twice."""

import json
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.text.helpers import Counting, answering

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.tape import Variable, grad
from pullback.text import (
    Parameter,
    chat,
    deterministic,
    exact_match,
    join,
    judge,
    prompt,
)
from pullback.text.lm import Scripted


def variable(data, role="prediction"):
    return Variable(data, role=role, requires_grad=True)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=8))
def test_just_what_failed_is_told_and_each_is_scored_once(pairs):
    predictions, targets = variable([p for p, _ in pairs]), [t for _, t in pairs]
    runs = Counter()

    def equal(prediction, target):
        runs["all"] += 1
        return prediction == target

    evaluation = deterministic(predictions, targets, equal, "agreement")
    evaluation.backward()
    assert runs["all"] == len(pairs)
    assert evaluation.score.data == pytest.approx(sum(p == t for p, t in pairs) / len(pairs))
    if predictions.grad is not None:
        told = [bool(slot) for slot in predictions.grad.data]
        assert told == [p != t for p, t in pairs]


@pytest.mark.parametrize("score", [True, np.bool_(True), np.float32(1), np.array(1), Decimal(1)])
def test_a_number_of_any_kind_is_a_score(score):
    assert deterministic(variable("a"), "b", lambda p, t: score, "purpose").score.data == 1.0


@pytest.mark.parametrize("score", [
    float("nan"), float("inf"), 10**400, "good", None, [1], np.array([1]), np.array(np.nan),
    Decimal("NaN"), np.str_("1"),
])  # fmt: skip
def test_what_is_no_score_is_refused(score):
    with pytest.raises(ArgumentTypeError, match="is no number"):
        deterministic(variable("a"), "b", lambda p, t: score, "purpose")
    with pytest.raises(ArgumentTypeError, match="reduction"):
        deterministic(variable("a"), "b", lambda p, t: 1, "purpose", reduction=lambda s: score)


def test_bad_arguments_are_refused():
    for make in (
        lambda: exact_match(variable(["a", "b"]), ["a"]),
        lambda: exact_match(variable(["a"]), "a"),
        lambda: exact_match(variable([]), []),
        lambda: exact_match(variable(["a"]), None),
        lambda: exact_match(variable("a"), Variable(None)),
        lambda: deterministic(variable("a"), "b", len, " "),
        lambda: exact_match("a", "a"),
        lambda: exact_match(Variable(1.0, requires_grad=True), 2.0),
        lambda: judge(Scripted(["x"]), "c", variable(["a", "b"]), ["a"]),
        lambda: judge(Scripted(["x"]), "c", variable([])),
        lambda: judge(Scripted(["x"]), "c", variable("a"), retries=-1),
        lambda: judge("gpt-4o", "c", variable("a")),
        lambda: judge(Scripted(["x"]), "c", "a"),
        lambda: exact_match(variable("a"), "a", reduction=None),
        lambda: deterministic(variable("a"), "b", "equal", "agreement"),
    ):
        with pytest.raises(ArgumentError):
            make()
    assert exact_match(Variable(1.0), 1.0).score.data == 1.0


def test_what_is_said_of_the_explanation_is_added():
    prediction = variable("a")
    _, explanation = exact_match(prediction, "b")
    explanation.backward(Variable("and be kind"))
    assert [note.data for note in prediction.grad][1:] == ["and be kind"]


def test_a_score_that_does_not_count_asks_for_nothing():
    asked = Counting(lambda request: "x")
    word = variable("w", "word")
    answer = chat(answering(asked), word)
    (exact_match(answer, "y").score * 0).backward()
    assert len(word.grad) == 0
    assert len(asked.requests) == 1


def test_items_that_succeed_ask_no_critic():
    from pullback.tape import vmap

    asked = Counting(lambda request: request.messages[-1].text)
    lm = answering(asked)
    words = [variable(each, each) for each in "abcd"]
    critic = Counter()

    class Counts:
        async def review(self, review):
            critic[review.inputs[0].data] += 1
            return [review.feedback]

    answers = vmap(lambda w: chat(lm, w, critic=Counts()))(words)
    exact_match(answers, ["a", "x", "c", "y"]).backward()
    assert critic == {"b": 1, "d": 1}


VERDICTS = st.sampled_from([
    '{"score": 0.5, "explanation": "fair"}', '{"score": true, "explanation": "right"}',
    "```json\n{\"score\": 0, \"explanation\": \"no\"}\n```", "0.5", "", "[]", "{}",
    '{"score": 2, "explanation": "x"}', '{"score": -1, "explanation": "x"}',
    '{"score": NaN, "explanation": "x"}', '{"score": "1", "explanation": "x"}',
    '{"score": 1, "explanation": ""}', '{"score": 1}',
])  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(VERDICTS, min_size=3, max_size=3))
def test_a_judgement_is_read_rightly_or_refused(verdicts):
    prediction = variable("a")
    try:
        evaluation = judge(Scripted(verdicts), "Is it good?", prediction, retries=2)
    except ReplyError:
        assert not any("fair" in v or "right" in v or '"no"' in v for v in verdicts)
        return
    assert evaluation.score.data in (0.0, 0.5, 1.0)
    evaluation.backward()
    told = [note.data for note in prediction.grad]
    assert told == ([] if evaluation.score.data == 1.0 else [evaluation.explanation.data])


def test_a_judge_is_told_what_was_said_of_its_explanation():
    criterion, prediction = Parameter("Is it kind?", role="criterion"), variable("a")
    lm = Scripted(lambda r: '{"score": 0, "explanation": "rude"}')
    evaluation = judge(lm, criterion, prediction)
    (feedback,) = grad(evaluation.score, prediction, create_graph=True)
    feedback.notes[0].backward(Variable("too strict"))
    assert [note.data for note in criterion.grad] == ["too strict"]


def test_a_batch_is_judged_at_once_and_identical_texts_once():
    seen = Counting(lambda r: json.dumps({"score": 0.5, "explanation": r.messages[1].text[-9:]}))
    evaluation = judge(Scripted(seen), "c", variable(["a", "b", "a"]), ["x", "y", "x"])
    assert len(seen.requests) == 2
    assert evaluation.score.data == 0.5


def test_every_prompt_of_this_room_is_a_readable_file():
    for name in ("feedback", "improve", "judge", "retry"):
        assert all(template.strip() for _, template in prompt(name))
    with pytest.raises(ArgumentError, match="no prompt"):
        prompt("../../etc/passwd")


def test_texts_of_a_batch_may_be_put_together():
    answers = variable(["a", "b"], "answers")
    out = join("; ", [answers[n] for n in range(2)])
    exact_match(out, "a; c").backward()
    assert [bool(slot) for slot in answers.grad.data] == [True, True]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("by_model", [False, True])
def test_feedback_holds_its_graph_only_where_it_may_be_criticised(by_model, batch):
    prediction, target = (variable(["a", "b"]), ["x", "x"]) if batch else (variable("a"), "x")
    lm = Scripted(lambda request: '{"score": 0, "explanation": "no"}')
    evaluation = judge(lm, "c", prediction) if by_model else exact_match(prediction, target)
    evaluation.backward(retain_graph=True)
    slots = prediction.grad if batch else [prediction.grad]
    assert [note.grad_fn for slot in slots for note in slot] == [None] * len(slots)
    (feedback,) = grad(evaluation.score, prediction, create_graph=True)
    slots = feedback if batch else [feedback]
    assert all(note.grad_fn is not None for slot in slots for note in slot)
