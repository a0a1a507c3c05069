"""A whole loop on the embedded model: forward, backward, update, journaled and resumed.

Transport, tokenizer, schema decoding, cancellation and bookkeeping are real. What so small a model
says shows nothing, so nothing here looks at it: an answer that cannot be used is refused by name.
"""

import asyncio

import pytest
from tests.text.lm.test_llama_cpp import needs_model

from pullback.errors import ReplyError
from pullback.tape import Variable, abackward
from pullback.text import ChatModule, blame, exact_match, use_prompts
from pullback.text.lm import Account, LlamaCpp, Run
from pullback.text.optim import TGD, max_length

pytestmark = needs_model
LABEL = {
    "type": "object",
    "properties": {"label": {"enum": ["spam", "ham"]}},
    "required": ["label"],
    "additionalProperties": False,
}
STEPS = {"max_tokens": 24, "temperature": 0.0, "seed": 1}


@pytest.fixture(scope="module")
def lm():
    return LlamaCpp(context=1024, threads=1)


@pytest.fixture
def short_prompts(tmp_path):
    """The same fields in few words: a model of 135 million parameters reads slowly."""
    (tmp_path / "feedback.txt").write_text(
        '[system]\nRepeat: <FEEDBACK id="0">be brief</FEEDBACK>\n'
        "[user]\n{call} {answer} {said} {parts}\n"
    )
    (tmp_path / "improve.txt").write_text(
        "[user]\nRepeat: <IMPROVED>Say spam or ham.</IMPROVED>\n"
        "({role} {value} {feedback} {constraints} {earlier})\n"
    )
    with use_prompts(tmp_path):
        yield


def loop(lm):
    """One sample forward and back, and one step; what came of it, whatever the model says."""
    label = ChatModule(lm, "Is it spam or ham?", "{mail}", role="label", schema=LABEL, **STEPS)
    answer = label(mail="You have won a prize!")
    assert answer.data["label"] in {"spam", "ham"}  # the schema steers its decoder
    right = answer.data["label"]
    missed = exact_match(answer["label"], "spam" if right == "ham" else "ham")
    assert missed.score.data == 0.0
    told = [right]
    try:
        missed.backward()
        told += [str(each) for each in blame(label.parameters())]
    except ReplyError as error:
        told.append(error.what)
        label.system.grad = [Variable("Say which words tell spam.", "feedback")]
    before = label.system.data
    optimizer = TGD(label.parameters(), lm, constraints=[max_length(400)], retries=1, **STEPS)
    try:
        optimizer.step()
        assert 0 < len(label.system.data) <= 400
    except ReplyError as error:
        told.append(error.what)
        assert label.system.data == before
    return [*told, label.system.data]


def test_forward_backward_and_update_and_the_same_again_from_the_journal(
    lm, tmp_path, short_prompts
):
    path, found = tmp_path / "run.sqlite", []
    for _ in range(2):
        with Run(path, account=Account(calls=12)) as run:
            found.append(loop(lm))
    assert found[0] == found[1]
    assert run.paid == 0
    assert run.recorded >= 3
    tokens = [call.answer.usage for call in run.before]
    assert all(usage.input_tokens > 0 and usage.cost == 0.0 for usage in tokens)


def test_a_backward_that_is_cancelled_leaves_the_graph_to_be_run_again(lm, short_prompts):
    slow = ChatModule(lm, "Count.", "{text}", role="count", max_tokens=4, temperature=0.0)
    answer = slow(text="one two")

    async def main():
        task = asyncio.create_task(abackward([answer], [Variable("too short")]))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert slow.system.grad == []
    try:  # whatever the critic says, this is the same graph
        answer.backward(Variable("too short"))
    except ReplyError:
        assert slow.system.grad == []
