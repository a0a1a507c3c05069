"""`chat`: what is sent, what comes back, and what is refused before anything is sent."""

import threading

import pytest
from tests.text.helpers import Counting, answering, criticise

from pullback import tape
from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError, UnsupportedError
from pullback.tape import Variable, grad, jvp, vmap
from pullback.text import (
    ModelCritic,
    Parameter,
    Rule,
    RuleCritic,
    Template,
    TemplateParameter,
    chat,
    concat,
    select,
    use_critic,
    use_prompts,
)
from pullback.text.lm import Completion, Image, Message, Scripted, Tool, ToolCall


def echo(request):
    return " / ".join(message.text for message in request.messages)


def variable(text, role="", **options):
    return Variable(text, role=role or text, requires_grad=True, **options)


def test_a_message_is_its_texts_with_their_fields_filled_in():
    seen = Counting("ok")
    system, word = TemplateParameter("Be {how}.", role="system"), variable("Hi", "word")
    messages = [
        {"role": "system", "content": system},
        Message("assistant", "Yes?"),
        {"role": "user", "content": [Template("Say {word}"), Variable("now {word}")]},
    ]
    answer = chat(Scripted(seen), messages, {"how": "good", "word": word}, temperature=0.5)
    assert (answer.data, answer.role) == ("ok", "answer")
    [request] = seen.requests
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "Be good."), ("assistant", "Yes?"), ("user", "Say Hi\nnow {word}"),
    ]  # fmt: skip
    assert request.options == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("messages", "inputs"),
    [
        (Template("Say {word} to {name}"), {"word": "x"}),
        (Template("Say {word}"), None),
        ("Say {word}", {"word": "x"}),
        ("Say it", {"word": "x"}),
        ([], None),
        ([{"role": "user"}], None),
        ([{"role": "wizard", "content": "x"}], None),
        ([{"role": "user", "content": [3]}], None),
        (Template("x {word}"), {"word": Variable(["a", "b"])}),
        (Template("x {word}"), {"word": Variable(1.0, requires_grad=True)}),
    ],
)
def test_bad_messages_are_refused_before_anything_is_sent(messages, inputs):
    seen = Counting("ok")
    with pytest.raises(ArgumentError):
        chat(Scripted(seen), messages, inputs)
    assert seen.requests == []


@pytest.mark.parametrize("inputs", ["word", ["word"], 3])
def test_inputs_are_a_dict(inputs):
    with pytest.raises(ArgumentTypeError, match="dict"):
        chat(Scripted(["x"]), Template("{word}"), inputs)


def test_what_is_no_model_is_refused():
    with pytest.raises(ArgumentTypeError, match="language model"):
        chat(lambda messages: "x", "Hi")


def test_every_text_that_can_matter_is_told_with_one_call():
    lm = answering(echo)
    asked = Counting(criticise)
    system, word = Parameter("Be good.", role="system"), variable("Hi", "word")
    constant = Variable("fixed")
    messages = [
        {"role": "system", "content": [system, constant]},
        {"role": "user", "content": Template("{w}")},
    ]
    answer = chat(lm, messages[1:], {"w": word}, critic=ModelCritic(Scripted(asked)))
    answer.backward(Variable("too short", role="critique"))
    assert [note.data for note in word.grad] == ["part 0: - too short"]
    assert word.grad[0].origin.role == "answer"
    answer = chat(lm, [*messages[:1], {"role": "user", "content": word}],
                  critic=ModelCritic(Scripted(asked)))  # fmt: skip
    word.grad = None
    answer.backward([Variable("too short"), Variable("no greeting")])
    assert len(asked.requests) == 2
    assert [note.data for note in system.grad] == ["part 0: - too short\n- no greeting"]
    assert [note.data for note in word.grad] == ["part 1: - too short\n- no greeting"]


@pytest.mark.parametrize(
    "answer",
    [
        "nothing",
        "",
        '<FEEDBACK id="0">a</FEEDBACK>',
        '<FEEDBACK id="0">a</FEEDBACK><FEEDBACK id="0">b</FEEDBACK>',
        '<FEEDBACK id="0">a</FEEDBACK><FEEDBACK id="7">b</FEEDBACK>',
        '<FEEDBACK id="0">a</FEEDBACK><FEEDBACK id="1">b',
    ],
)
def test_feedback_that_cannot_be_read_is_asked_for_again_then_refused(answer):
    asked = Counting(answer)
    a, b = variable("a"), variable("b")
    out = chat(Scripted(["x"]), [{"role": "user", "content": [a, b]}],
               critic=ModelCritic(Scripted(asked), retries=2))  # fmt: skip
    with pytest.raises(ReplyError, match=r"part|nothing"):
        out.backward(Variable("bad"))
    assert len(asked.requests) == 3
    assert "could not be used" in asked.requests[1].messages[-1].text
    assert len(a.grad) == len(b.grad) == 0
    good = '<FEEDBACK id="1"></FEEDBACK> <FEEDBACK id="0">clearer</FEEDBACK>'
    asked.answer = good
    out.backward(Variable("bad"))  # the graph is as it was
    assert [note.data for note in a.grad] == ["clearer"]
    assert len(b.grad) == 0


def test_the_critique_can_be_criticised():
    lm = answering(echo)
    system, said = Parameter("Be good.", role="system"), variable("vague", "critique")
    out = chat(lm, [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}])
    (feedback,) = grad(out, system, said, create_graph=True)
    system.grad = said.grad = None
    feedback.notes[0].backward(Variable("the critique is unfair"))
    assert ["unfair" in note.data for note in said.grad] == [True]
    assert ["unfair" in note.data for note in system.grad] == [True]


