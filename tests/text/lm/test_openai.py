"""The real SDK against a real server on loopback: answers, streams, and all that goes wrong."""

import asyncio
import base64
import contextlib
import gc
import json
import logging
import threading
import time
import traceback
from email.utils import formatdate
from types import AsyncGeneratorType

import pydantic
import pytest
from tests.text import server as faults
from tests.text.server import Server

from pullback.errors import ArgumentError, ModelError, ReplyError
from pullback.text.lm import Finish, Image, Limit, Message, OpenAI, Request, Retry, Scripted, Tool
from pullback.text.lm._openai import seconds_to_wait
from pullback.text.prices import Price

KEY = "sk-loopback-0123456789abcdef"


def model(server, **options):
    options = {"api_key": KEY, "timeout": 5.0, "price": Price(1.0, 2.0), **options}
    return OpenAI("gpt-test", base_url=server.url, **options)


def test_an_answer_with_its_usage_and_cost():
    with Server() as server:
        answer = model(server)("one two", temperature=0.5, max_tokens=7, top_k=3)
    assert (answer.text, answer.finish, answer.model) == ("one two", Finish.STOP, "gpt-test")
    assert answer.usage.cost == pytest.approx(
        (answer.usage.input_tokens + 2 * answer.usage.output_tokens) / 1e6
    )
    [body] = server.bodies
    assert body == {
        "model": "gpt-test", "temperature": 0.5, "max_tokens": 7, "top_k": 3,
        "messages": [{"role": "user", "content": "one two"}],
    }  # fmt: skip
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_stream_comes_in_pieces_and_ends_with_the_whole():
    with Server(lambda body: "a long answer, in pieces: ✓ ü") as server:
        chunks = list(model(server).stream("x"))
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == "a long answer, in pieces: ✓ ü"
    assert chunks[-1].completion.text == "a long answer, in pieces: ✓ ü"
    assert chunks[-1].completion.usage.tokens == server.tokens > 0


def test_tools_are_asked_for_whole_and_in_a_stream():
    call = {"id": "c1", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}  # fmt: skip
    tool = Tool("weather", "tells it", {"type": "object", "properties": {"city": {}}})

    def answer(body):
        assert body["tools"] == [tool.to_dict()]
        asked = body["messages"][-1]["role"] == "tool"
        return "sunny in Rome" if asked else {"content": None, "tool_calls": [call]}

    with Server(answer) as server:
        lm = model(server)
        first = lm("How is it in Rome?", tools=[tool])
        assert (first.finish, first.text) == (Finish.TOOL_CALLS, "")
        [asked] = first.tool_calls
        assert asked.parsed == {"city": "Rome"}
        *_, last = lm.stream("How is it in Rome?", tools=[tool])
        assert last.completion.tool_calls == first.tool_calls
        turns = ["How is it?", first.message, Message("tool", "sunny", tool_call_id="c1")]
        assert lm(turns, tools=[tool]).text == "sunny in Rome"
        assert server.bodies[-1]["messages"][1]["tool_calls"] == [call]


def test_images_are_sent(tmp_path):
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG")
    with Server(lambda body: "a dot") as server:
        model(server)(Message("user", ["What?", Image.from_file(path, detail="low")]))
        [text, image] = server.bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What?"}
    kind, _, data = image["image_url"]["url"].partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", b"\x89PNG")


class City(pydantic.BaseModel):
    name: str


def test_structured_output_sends_the_schema_and_reads_the_answer():
    with Server(lambda body: '{"name": "Rome"}') as server:
        assert model(server)("x", schema=City).parsed == City(name="Rome")
        schema = {"type": "object", "required": ["people"]}
        with pytest.raises(ReplyError, match="people"):
            model(server)("x", schema=schema)
    formats = [body["response_format"]["json_schema"]["schema"] for body in server.bodies]
    assert formats == [City.model_json_schema(), schema]


@pytest.mark.parametrize("answer", ['{"height": NaN}', 'It is {"height": -Infinity}.'])
def test_what_is_no_number_of_json_is_named_in_an_answer(answer):
    with Server(lambda body: answer) as server, pytest.raises(ReplyError) as refused:
        model(server)("x", schema={"type": "object"})
    assert not answer.startswith("{") or "NaN is no number of JSON" in str(refused.value)


def test_a_number_beyond_all_floats_is_no_infinity():
    said = pytest.raises(ReplyError, match="-1e999 is beyond all floats")
    with Server(lambda body: '{"n": -1e999}') as server, said:
        model(server)("x", schema={"type": "object"})


