"""`LM`: what every language model here can do, whole or bit by bit; `Wrapper`: a step before it."""

import inspect
import queue
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, aclosing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from pullback.errors import ArgumentTypeError, RecordingError, ReplyError
from pullback.internal._arguments import checked
from pullback.internal._setting import setting
from pullback.internal._text import shown
from pullback.tape._concurrency import begin, run
from pullback.text.lm._completion import Chunk, Completion, Finish, priced
from pullback.text.lm._json import read_answer
from pullback.text.lm._request import Request
from pullback.text.prices import Price

__all__ = ["LM", "Wrapper"]

Ask = Callable[[Request], AsyncIterator[Chunk]]
Step = Callable[[Request, Ask], AsyncIterator[Chunk]]
"""A part of the way of a request: it asks the rest of the way, and hands its chunks on."""

# The run under way, whose steps all models of this process go through: one at most.
_active: list[Any] = []

entered: ContextVar[Any] = ContextVar("pullback.text.run", default=None)
"""The run that this began in, which a thread or task of it may outlast."""

bound: ContextVar[Callable[["LM"], Step]] = ContextVar("pullback.text.bound")
"""Gives the step that holds a model to the budget that is in force here, if there is one."""

_heard: ContextVar[list[Callable[[str], Any]]] = ContextVar("pullback.text.heard")


@contextmanager
def hearing() -> Iterator[None]:
    """One use of answers: where they cannot be read, whoever keeps them is told so, and why."""
    heard: list[Callable[[str], Any]] = []
    try:
        with setting(_heard, heard):
            yield
    except ReplyError as error:
        for fail in heard:
            fail(error.what)
        raise
    finally:
        for fail in heard:
            hand_on(fail)


def hand_on(fail: Callable[[str], Any]) -> None:
    """Tell who uses an answer that is kept how to say that it cannot be used, and why."""
    _heard.get([]).append(fail)


def active() -> Any:
    """The run under way, or None."""
    return _active[-1] if _active else None


def activate(run: Any) -> None:
    """Let every model go through a run from now on; None: no longer."""
    _active[:] = [] if run is None else [run]


@checked
class LM(ABC):
    """A language model, or what stands for one.

    A subclass writes `answer`, one coroutine; a model that can stream writes `stream_answer` too.
    What wraps a model is a `Wrapper`.

    Example:
        >>> from pullback.text.lm import LM, Completion
        >>> class Echo(LM):
        ...     model = "echo"
        ...
        ...     async def answer(self, request):
        ...         return Completion(request.messages[-1].text)
        >>> Echo()("hello").text
        'hello'
    """

    model: str = ""
    """The name of the model: a part of what identifies a request."""

    price: Price | None = None
    """What a token costs, and so an answer that does not tell; None where it is not known."""

    wraps: bool = False
    """Whether it hands requests on to another model, so that a run looks at that one alone."""

    @abstractmethod
    async def answer(self, request: Request) -> Completion:
        """Answer a request; `parsed` is made from it afterwards."""

    def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Answer bit by bit; the last chunk holds the whole answer."""
        return in_one(self.answer, request)

    async def ask(self, request: Request) -> Completion:
        """Answer a request through the run that is under way, if there is one."""
        answer = _last(self._way(request, partial(in_one, self.answer)))
        run = None if self.wraps else active()
        return await (answer if run is None else run.keep(answer))

    def ask_stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The same, bit by bit."""
        return self._way(request, self.stream_answer)

    def _way(self, request: Request, answer: Ask) -> AsyncIterator[Chunk]:
        """Through the steps that are in force here, that of a budget around those of a run.

        So what the journal answers counts as it did when it was paid for: a training that goes on
        or is replayed meets its budget where it would have met it.
        """
        ask: Ask = partial(self._pieces, answer)
        if not self.wraps:
            hold, run, began = bound.get(None), active(), entered.get()
            if began is not None and began is not run:
                raise RecordingError(
                    "A model was asked in a run that has been left, where no journal keeps the "
                    "answer and no budget holds.",
                    given=self.model, mend="Let what asks end inside of the run.",
                )  # fmt: skip
            steps = [] if run is None else run.steps(self)
            steps += [] if hold is None else [hold(self)]
            for step in steps:
                ask = partial(_through, step, ask)
        return ask(request)

    async def _pieces(self, answer: Ask, request: Request) -> AsyncIterator[Chunk]:
        """The chunks of an answer, refused where they are none, the whole with what it cost."""
        chunks, whole = answer(request), None
        async with _closed(chunks):
            async for chunk in chunks:
                if not isinstance(chunk, Chunk):
                    raise _no_answer(chunk)
                whole = chunk.completion and priced(chunk.completion, self.price)
                yield chunk if whole is None else replace(chunk, completion=whole)
        if whole is None:
            raise _no_answer(chunks)

    async def acomplete(self, messages: Any, **options: Any) -> Completion:
        """Answer, awaited; see `complete`."""
        request = Request.of(messages, **options)
        with hearing():
            return _parsed(await self.ask(request), request)

    def complete(self, messages: Any, **options: Any) -> Completion:
        """Answer; works with or without a running event loop.

        Arguments:
            messages: a str (one user's turn), a `Message`, OpenAI's dictionaries, or a list.
            options: ``schema`` (a JSON schema or pydantic model), ``tools`` (a list of `Tool`),
                and the model's own by OpenAI's names: ``temperature``, ``max_tokens``, ``seed``...

        Raises:
            ArgumentError: something that is no message, schema, tool or option; nothing was sent.
            ModelError: the model cannot be asked.
            ReplyError: its answer cannot be read, or breaks the schema.
        """
        return run(self.acomplete(messages, **options))

    def __deepcopy__(self, memo: dict[int, Any]) -> "LM":
        return self  # a copy of a pipeline asks the same model, with its connections and account

    def __call__(self, *messages: Any, **options: Any) -> Completion:
        """The same as `complete`."""
        return self.complete(*messages, **options)

    async def astream(self, messages: Any, **options: Any) -> AsyncIterator[Chunk]:
        """Answer bit by bit, awaited; see `stream`."""
        request = Request.of(messages, **options)
        async with aclosing(self.ask_stream(request)) as chunks:  # type: ignore[bad-argument-type]
            while True:
                with hearing():  # around each piece: see `Record`
                    chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    whole = chunk.completion and _parsed(chunk.completion, request)
                yield replace(chunk, completion=whole)

    def stream(self, messages: Any, **options: Any) -> Iterator[Chunk]:
        """Answer bit by bit: chunks of text, the last one with the whole `Completion`.

        Closing the iterator early ends the call. Arguments and errors are those of `complete`.
        """
        Request.of(messages, **options)  # bad arguments raise here, not at the first chunk
        return self._stream(messages, options)

    def _stream(self, messages: Any, options: dict[str, Any]) -> Iterator[Chunk]:
        chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def feed() -> None:
            async with aclosing(self.astream(messages, **options)) as pieces:  # type: ignore[bad-argument-type]
                async for chunk in pieces:
                    chunks.put(chunk)

        def ended(done: Future[None]) -> None:
            chunks.put(CancelledError() if done.cancelled() else done.exception())

        feeding = begin(feed())
        feeding.add_done_callback(ended)
        try:
            while isinstance(chunk := chunks.get(), Chunk):
                yield chunk
            if chunk is not None:
                raise chunk
        finally:
            feeding.cancel()