def test_forward_mode_of_texts_is_refused_by_name():
    asked = Counting("x")
    for func in (lambda w: chat(Scripted(asked), w), lambda w: w + "!", lambda w: concat(w, "!")):
        with pytest.raises(UnsupportedError, match="no forward mode of texts"):
            jvp(func, (Variable("Hi"),), (Variable("change it"),))


def test_a_batch_runs_at_once_and_identical_items_once():
    running, most, lock = [0], [0], threading.Lock()

    async def slow(request):
        import asyncio

        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        with lock:
            running[0] -= 1
        return echo(request)

    seen = Counting(slow)
    words = [variable(f"w{n % 16}", f"word {n}") for n in range(32)]
    system = Parameter("S", role="system")
    critic = RuleCritic([])
    lm = Scripted(seen)

    def ask(word):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": word}]
        return chat(lm, messages, critic=critic)

    with tape.concurrency(8):
        out = vmap(ask)(words)
    assert len(seen.requests) == 16
    assert most[0] == 8
    assert out.data[3] == "S / w3" == out.data[19]
    out.backward(Variable([f"said {n}" for n in range(32)]))
    assert [note.data for note in words[19].grad] == ["said 19"]
    assert len(system.grad) == 32


def test_a_structured_answer_has_a_gradient_for_each_field():
    schema = {
        "type": "object",
        "properties": {"label": {"type": "string"}, "why": {"type": "array"}},
        "required": ["label", "why"],
    }
    lm = answering(lambda request: '{"label": "spam", "why": ["links", "caps"]}')
    mail = variable("BUY http://x", "mail")
    out = chat(lm, mail, schema=schema)
    assert out.data == {"label": "spam", "why": ["links", "caps"]}
    tape.backward(
        [select(out, "label"), select(out, "why", 1)], [Variable("wrong"), Variable("unclear")]
    )
    [note] = mail.grad
    assert "field label: wrong" in note.data
    assert "field why.1: unclear" in note.data
    with pytest.raises(ReplyError, match="schema"):
        chat(Scripted(['{"label": 3}']), mail, schema=schema)


def test_tools_are_asked_for_and_never_run():
    tool = Tool("add", "adds", {"type": "object"})
    lm = Scripted([Completion("", tool_calls=(ToolCall("1", "add", '{"a": 1}'),))])
    out = chat(lm, "1 + 1?", tools=[tool])
    assert out.data["tool_calls"] == [{"id": "1", "name": "add", "arguments": '{"a": 1}'}]
    answered = [
        {"role": "user", "content": "1 + 1?"},
        Message("assistant", "", tool_calls=[ToolCall("1", "add", '{"a": 1}')]),
        Message("tool", "2", tool_call_id="1"),
    ]
    seen = Counting("2")
    chat(Scripted(seen), answered)
    assert [m.role for m in seen.requests[0].messages] == ["user", "assistant", "tool"]


def test_an_image_is_sent_and_has_no_gradient():
    seen = Counting(echo)
    question = variable("What is this?", "question")
    image = Image.from_bytes(b"x", "image/png")
    with use_critic(RuleCritic([])):
        out = chat(Scripted(seen), [{"role": "user", "content": [question, image]}])
    assert seen.requests[0].messages[0].content[1] == image
    out.backward(Variable("wrong"))
    assert [note.data for note in question.grad] == ["wrong"]


def test_a_rule_that_is_broken_blames_the_instructions():
    rule = Rule(lambda given, out: None if out.isupper() else "it is not upper case", "answer")
    system, word = Parameter("Shout.", role="system"), variable("Hi", "word")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": word}]
    with use_critic(RuleCritic([rule])):
        chat(Scripted(["hi"]), messages).backward(Variable("bad"))
        assert ([n.data for n in system.grad], len(word.grad)) == (["it is not upper case"], 0)
        system.grad = None
        chat(Scripted(["HI"]), messages).backward(Variable("bad"))
        assert (len(system.grad), [n.data for n in word.grad]) == (0, ["bad"])


def test_every_prompt_can_be_replaced(tmp_path):
    (tmp_path / "feedback.txt").write_text(
        "[system]\nSei streng.\n[user]\n{call}|{answer}|<SAID>{said}</SAID>|<PARTS>{parts}</PARTS>"
    )
    asked = Counting(criticise)
    word = variable("Hi", "word")
    out = chat(Scripted(["x"]), word, critic=ModelCritic(Scripted(asked)))
    with use_prompts(tmp_path):
        out.backward(Variable("bad"))
    assert asked.requests[0].messages[0].text == "Sei streng."
    assert asked.requests[0].messages[1].text.startswith("[user ")
    (tmp_path / "feedback.txt").write_text("[system]\nSei streng.\n[user]\n{call}")
    with pytest.raises(ArgumentError, match="other fields"), use_prompts(tmp_path):
        pass
    (tmp_path / "feedback.txt").unlink()
    (tmp_path / "fedback.txt").write_text("[user]\nx")
    with pytest.raises(ArgumentError, match="no prompt of this name"), use_prompts(tmp_path):
        pass
    (tmp_path / "fedback.txt").unlink()
    for written, why in (b"x", "no role"), (b"", "empty"), (b"[user]\ncaf\xe9", "UTF-8"):
        (tmp_path / "judge.txt").write_bytes(written)
        with pytest.raises(ArgumentError, match=why), use_prompts(tmp_path):
            pass


def test_feedback_that_is_sent_is_bounded():
    asked = Counting(criticise)
    word = variable("Hi", "word")
    out = chat(Scripted(["x"]), word, critic=ModelCritic(Scripted(asked), limit=500))
    out.backward([Variable(f"note {n}: " + "x" * 90) for n in range(100)])
    sent = asked.requests[0].messages[1].text
    assert len(sent) < 1200
    assert "more left out" in sent