FAULTS = {
    "bad request": (faults.status(400, "bad"), ModelError, "HTTP 400", False),
    "no key": (faults.status(401, f"wrong key {KEY}"), ModelError, "HTTP 401", False),
    "no model": (faults.status(404), ModelError, "HTTP 404", False),
    "too long": (
        faults.status(400, error_code="context_length_exceeded"), ModelError, "context", False,
    ),
    "too long here": (
        faults.status(400, kind="exceed_context_size_error"), ModelError, "context", False,
    ),
    "filtered": (
        faults.status(400, error_code="content_filter"), ReplyError, "withheld", False,
    ),
    "no schema": (
        faults.status(400, error_code="json_validate_failed"), ReplyError, "schema", True,
    ),
    "too many": (faults.status(429, retry_after=0.02), ModelError, "HTTP 429", True),
    "no quota": (faults.status(429, error_code="insufficient_quota"), ModelError, "429", False),
    "fault": (faults.status(500), ModelError, "HTTP 500", True),
    "busy": (faults.status(503), ModelError, "HTTP 503", True),
    "hang": (faults.hang(5), ModelError, "in time", True),
    "drop": (faults.drop, ModelError, "connection", True),
    "truncated": (faults.truncated, ModelError, "connection", True),
    "malformed": (faults.malformed, ReplyError, "no JSON", True),
    "empty": (faults.empty_choices, ReplyError, "without a choice", True),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_an_error_of_ours_that_tells_whether_it_may_pass(name):
    fault, kind, what, transient = FAULTS[name]
    with Server(faults=[fault]) as server, pytest.raises(kind, match=what) as caught:
        model(server, timeout=5.0 if name != "hang" else 0.4)("x")
    assert caught.value.transient is transient
    assert len(server.bodies) == 1  # the SDK's own retries are off
    assert caught.value.__cause__ is None  # the SDK's error holds the request, and so the key


def shaped(**fields):
    """An answer with other fields than it should have."""
    return lambda handler, body: handler.send(
        200, json.dumps({**handler.server.owner.reply(body), **fields}).encode()
    )


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize("fields", [
    {"choices": 3}, {"choices": ["x"]}, {"choices": [{"message": {"content": 3}}]},
    {"choices": [{"message": {"tool_calls": [CALL]}}]}, {"choices": [{"finish_reason": []}]},
    {"choices": [{"message": {"content": "hal", "tool_calls": None}, "finish_reason": "error"}]},
    {"usage": {"prompt_tokens": "x", "completion_tokens": 1}},
    {"usage": {"prompt_tokens": -1, "completion_tokens": 1}},
])  # fmt: skip
def test_a_reply_of_another_shape_is_no_answer(fields):
    with Server(faults=[shaped(**fields)]) as server, pytest.raises(ReplyError, match="server"):
        model(server)("x")


@pytest.mark.parametrize("body", ["", "[]", '{"error": 3}', '{"error": {"type": [1]}}', "<html>"])
def test_a_refusal_of_any_shape_is_one(body):
    refuse = lambda handler, _: handler.send(400, body.encode())  # noqa: E731
    with Server(faults=[refuse]) as server, pytest.raises(ModelError, match="HTTP 400"):
        model(server)("x")


def test_what_a_server_does_not_count_is_not_reported():
    with Server(faults=[shaped(usage={}), shaped(usage=[1])]) as server:
        for _ in range(2):
            answer = model(server)("x")
            assert (answer.text, answer.metadata["usage"]) == ("x", "not reported")


@pytest.mark.parametrize("name", FAULTS)
def test_retry_asks_again_exactly_where_it_may_help(name):
    fault, kind, _, transient = FAULTS[name]
    hangs = name == "hang"  # on a busy machine an answer, too, may miss a short limit
    with Server(faults=[fault, fault]) as server:
        lm = Retry(
            model(server, timeout=0.3 if hangs else 5.0), attempts=9 if hangs else 3, wait=0.01
        )
        if transient:
            assert lm("x").text == "x"
            assert len(server.bodies) == 3 or (hangs and len(server.bodies) > 3)
        else:
            with pytest.raises(kind):
                lm("x")
            assert len(server.bodies) == 1


def test_retry_gives_up_with_the_last_error_and_says_how_often_it_asked():
    with Server(faults=[faults.status(500)] * 3) as server:
        with pytest.raises(ModelError, match="500") as caught:
            Retry(model(server), attempts=3, wait=0.001)("x")
        assert len(server.bodies) == 3
    assert any("attempts: 3" in note for note in caught.value.__notes__)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="no time zones here")
def test_a_date_to_wait_for_is_of_the_clock_and_zone_of_the_server(monkeypatch):
    asked = {"date": formatdate(3600, usegmt=True), "retry-after": formatdate(3602, usegmt=True)}
    assert seconds_to_wait(asked) == 2.0  # ours says another year
    in_a_minute = formatdate(time.time() + 60).removesuffix(" -0000")
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert seconds_to_wait({"retry-after": in_a_minute}) == pytest.approx(60, abs=5)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert seconds_to_wait({"retry-after": "Fri, 99 Nov 2026", "date": "soon"}) is None