def _parsed(completion: Completion, request: Request) -> Completion:
    if request.schema is None or completion.finish is Finish.TOOL_CALLS:
        return completion
    if completion.finish is Finish.LENGTH:
        raise ReplyError(
            "The answer of the model was cut off, so that its schema cannot hold.",
            given=f"{completion.usage.output_tokens} tokens", mend="Pass a larger max_tokens.",
        )  # fmt: skip
    return replace(completion, parsed=read_answer(completion.text, request.schema))


async def in_one(
    answer: Callable[[Request], Awaitable[Completion]], request: Request
) -> AsyncIterator[Chunk]:
    """An answer as a stream of one chunk, so that a step is written once for both."""
    given = answer(request)
    completion = await given if inspect.isawaitable(given) else None
    if not isinstance(completion, Completion):
        raise _no_answer(given if completion is None else completion)
    yield Chunk(completion.text, completion)


async def _through(step: Step, ask: Ask, request: Request) -> AsyncIterator[Chunk]:
    """The chunks of a step; what it opened is closed with it, the innermost first.

    A step may leave what it asked for. Were that found by the garbage collector alone, its ends
    would run anywhere, whenever: places that others wait for would be held until then, and below
    Python 3.12 an end that sets a context variable can meet a thread in the middle of setting one.
    """
    async with AsyncExitStack() as opened:

        def opening(request: Request) -> AsyncIterator[Chunk]:
            chunks = ask(request)
            opened.push_async_exit(_closed(chunks))
            return chunks

        chunks = step(request, opening)
        await opened.enter_async_context(_closed(chunks))
        async for chunk in chunks:
            yield chunk


def _closed(chunks: Any) -> Any:
    """Close chunks at the end, if they are chunks and can be closed."""
    if not isinstance(chunks, AsyncIterable):
        raise _no_answer(chunks)
    return aclosing(chunks) if hasattr(chunks, "aclose") else nullcontext()  # type: ignore[bad-argument-type]


async def _last(chunks: AsyncIterator[Chunk]) -> Completion:
    """The whole of an answer whose chunks were looked at."""
    async with _closed(chunks):
        found = [chunk.completion async for chunk in chunks]
    return found[-1]  # type: ignore[bad-return]


def _no_answer(given: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        "What a model gave is no answer.", given=shown(given),
        expected="a Completion of answer; Chunks of stream_answer and step, the last one with it",
        mend="async def answer(self, request): return Completion(text)",
    )  # fmt: skip


@checked
class Wrapper(LM):
    """A step on the way of a request to a model: a subclass writes `step` alone.

    An answer that is asked for whole is a stream of one chunk, so a step is written once for both.

    Arguments:
        inner: the model, which may be wrapped itself.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> class Shout(Wrapper):
        ...     async def step(self, request, ask):
        ...         async for chunk in ask(request):
        ...             yield Chunk(chunk.text.upper(), Completion(chunk.completion.text.upper()))
        >>> Shout(Scripted(["yes"]))("?").text
        'YES'
    """

    wraps = True

    def __init__(self, inner: LM) -> None:
        self.inner, self.model, self.price = inner, inner.model, inner.price

    def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """The chunks of an answer, the last one with the whole.

        Arguments:
            request: what is asked.
            ask: gives the chunks of the rest of the way.
        """
        return ask(request)

    async def answer(self, request: Request) -> Completion:
        """Ask for the whole answer."""
        step = partial(_through, self.step, partial(in_one, self.inner.ask))
        return await _last(self._pieces(step, request))

    def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Ask bit by bit."""
        return _through(self.step, self.inner.ask_stream, request)
