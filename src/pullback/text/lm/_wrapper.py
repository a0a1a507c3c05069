"""`Wrapper`: a model that hands requests on to another."""

from collections.abc import AsyncIterator

from pullback.errors import ArgumentTypeError
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request
from pullback.text.prices import Price

__all__ = ["Wrapper"]


class Wrapper(LM):
    """A model that hands requests on to another; a subclass changes what happens on the way.

    Arguments:
        inner: the model, which may be wrapped itself.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> Wrapper(Scripted(["yes"]))("?").text
        'yes'
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

    async def answer(self, request: Request) -> Completion:
        """Ask the model inside."""
        return await self.inner.ask(request)

    async def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Ask the model inside, bit by bit."""
        async for chunk in self.inner.ask_stream(request):
            yield chunk
