"""Spans of calls: complete, by the conventions, and without keys or, unless asked for, texts."""

import json

import pytest
from tests.text.server import Server, faults

from pullback.errors import ModelError
from pullback.text.lm import OpenAI, Retry, Scripted, Traced
from pullback.text.prices import Price

sdk = pytest.importorskip("opentelemetry.sdk.trace")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
KEY = "sk-traced-0123456789"


@pytest.fixture
def spans():
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter.get_finished_spans


def test_each_attempt_is_a_span_with_what_it_used(spans):
    tracer, finished = spans
    with Server(lambda body: f"the key is {KEY}", faults=[faults.status(500)]) as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY, price=Price(1.0, 1.0))
        Retry(Traced(lm, tracer), wait=0.001)(f"my key is {KEY}", temperature=0.5)
        list(Traced(lm, tracer, content=True).stream(f"my key is {KEY}"))
    failed, asked, streamed = finished()
    assert failed.attributes["http.response.status_code"] == 500
    assert failed.status.status_code.name == "ERROR"
    assert asked.name == "chat m"
    assert asked.attributes["gen_ai.request.model"] == "m"
    assert asked.attributes["gen_ai.request.temperature"] == 0.5
    assert asked.attributes["gen_ai.usage.output_tokens"] == 4
    assert asked.attributes["pullback.cost"] > 0
    assert not any("messages" in name for name in asked.attributes)
    assert "my key is" in streamed.attributes["gen_ai.input.messages"]
    assert streamed.attributes["gen_ai.output.messages"].startswith("the key is")
    for span in (failed, asked, streamed):
        assert KEY not in json.dumps(json.loads(span.to_json()))


def test_a_stream_that_is_left_ends_its_span(spans):
    tracer, finished = spans
    stream = Traced(Scripted(["one two three"]), tracer).stream("x")
    next(stream)
    stream.close()
    with pytest.raises(ModelError):
        Traced(Scripted([ModelError("no")]), tracer)("x")
    assert finished()[-1].attributes["error.type"] == "ModelError"
