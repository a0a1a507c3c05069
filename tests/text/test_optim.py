"""Optimisers, against models that answer anything: a text is changed rightly or not at all."""

import json
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.text.helpers import Counting

from pullback import tape
from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.tape import Variable
from pullback.text import Parameter, TemplateParameter
from pullback.text.lm import Scripted
from pullback.text.optim import TGD, Constraint, Validated, keeps_fields, max_length, never


def told(text, *notes, role="prompt"):
    parameter = Parameter(text, role=role)
    parameter.grad = [Variable(note) for note in notes]
    return parameter


def improved(text):
    return f"<IMPROVED>{text}</IMPROVED>"


ANSWERS = st.sampled_from([
    improved("fine {word}"), improved("fine"), improved("{word} {other}"), improved(""), "no tags",
    improved("{word"), improved("{word} " + "x" * 99), improved("{word} 3"), "", "<IMPROVED>",
    improved("a {word}") + improved("b {word}"), improved("also fine {word}"),
])  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ANSWERS, min_size=1, max_size=12), st.integers(0, 3))
def test_whatever_a_model_answers_no_text_ever_breaks_a_constraint(answers, retries):
    parameters = [TemplateParameter("Say {word}."), TemplateParameter("Ask {word}?")]
    for each in parameters:
        each.grad = [Variable("polite")]
    constraints = [max_length(40), never("[0-9]", "No digits.")]
    lm = Scripted([*answers, *["no tags"] * 8])
    before = [each.data for each in parameters]
    optimizer = TGD(parameters, lm, constraints=constraints, retries=retries)
    try:
        optimizer.step()
    except ReplyError:
        assert [each.data for each in parameters] == before
        return
    for each in parameters:
        assert each.data in ("fine {word}", "also fine {word}")


def test_a_broken_constraint_is_said_then_refused():
    prompt = told("Say it.", "polite")
    seen = Counting(improved("Say it 3 times."))
    optimizer = TGD([prompt], Scripted(seen), constraints=[never("[0-9]", "No digits.")], retries=2)
    with pytest.raises(ReplyError, match="breaks a constraint"):
        optimizer.step()
    assert prompt.data == "Say it."
    assert len(seen.requests) == 3
    assert "it has '3' in it" in seen.requests[1].messages[-1].text
    assert "No digits." in seen.requests[0].messages[1].text
    seen.answer = improved("Please say it.")
    optimizer.step()
    assert prompt.data == "Please say it."


def test_what_is_sent_says_all_that_is_known_once_and_bounded():
    prompt = told("Say it.", *["same"] * 50, *(f"note {n} " + "x" * 90 for n in range(50)))
    seen = Counting(improved("Better."))
    TGD([prompt], Scripted(seen), limit=1000).step()
    sent = seen.requests[0].messages[1].text
    assert sent.count("same") == 1
    assert "more left out" in sent
    assert len(sent) < 1600


def test_texts_without_feedback_cost_nothing():
    seen = Counting(improved("Better."))
    quiet, loud = told("a"), told("b", "note")
    TGD([quiet, loud], Scripted(seen)).step()
    assert (quiet.data, loud.data, len(seen.requests)) == ("a", "Better.", 1)


def test_all_texts_are_asked_for_at_once_within_the_limit():
    running, most, lock = [0], [0], threading.Lock()

    async def slow(request):
        import asyncio

        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        with lock:
            running[0] -= 1
        return improved("x")

    with tape.concurrency(4):
        TGD([told(f"{n}", "note") for n in range(12)], Scripted(slow)).step()
    assert most[0] == 4


def test_momentum_shows_past_versions_the_better_the_likelier():
    prompt = told("v0", "note 0")
    seen = Counting(None)
    counter = iter(range(1, 1000))
    seen.answer = lambda request: improved(f"v{next(counter)}")
    optimizer = TGD([prompt], Scripted(seen), momentum=2, temperature=0.05)
    for number in range(40):
        optimizer.record(1.0 if number == 5 else 0.0)
        optimizer.step()
        prompt.grad = [Variable(f"note {number + 1}")]
    shown = [request.messages[1].text for request in seen.requests]
    assert "none" in shown[0]
    assert "[score 1]\nv5\n[feedback]\n- note 5" in shown[10]
    assert sum("[score 1]\nv5" in text for text in shown[6:]) == 34  # e^20 against 1
    drawn = {text for text in shown[6:] for n in range(40) if f"[score 0]\nv{n}\n" in text}
    assert len(drawn) > 20