def test_retry_waits_as_long_as_the_server_asks_and_no_longer_than_allowed():
    with Server(faults=[faults.status(429, retry_after=0.3)]) as server:
        begin = time.monotonic()
        assert Retry(model(server), wait=0.001)("x").text == "x"
        assert time.monotonic() - begin >= 0.3
    for long in ("3600", formatdate(time.time() + 3600, usegmt=True)):
        with Server(faults=[faults.status(429, retry_after=long)]) as server:
            with pytest.raises(ModelError, match="429") as caught:
                Retry(model(server))("x")
            assert caught.value.retry_after == pytest.approx(3600, abs=5)
            assert len(server.bodies) == 1


def test_a_stream_that_is_cut_is_no_answer():
    with Server(faults=[faults.stream_cut(3)]) as server:
        stream = model(server).stream("a long text")
        with pytest.raises(ModelError) as caught:
            list(stream)
    assert caught.value.transient


def test_a_stream_is_retried_only_while_nothing_was_handed_on():
    with Server(faults=[faults.status(503), faults.stream_cut(1)]) as server:
        lm = Retry(model(server), wait=0.001)
        assert "".join(chunk.text for chunk in lm.stream("a long text")) == "a long text"
        assert len(server.bodies) == 3
    with Server(faults=[faults.stream_cut(3)]) as server:
        seen = []
        with pytest.raises(ModelError):
            seen.extend(chunk.text for chunk in Retry(model(server)).stream("a long text"))
        assert len(server.bodies) == 1


def test_a_slow_stream_can_be_left_and_the_connection_ends():
    with Server(lambda body: "x" * 4000, delay=0.02) as server:
        begin = time.monotonic()
        stream = model(server).stream("x")
        assert next(stream).text == "xxxx"
        stream.close()
        while server.current and time.monotonic() - begin < 5:
            time.sleep(0.01)
        assert server.current == 0  # a thousand pieces would take 20 seconds


@pytest.mark.parametrize("read", [1, 2, 99])
def test_a_stream_that_is_left_leaves_no_generator_to_the_garbage_collector(read):
    def unfinished():
        found = [each for each in gc.get_objects() if type(each) is AsyncGeneratorType]
        return {id(each) for each in found if each.ag_frame}

    async def leave(lm):
        async with contextlib.aclosing(lm.astream("a long answer, in pieces")) as chunks:
            for _ in range(read):
                await anext(chunks, None)
        # What reads from the connection hands its own generators to the loop as it ends.
        until = time.monotonic() + 5
        while unfinished() - before and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert unfinished() <= before

    gc.freeze()  # what was made before is not looked at: with all of torch that takes seconds
    gc.disable()
    try:
        before = unfinished()
        with Server() as server:
            asyncio.run(leave(model(server)))
    finally:
        gc.enable()


def test_a_cancelled_call_ends_its_connection():
    async def main(lm):
        task = asyncio.create_task(lm.acomplete("x"))
        while not server.bodies:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await lm.acomplete("y")).text  # the client is as good as before

    with Server(faults=[faults.hang(10)]) as server:
        assert asyncio.run(main(model(server, timeout=20))) == "y"


# httpx's own generator, of an answer that was read whole: where the collector of another thread
# finds it in its last step, Python 3.11 says that it is executing.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object AsyncResponseStream"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_one_client_serves_threads_and_loops():
    with Server(delay=0.05) as server:
        lm = model(server)
        texts = []
        threads = [
            threading.Thread(target=lambda n=n: texts.append(lm(f"t{n}").text)) for n in range(8)
        ]
        for thread in threads:
            thread.start()

        async def many():
            return await asyncio.gather(*(lm.acomplete(f"a{n}") for n in range(8)))

        for _ in range(2):
            assert [answer.text for answer in asyncio.run(many())] == [f"a{n}" for n in range(8)]
        for thread in threads:
            thread.join()
        assert sorted(texts) == [f"t{n}" for n in range(8)]
        assert server.most > 4


def test_an_unused_connection_is_ended_before_its_server_ends_it(monkeypatch):
    assert OpenAI._kept < 5.0  # after which uvicorn, llama.cpp and Node end theirs
    for kept, opened in ((60.0, 1), (0.02, 2)):
        monkeypatch.setattr(OpenAI, "_kept", kept)
        with Server() as server:
            lm = model(server)
            lm("one")
            time.sleep(0.05)
            lm("two")
        assert server.opened == opened


def test_limit_on_concurrency_is_reached_and_never_exceeded():
    with Server(delay=0.03) as server:
        lm = Limit(model(server), concurrency=3)

        async def many():
            await asyncio.gather(*(lm.acomplete(f"{n}") for n in range(12)))

        asyncio.run(many())
        assert server.most == 3


