"""A LangChain runnable is an operation; what it raises is feedback."""

import pytest

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable
from pullback.text import Rule, RuleCritic, StepError, exact_match, invoke

runnables = pytest.importorskip("langchain_core.runnables")


def variable(text, role):
    return Variable(text, role=role, requires_grad=True)


def chain():
    prompts = pytest.importorskip("langchain_core.prompts")
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    template = prompts.ChatPromptTemplate.from_template("{tone}: {word}")
    return template | models.FakeListChatModel(responses=["Ciao"])


def test_a_chain_of_langchains_is_told_what_was_wrong():
    tone, word = variable("formal", "tone"), variable("Hello", "word")
    out = invoke(chain(), {"tone": tone, "word": word, "other": 3}, purpose="translate")
    assert out.data == "Ciao"
    exact_match(out, "Buongiorno").backward()
    assert "Expected: Buongiorno" in word.grad[0].data
    assert len(tone.grad) == 1


def test_its_exception_is_feedback():
    word = variable("x", "number")
    with pytest.raises(StepError, match="read") as caught:
        invoke(runnables.RunnableLambda(int), word, purpose="read")
    caught.value.backward()
    assert "invalid literal" in word.grad[0].data


def test_rules_and_other_objects():
    class Lower:
        def invoke(self, text):
            return [text.lower()]

    purpose = variable("upper", "step")
    word = variable("Hi", "word")
    critic = RuleCritic([Rule(lambda given, out: "not upper" if not out[0].isupper() else None)])
    out = invoke(Lower(), word, purpose=purpose, critic=critic)
    out.backward([Variable("bad")])
    assert ([note.data for note in purpose.grad], len(word.grad)) == (["not upper"], 0)
    with pytest.raises(ArgumentTypeError, match="invoke"):
        invoke(3, word)
