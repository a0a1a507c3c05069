"""A whole loop on the embedded model: forward, backward, update, journaled and resumed.

Transport, tokenizer, schema decoding, cancellation and bookkeeping are real. What so small a model
says shows nothing, so nothing here looks at it: grammars hold its decoder to answers that can be
read, and where it is held to others the loop refuses them by name.
"""

import asyncio

import pytest
from tests.text.lm.test_llama_cpp import needs_model

from pullback.errors import ReplyError
from pullback.tape import Variable, abackward
from pullback.text import ChatModule, ModelCritic, blame, exact_match, use_prompts
from pullback.text.lm import Account, LlamaCpp, Run
from pullback.text.optim import TGD, max_length

pytestmark = needs_model
LABEL = {
    "type": "object",
    "properties": {"label": {"enum": ["spam", "ham"]}},
    "required": ["label"],
    "additionalProperties": False,
}
SHORT = {"max_tokens": 40}  # it says thirteen tokens a second on a busy core
FEEDBACK = r'root ::= "<FEEDBACK id=\"0\">" [A-Za-z ]{4,30} "</FEEDBACK>"'
IMPROVED = r'root ::= "<IMPROVED>" [A-Za-z ]{4,30} "</IMPROVED>"'
NEITHER = r"root ::= [A-Za-z ]{4,10}"


@pytest.fixture(scope="module")
def lm():
    return LlamaCpp(context=1024, threads=1)


@pytest.fixture(autouse=True)
def short_prompts(tmp_path):
    """The same fields in few words: a model of 135 million parameters reads slowly."""
    (tmp_path / "feedback.txt").write_text("[user]\n{call} {answer} {said} {parts} Mend it.\n")
    (tmp_path / "improve.txt").write_text(
        "[user]\n{role}: {value} {feedback} {constraints} {earlier} Mend it.\n"
    )
    with use_prompts(tmp_path):
        yield


def loop(lm, criticise=FEEDBACK, improve=IMPROVED):
    """One sample forward and back, and one step; what was said, and the text at the end."""
    critic = ModelCritic(lm, retries=1, grammar=criticise, **SHORT)
    label = ChatModule(
        lm, "Is it spam or ham?", "{mail}", role="label", schema=LABEL, critic=critic, **SHORT
    )
    optimizer = TGD(
        label.parameters(), lm, constraints=[max_length(400)], retries=1, grammar=improve, **SHORT
    )
    answer = label(mail="You have won a prize!")
    right = answer.data["label"]
    assert right in {"spam", "ham"}  # the schema steers its decoder
    missed = exact_match(answer["label"], "spam" if right == "ham" else "ham")
    assert missed.score.data == 0.0
    missed.backward()
    said = [str(each) for each in blame(label.parameters())]
    optimizer.step()
    return [right, *said, label.system.data], label


def test_forward_backward_and_update_and_the_same_again_from_the_journal(lm, tmp_path):
    path, found = tmp_path / "run.sqlite", []
    for _ in range(2):
        with Run(path, account=Account(calls=3)) as run:
            told, label = loop(lm)
        found.append(told)
    assert found[0] == found[1]
    assert (run.paid, run.recorded) == (0, 3)
    [note] = label.system.grad
    assert note.origin.function == "ChatBackward"
    assert note.data
    assert note.data in found[0][1]
    assert label.system.data not in {"", "Is it spam or ham?"}
    for call in run.before:
        assert call.answer.usage.input_tokens > 10
        assert call.answer.usage.output_tokens > 3
        assert call.answer.usage.cost == 0.0


def test_answers_that_cannot_be_read_are_refused_and_change_nothing(lm):
    with pytest.raises(ReplyError, match="FEEDBACK"):
        loop(lm, criticise=NEITHER)
    label = ChatModule(lm, "Spam?", "{mail}", role="label")
    label.system.grad = [Variable("Say which words tell spam.", "feedback")]
    with pytest.raises(ReplyError, match="IMPROVED"):
        TGD(label.parameters(), lm, retries=0, grammar=NEITHER, **SHORT).step()
    assert label.system.data == "Spam?"


def test_a_backward_that_is_cancelled_leaves_the_graph_to_be_run_again(lm):
    critic = ModelCritic(lm, retries=0, grammar=FEEDBACK, **SHORT)
    slow = ChatModule(lm, "Count.", "{text}", role="count", critic=critic, max_tokens=4)
    answer = slow(text="one two")

    async def main():
        task = asyncio.create_task(abackward([answer], [Variable("too short")]))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not slow.system.grad
    answer.backward(Variable("too short"))  # the same graph
    assert len(slow.system.grad) == 1