def test_limit_on_the_rate_holds_in_every_window():
    from pullback.text.lm import Scripted

    begun = []
    lm = Limit(Scripted(lambda request: begun.append(time.monotonic()) or "x"), rate=4, per=0.2)

    async def many():
        await asyncio.gather(*(lm.acomplete("x") for _ in range(12)))

    asyncio.run(many())
    begun.sort()
    assert len(begun) == 12
    # A timer of asyncio may fire one tick of the clock early.
    assert min(late - early for early, late in zip(begun, begun[4:], strict=False)) > 0.19


def test_a_limit_is_given_back_by_who_stops_waiting():
    async def main(lm):
        tasks = [asyncio.create_task(lm.acomplete(str(n))) for n in range(6)]
        await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [(await lm.acomplete("z")).text for _ in range(3)]

    with Server(delay=0.02) as server:
        lm = Limit(model(server), concurrency=1)
        assert asyncio.run(asyncio.wait_for(main(lm), 10)) == ["z"] * 3
        assert lm._limiter.free == 1


@pytest.mark.parametrize("option", [
    "api_key", "extra_headers", "headers", "default_headers", "authorization", "token", "hf_token",
    "password", "cookies", "n", "stream", "model", "timeout",
])  # fmt: skip
def test_options_that_belong_elsewhere_are_refused(option):
    with pytest.raises(ArgumentError, match="cannot be passed"):
        Request.of("x", **{option: 1})
    for plain in ("max_tokens", "prompt_cache_key", "stop_token_ids"):
        Request.of("x", **{plain: 1})


def test_tools_of_one_name_are_refused():
    with pytest.raises(ArgumentError, match="one name"):
        Request.of("x", tools=[Tool("a", "", {}), Tool("a", "", {})])


def test_bad_clients_are_refused(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ArgumentError, match="needs a key"):
        OpenAI("gpt-4o")
    with pytest.raises(ArgumentError, match="timeout"):
        OpenAI("gpt-4o", api_key="sk-123456789", timeout=0)
    for options in ({}, {"rate": 0}, {"concurrency": 0}, {"rate": 1, "per": 0}):
        with pytest.raises(ArgumentError):
            Limit(OpenAI("m", base_url="http://localhost:1/v1"), **options)
    with pytest.raises(ArgumentError):
        Retry(OpenAI("m", base_url="http://localhost:1/v1"), attempts=0)
    with pytest.raises(ArgumentError):
        Retry("m")


def test_a_service_tier_is_not_counted_at_the_price_of_another():
    with Server() as server:
        known = OpenAI("gpt-4o", base_url=server.url, api_key=KEY)
        with pytest.raises(ArgumentError, match="tier"):
            known("x", service_tier="priority")
        assert server.bodies == []
        known("x", service_tier="default")
        given = OpenAI("gpt-4o", base_url=server.url, api_key=KEY, price=Price(5.0, 20.0))
        assert given("x", service_tier="priority").usage.cost > 0


def test_no_server_at_all():
    lm = OpenAI("m", base_url="http://127.0.0.1:1/v1", timeout=2)
    with pytest.raises(ModelError, match="connection") as caught:
        lm("x")
    assert caught.value.transient


def test_openai_itself_gets_the_name_that_its_newer_models_take():
    body = OpenAI("gpt-4o", api_key=KEY, base_url="https://api.openai.com/v1")._body(
        Request.of("x", max_tokens=5)
    )
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body


@pytest.mark.parametrize("name", [*FAULTS, "refused", "echo"])
def test_the_key_is_in_no_error_log_or_answer(name, caplog):
    caplog.set_level(logging.DEBUG)
    fault = FAULTS[name][0] if name in FAULTS else None

    def answer(body):
        return f"your key is {KEY}"

    with Server(answer, [fault] if fault else []) as server:
        lm = model(server, timeout=0.15, headers={"X-Secret": "another-secret-value"})
        if name == "refused":
            lm = OpenAI("m", base_url=f"http://127.0.0.1:1/v1/{KEY}", api_key=KEY)
        try:
            answer = lm("x")
            text = answer.text
            streamed = list(lm.stream("x"))[-1].completion.text
            text += streamed + repr(answer)
        except ModelError as error:
            text = f"{error} {error!r} " + "".join(traceback.format_exception(error))
        text += repr(lm)
    written = text + caplog.text + "".join(repr(vars(record)) for record in caplog.records)
    assert KEY not in written
    assert "another-secret-value" not in written


def test_a_retry_says_nothing_where_no_log_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert Retry(Scripted([ModelError("busy", transient=True), "x"]), wait=0.0)("?").text == "x"
    assert capsys.readouterr().err == ""
