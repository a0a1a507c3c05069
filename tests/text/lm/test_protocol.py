"""The protocol: what goes in, what comes out, called, awaited and bit by bit."""

import asyncio
import contextlib
import json
import re
import sys

import pydantic
import pytest

from pullback.errors import ArgumentError, ArgumentTypeError, ModelError, ReplyError
from pullback.tape import Variable
from pullback.text import ModelCritic, Parameter, chat, judge
from pullback.text.lm import (
    LM,
    Budget,
    Cached,
    Chunk,
    Completion,
    Finish,
    Image,
    Limit,
    Message,
    Misbehaving,
    Record,
    Request,
    Retry,
    Run,
    Scripted,
    Text,
    Tool,
    ToolCall,
    Traced,
    Usage,
    Wrapper,
)
from pullback.text.optim import TGD

CALL = ToolCall("c1", "weather", '{"city": "Rome"}')
MESSAGES = [
    Message("system", "Be brief."),
    Message("user", ["Look:", Image("https://example.org/a.png", detail="low")]),
    Message("assistant", "", tool_calls=[CALL]),
    Message("tool", "sunny", tool_call_id="c1"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back_from_their_dictionaries(message):
    assert Message.from_dict(json.loads(json.dumps(message.to_dict()))) == message


@pytest.mark.parametrize(
    "given",
    ["Hi", Message("user", "Hi"), {"role": "user", "content": "Hi"}, ["Hi"],
     [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]],
)  # fmt: skip
def test_every_form_of_messages_is_one_request(given):
    assert Request.of(given).digest("m") == Request.of("Hi").digest("m")


def test_whatever_decides_an_answer_changes_the_digest():
    schema = {"type": "object"}
    tool = Tool("t", "d", {"type": "object"})
    digests = {
        Request.of("Hi").digest("m"),
        Request.of("Hi").digest("n"),
        Request.of("Hi ").digest("m"),
        Request.of("Hi", temperature=0.0).digest("m"),
        Request.of("Hi", temperature=1).digest("m"),
        Request.of("Hi", schema=schema).digest("m"),
        Request.of("Hi", tools=[tool]).digest("m"),
        Request.of([Message("system", "Hi")]).digest("m"),
    }
    assert len(digests) == 8
    assert Request.of("Hi", b=1, a=2).digest("m") == Request.of("Hi", a=2, b=1).digest(
        "m"
    )  # the order of options does not matter


@pytest.mark.parametrize(
    ("messages", "options", "what"),
    [
        ([], {}, "no message"),
        (3, {}, "no message"),
        ([3], {}, "no message"),
        ({"content": "x"}, {}, "no message"),
        ({"role": "user", "content": "x", "audio": 1}, {}, "no message"),
        ({"role": "king", "content": "x"}, {}, "role"),
        ({"role": "user", "content": [{"type": "audio"}]}, {}, "texts and images"),
        ({"role": "tool", "content": "x"}, {}, "names the call"),
        ("x", {"schema": {"type": "nonsense"}}, "no JSON schema"),
        ("x", {"schema": {"items": {"$ref": "#/$defs/none"}}}, "at '/.defs/none'"),
        ("x", {"schema": {"$ref": "http://127.0.0.1:9/x.json"}}, "at 'http:"),
        ("x", {"schema": pydantic.create_model("Empty")()}, "A schema is"),
        ("x", {"schema": 3}, "schema"),
        ("x", {"tools": [{}]}, "as tools"),
        ("x", {"tools": {3}}, "as tools"),
        ("x", {"temperature": float("nan")}, "plain JSON"),
        ("x", {"stop": object()}, "plain JSON"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_asked(messages, options, what):
    asked = []
    model = Scripted(lambda request: asked.append(request) or "x")
    for ask in (model.complete, model.stream, model):
        with pytest.raises(ArgumentError, match=what):
            ask(messages, **options)
    assert asked == []


TWICE = {
    "call": lambda lm, **more: lm("x", **more),
    "complete": lambda lm, **more: lm.complete("x", **more),
    "acomplete": lambda lm, **more: asyncio.run(lm.acomplete("x", **more)),
    "stream": lambda lm, **more: lm.stream("x", **more),
    "astream": lambda lm, **more: lm.astream("x", **more),
    "Request": lambda lm, **more: Request.of("x", **more),
    "chat": lambda lm, **more: chat(lm, "x", **more),
    "judge": lambda lm, **more: judge(lm, "?", Variable("x"), **more),
    "critic": ModelCritic,
    "writer": lambda lm, **more: TGD([Parameter("x")], lm, **{"messages": None, **more}),
}


@pytest.mark.parametrize("name", TWICE)
def test_messages_that_are_given_twice_are_refused_by_name(name):
    asked = []
    lm = Scripted(lambda request: asked.append(request) or "x")
    with pytest.raises(ArgumentError, match="messages"):
        TWICE[name](lm, messages="y")
    assert asked == []


@pytest.mark.parametrize("name", ["read", "request", "self", "lm"])
def test_an_option_may_have_any_other_name(name):
    lm = Scripted(lambda request: '{"score": 1, "explanation": "so"}')
    assert lm("x", **{name: 1} if name != "self" else {}).text
    if name in {"read", "request"}:
        assert judge(lm, "?", Variable("x"), **{name: 1}).score.data == 1.0


def test_other_bad_values_are_refused():
    for make in (
        lambda: Image("file:///etc/passwd"),
        lambda: Image("https://example.org/a.png", detail="huge"),
        lambda: Image.from_bytes(b"", "text/html"),
        lambda: Text(3),
        lambda: Tool("two words", "", {}),
        lambda: Usage(-1),
        lambda: Usage(1, cost=float("nan")),
        lambda: Scripted([]),
        lambda: Scripted("x"),
        lambda: Scripted(["x"], delay=-1),
        lambda: Completion.from_dict({"text": "x"}),
        lambda: Completion.from_dict({**Completion("x").to_dict(), "model": 3}),
    ):
        with pytest.raises(ArgumentError):
            make()


def test_completions_come_back_from_their_dictionaries():
    whole = Completion("a", Usage(1, 2, 1, 0.5), Finish.TOOL_CALLS, None, (CALL,), "m", {"id": "x"})
    assert Completion.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert whole.message == Message("assistant", "a", tool_calls=[CALL])


def test_an_unknown_cost_stays_unknown():
    assert (Usage(1, cost=1.0) + Usage(1)).cost is None


def test_scripts_answer_in_turn_by_rule_and_by_function():
    listed = Scripted(["a", lambda request: request.messages[-1].text.upper(), ModelError("no")])
    assert [listed("x").text, listed("x").text] == ["a", "X"]
    with pytest.raises(ModelError, match="no"):
        listed("x")
    with pytest.raises(ModelError, match="no answer left"):
        listed("x")
    ruled = Scripted({"red": "stop", re.compile("gr(ee|a)n"): "go"})
    assert [ruled("red light").text, ruled("a gran prix").text] == ["stop", "go"]
    with pytest.raises(ModelError, match="No rule"):
        ruled("blue")

    async def slowly(request):
        await asyncio.sleep(0)
        return Completion("slow")

    assert Scripted(slowly)("x").text == "slow"
    assert Scripted(["x"])("x").metadata["note"] == "a script answered, not a language model"


def test_awaited_and_with_a_running_loop():
    model = Scripted(lambda request: request.messages[-1].text)

    async def both():
        return (await model.acomplete("a")).text, model("b").text

    assert asyncio.run(both()) == ("a", "b")


def model_of(given, name="answer", base=LM):
    """A model whose method gives this."""

    async def gives(self, *args):
        return given

    def gives_at_once(self, *args):
        return given() if callable(given) else given

    async def gives_pieces(self, *args):
        for each in given:
            yield each

    if name == "answer":
        return type("Own", (base,), {"answer": gives_at_once if callable(given) else gives})()
    method = gives_pieces if isinstance(given, list) else gives_at_once
    return type("Own", (Scripted if base is LM else base,), {name: method})(Scripted(["x"]))


@pytest.mark.parametrize("given", ["x", None, {"text": "x"}, lambda: Completion("x"), lambda: "x"])
@pytest.mark.parametrize("budget", [False, True])
def test_what_is_no_answer_of_a_model_is_refused(given, budget):
    lm = Budget(model_of(given), calls=5) if budget else model_of(given)
    with pytest.raises(ArgumentTypeError, match=r"return Completion\(text\)"):
        lm("x")
    with pytest.raises(ArgumentTypeError, match="Completion"):
        list(lm.stream("x"))


@pytest.mark.parametrize("given", [["x"], [Chunk("x")], [], "x"])
def test_what_is_no_piece_of_an_answer_is_refused(given):
    with pytest.raises(ArgumentTypeError, match="Chunk"):
        list(model_of(given, "stream_answer").stream("x"))
    for ask in (LM.complete, lambda *args: list(LM.stream(*args))):
        with pytest.raises(ArgumentTypeError, match="Chunk"):
            ask(model_of(given, "step", Wrapper), "x")


def test_streams_give_the_text_and_at_last_the_whole():
    model = Scripted(lambda request: request.messages[-1].text)
    for text in ("one two  three\n", "", " ", "one"):
        chunks = list(model.stream([Message("user", text)]))
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].completion.text
        assert [chunk.completion for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)

    async def awaited():
        return [chunk.text async for chunk in model.astream("a b")]

    assert asyncio.run(awaited()) == ["a", " b"]


def test_a_stream_can_be_left_early_and_raises_what_the_model_raises():
    stream = Scripted(["a b c d"]).stream("x")
    assert next(stream).text == "a"
    stream.close()
    with pytest.raises(ModelError, match="gone"):
        list(Scripted([ModelError("gone")]).stream("x"))


class Open(Scripted):
    """A model whose streams say when they end, after a wait."""

    async def stream_answer(self, request):
        try:
            yield Chunk("a")
            yield Chunk(" b", Completion("a b"))
        finally:
            await asyncio.sleep(0)
            ENDS.append("the model")


class Around(Wrapper):
    async def step(self, request, ask):
        try:
            async for chunk in ask(request):
                yield chunk
        finally:
            ENDS.append("the step")


ENDS: list[str] = []
WRAPPERS = {
    "none": lambda lm, path: lm,
    "Budget": lambda lm, path: Budget(lm, calls=5),
    "Cached": lambda lm, path: Cached(lm),
    "Limit": lambda lm, path: Limit(lm, concurrency=1),
    "Misbehaving": lambda lm, path: Misbehaving(lm, share=0.0),
    "Record": lambda lm, path: Record(lm, path / "journal"),
    "Retry": lambda lm, path: Retry(lm),
    "Traced": lambda lm, path: Traced(lm),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_all_of_a_stream_that_is_left_has_ended_when_it_is_closed(wrapper, inside, tmp_path):
    # None is left to the garbage collector, which would end it anywhere, whenever.
    left = []

    async def leave(lm):
        sys.set_asyncgen_hooks(finalizer=left.append)
        async with contextlib.aclosing(lm.astream("x")) as chunks:
            await anext(chunks)
            ENDS.clear()
        assert ENDS == ["the model", "the step"]

    lm = Around(WRAPPERS[wrapper](Open(["a b"]), tmp_path))
    with Run(tmp_path / "run") if inside else contextlib.nullcontext():
        asyncio.run(leave(lm))
    assert left == []


class City(pydantic.BaseModel):
    name: str
    people: int


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}


def test_answers_are_read_by_a_schema():
    good = '```json\n{"name": "Rome", "people": 3}\n```'
    assert Scripted([good])("x", schema=SCHEMA).parsed == {"name": "Rome", "people": 3}
    assert Scripted([good])("x", schema=City).parsed == City(name="Rome", people=3)
    chunks = list(Scripted([good]).stream("x", schema=City))
    assert chunks[-1].completion.parsed == City(name="Rome", people=3)


@pytest.mark.parametrize("schema", [SCHEMA, City])
@pytest.mark.parametrize(
    "answer",
    ["Rome", '{"name": "Rome"', '{"name": "Rome"}', "[" * 100_000, '{"name": 1, "people": 2}'],
)
def test_an_answer_that_breaks_its_schema_is_refused(schema, answer):
    with pytest.raises(ReplyError):
        Scripted([answer])("x", schema=schema)


def test_an_answer_that_was_cut_off_says_so():
    cut = Completion('{"name": "Ro', Usage(1, 4), Finish.LENGTH)
    with pytest.raises(ReplyError, match="max_tokens"):
        Scripted([cut])("x", schema=SCHEMA)
    assert Scripted([cut])("x").finish is Finish.LENGTH


def test_arguments_of_a_tool_call_are_read_or_refused():
    assert CALL.parsed == {"city": "Rome"}
    for arguments in ("", "[1]", "{"):
        with pytest.raises(ReplyError, match="weather"):
            _ = ToolCall("c", "weather", arguments).parsed
    asks = Completion("", finish=Finish.TOOL_CALLS, tool_calls=(CALL,))
    assert Scripted([asks])("x", schema=SCHEMA).tool_calls == (CALL,)
