"""A LangChain runnable is an operation; what it raises is feedback."""

from typing import TypedDict

import pytest

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable, vmap
from pullback.text import Rule, RuleCritic, StepError, exact_match, invoke, map_python

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


def test_a_graph_of_langgraphs_is_an_operation_and_is_told_what_was_wrong():
    graphs = pytest.importorskip("langgraph.graph")
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    model = models.FakeListChatModel(responses=["Ciao"])

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = graphs.StateGraph(graphs.MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(graphs.START, "ask")
    builder.add_edge("ask", graphs.END)
    compiled = builder.compile()
    word = variable("Hello", "word")
    given = map_python(lambda text: [{"role": "user", "content": text}], word, purpose="message")
    out = invoke(compiled, {"messages": given}, purpose="translate")
    assert out.data["messages"] == ["Hello", "Ciao"]
    exact_match(out["messages"][1], "Buongiorno").backward()
    assert "Expected: Buongiorno" in word.grad[0].data


def test_a_state_graph_of_plain_fields_and_its_failure():
    graphs = pytest.importorskip("langgraph.graph")

    class State(TypedDict):
        text: str
        size: int

    builder = graphs.StateGraph(State)
    builder.add_node("read", lambda state: {"size": int(state["text"])})
    builder.add_edge(graphs.START, "read")
    builder.add_edge("read", graphs.END)
    compiled = builder.compile()
    word = variable("12", "number")
    out = invoke(compiled, {"text": word}, purpose="read")
    assert out.data == {"text": "12", "size": 12}
    bad = variable("twelve", "number")
    with pytest.raises(StepError) as caught:
        invoke(compiled, {"text": bad}, purpose="read")
    caught.value.backward()
    assert "invalid literal" in bad.grad[0].data
    batch = Variable(["1", "2"], "numbers", requires_grad=True)
    sizes = vmap(lambda text: invoke(compiled, {"text": text}, purpose="read")["size"])(batch)
    assert sizes.data == [1, 2]