def test_a_state_goes_on_where_it_was():
    def run(stop):
        lm = Scripted(lambda r: improved(f"v{len(r.messages[1].text)}"))
        prompt = told("v0", "note")
        optimizer = TGD([prompt], lm, momentum=2)
        for number in range(4):
            if number == stop:
                state = optimizer.state_dict()
                prompt = told("other", "note")
                optimizer = TGD([prompt], lm, momentum=2)
                optimizer.load_state_dict(state)
            optimizer.record(number / 10)
            optimizer.step()
            prompt.grad = [Variable("note")]
        return prompt.data, optimizer.state_dict()

    assert run(2) == run(None)
    with pytest.raises(ArgumentError, match="state"):
        TGD([told("x")], Scripted(["x"])).load_state_dict({})
    other = TGD([told("x"), told("y")], Scripted(["x"]))
    with pytest.raises(ArgumentError, match="other parameters"):
        other.load_state_dict(run(None)[1])


def test_groups_and_bad_arguments():
    lm, prompt = Scripted([improved("x")]), told("a", "n")
    groups = [{"params": [prompt], "momentum": 3}, {"params": told("b")}]
    assert [group["momentum"] for group in TGD(groups, lm).param_groups] == [3, 0]
    for params in ([], [prompt, prompt], [{"params": [prompt], "speed": 1}]):
        with pytest.raises(ArgumentError):
            TGD(params, lm)
    for params in ([Variable(1.0)], [prompt + "x"], ["x"]):
        with pytest.raises(ArgumentTypeError):
            TGD(params, lm)
    for options in ({"momentum": -1}, {"temperature": 0}, {"retries": -1}, {"constraints": [" "]}):
        with pytest.raises(ArgumentError):
            TGD([prompt], lm, **options)
    with pytest.raises(ArgumentTypeError):
        TGD([prompt], "gpt-4o")


def test_constraints():
    assert keeps_fields("no field").check("one {field}")
    assert keeps_fields("no field").check("none") is None
    assert keeps_fields('{"json": 1}') is None
    assert keeps_fields("{a} {b}").check("{b} {a}") is None
    assert "instead" in keeps_fields("{a}").check("{a} {c}")
    assert "no template" in keeps_fields("{a}").check("{a} {")
    assert Constraint("only told").check is None


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.5))
def test_validated_texts_never_score_below_their_start(seed, gain):
    dice = random.Random(seed)
    scores = {}
    prompt = told("v0", "note")
    asked = []

    def measure():
        asked.append(prompt.data)
        if dice.random() < 0.1:
            raise OSError("the measure failed")
        return scores.setdefault(prompt.data, dice.random())

    def answer(request):
        return improved(f"v{dice.randrange(6)}") if dice.random() < 0.8 else "unreadable"

    optimizer = Validated(TGD([prompt], Scripted(answer), retries=0), measure, gain, risk=1.0)
    best = None
    for _ in range(12):
        before = prompt.data
        try:
            outcome = optimizer.step()
        except OSError:
            assert prompt.data == before
            continue
        assert best is None or scores[prompt.data] >= best
        if outcome.accepted:
            assert scores[prompt.data] > scores[before] + gain
        else:
            assert prompt.data == before
        best = scores[prompt.data]
        assert optimizer.best == best
    measured = [text for text in asked if text in scores]
    succeeded = {text: measured.count(text) for text in measured}
    failed = len(asked) - len(scores)
    assert sum(succeeded.values()) <= len(scores) + failed  # no texts measured twice


def test_a_state_that_lacks_the_score_of_an_item_is_refused():
    prompt = told("a", "n")
    optimizer = Validated(TGD([prompt], Scripted([improved("b")])), lambda: [0.0] * 9)
    optimizer.step()
    state = json.loads(json.dumps(optimizer.state_dict()))
    del next(iter(state["known"].values()))["3"]
    with pytest.raises(ArgumentError, match="lacks the score of an item"):
        optimizer.load_state_dict(state)


def test_validated_refuses_what_is_no_score():
    prompt = told("a", "n")
    optimizer = Validated(TGD([prompt], Scripted([improved("b")])), lambda: [float("nan")] * 9)
    with pytest.raises(ArgumentTypeError, match="finite"):
        optimizer.step()
    assert prompt.data == "a"
    with pytest.raises(ArgumentError):
        Validated(TGD([prompt], Scripted(["x"])), lambda: 1.0, -1)
    with pytest.raises(ArgumentTypeError):
        Validated(prompt, lambda: 1.0)
