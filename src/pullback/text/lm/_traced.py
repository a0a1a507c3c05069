"""`Traced`: each call as a span of OpenTelemetry, by its conventions for generative models."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from pullback.errors import ModelError
from pullback.internal._arguments import checked
from pullback.internal._extras import require
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._json import canonical
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request
from pullback.text.lm._secrets import scrub

__all__ = ["Traced"]

_OPTIONS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


@checked
class Traced(Wrapper):
    """Make a span of each call: the model, its options, tokens, cost, how it ended.

    Names are those of OpenTelemetry's conventions for generative models; ``pullback.cost`` is in
    US dollars. Messages and answers are left out unless `content` is True; keys always are.

    Arguments:
        inner: the model.
        tracer: an OpenTelemetry tracer; that of the provider which the program has set if None.
        content: whether messages and answers are in the spans.

    Raises:
        MissingExtraError: opentelemetry-api is not installed.

    References:
        https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    """

    def __init__(self, inner: LM, tracer: Any = None, *, content: bool = False) -> None:
        super().__init__(inner)
        self._trace: Any = require(
            "opentelemetry.trace", extra="otel", purpose="text.lm.Traced"
        )  # fmt: skip
        self._tracer = tracer or self._trace.get_tracer("pullback")
        self.content = content

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask within a span, which ends with the answer, or where it is left."""
        with self._span(request) as span:
            async for chunk in ask(request):
                if chunk.completion is not None:
                    self._end(span, chunk.completion)
                yield chunk

    @contextmanager
    def _span(self, request: Request) -> Iterator[Any]:
        kind = self._trace.SpanKind.CLIENT
        span = self._tracer.start_span(scrub(f"chat {self.model}"), kind=kind)
        span.set_attribute("gen_ai.operation.name", "chat")
        span.set_attribute("gen_ai.request.model", scrub(self.model))
        for name in _OPTIONS:
            if isinstance(request.options.get(name), int | float):
                span.set_attribute(f"gen_ai.request.{name}", request.options[name])
        if self.content:
            messages = canonical(request.to_dict()["messages"])
            span.set_attribute("gen_ai.input.messages", scrub(messages))
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, ModelError) and error.status is not None:
                span.set_attribute("http.response.status_code", error.status)
            said = scrub(str(error)) if isinstance(error, Exception) else ""
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, said))
            raise
        finally:
            span.end()

    def _end(self, span: Any, answer: Completion) -> None:
        span.set_attribute("gen_ai.response.model", scrub(answer.model))
        span.set_attribute("gen_ai.response.finish_reasons", [answer.finish.value])
        span.set_attribute("gen_ai.usage.input_tokens", answer.usage.input_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", answer.usage.output_tokens)
        if answer.usage.cost is not None:
            span.set_attribute("pullback.cost", answer.usage.cost)
        if self.content:
            span.set_attribute("gen_ai.output.messages", scrub(answer.text))
