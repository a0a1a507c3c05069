"""`Wrapper`: a step on the way of a request to a model."""

from collections.abc import AsyncIterator, Callable

from pullback.errors import ArgumentTypeError
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request
from pullback.text.prices import Price

__all__ = ["Ask", "Wrapper"]

Ask = Callable[[Request], AsyncIterator[Chunk]]


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
        if not isinstance(inner, LM):
            raise ArgumentTypeError("Only a language model can be wrapped.",
                                    given=type(inner).__name__, expected="an LM")  # fmt: skip
        self.inner = inner

    @property
    def model(self) -> str:  # type: ignore[bad-override]
        """The name of the model inside."""
        return self.inner.model

    @property
    def price(self) -> Price | None:  # type: ignore[bad-override]
        """The price of the model inside."""
        return self.inner.price

    def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """The chunks of an answer, the last one with the whole.

        Arguments:
            request: what is asked.
            ask: gives the chunks of the rest of the way.
        """
        return ask(request)

    async def answer(self, request: Request) -> Completion:
        """Ask for the whole answer."""
        found = [chunk.completion async for chunk in self.step(request, self._whole)]
        completion = found[-1] if found else None
        assert completion is not None  # the last chunk has it
        return completion

    def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Ask bit by bit."""
        return self.step(request, self.inner.ask_stream)

    async def _whole(self, request: Request) -> AsyncIterator[Chunk]:
        completion = await self.inner.ask(request)
        yield Chunk(completion.text, completion)
