"""A text is not a template: braces in it are characters; a template keeps its fields."""

import pytest
from tests.text.helpers import Counting

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.tape import Variable
from pullback.text import ChatModule, Parameter, Template, TemplateParameter, chat
from pullback.text import format as fill
from pullback.text.lm import Scripted
from pullback.text.optim import TGD

JSON = 'Answer as JSON: {"label": "spam"} or {}; never {mail} alone, nor }{.'


def test_a_prompt_with_json_in_it_is_sent_as_it_is():
    seen = Counting("ok")
    ask = ChatModule(Scripted(seen), JSON, "Mail: {mail}")
    ask(mail="a {b}").data
    assert [message.text for message in seen.requests[0].messages] == [JSON, "Mail: a {b}"]
    chat(Scripted(seen), [{"role": "system", "content": JSON},
                          {"role": "user", "content": Template("{x}")}], {"x": "y"})  # fmt: skip
    assert [message.text for message in seen.requests[1].messages] == [JSON, "y"]


def test_an_optimizer_may_propose_json_for_a_text_and_nothing_that_breaks_a_template():
    seen = Counting("ok")
    ask = ChatModule(Scripted(seen), "Answer.", TemplateParameter("Mail: {mail}"))
    proposals = [
        JSON,
        "Read {mail",
        'Mail {mail}: {"label": 1}',
        "No field.",
        "Please read {mail}.",
    ]
    writer = Scripted(lambda request: f"<IMPROVED>{proposals[count[0]]}</IMPROVED>")
    count = [0]
    for number in range(len(proposals)):
        count[0] = number
        chosen = ask.system if number == 0 else ask.user
        chosen.grad = [Variable("say more")]
        try:
            TGD([chosen], writer, retries=0).step()
        except ReplyError as error:
            assert number in (1, 2, 3)
            assert "breaks a constraint" in error.what  # noqa: PT017
        ask(mail="m")  # whatever was taken can be filled in
    assert (ask.system.data, ask.user.data) == (JSON, "Please read {mail}.")
    assert isinstance(ask.user, Template)
    assert list(ask.state_dict()) == ["system", "user"]


def test_only_a_template_has_fields():
    with pytest.raises(ArgumentTypeError, match="Only a template"):
        fill(Variable("Say {word}."), word="x")
    with pytest.raises(ArgumentError, match="Template"):
        chat(Scripted(["x"]), Parameter("Say {word}."), {"word": "x"})
    for text in ("{", "a {b.c}", "}"):
        with pytest.raises(ArgumentError):
            Template(text)
    assert fill(TemplateParameter("Say {word}."), word="{x}").data == "Say {x}."


def test_two_braces_of_a_template_stand_for_one_also_where_it_has_no_field():
    lm = Scripted(lambda request: request.messages[-1].text)
    assert chat(lm, Template('{{"a": 1}}')).data == '{"a": 1}'
    assert chat(lm, '{{"a": 1}}').data == '{{"a": 1}}'
