"""Replies of OpenAI's chat completions, whole or in pieces, as `Completion`."""

from dataclasses import dataclass, field
from typing import Any

from pullback.errors import ReplyError
from pullback.text.lm._blocks import ToolCall
from pullback.text.lm._completion import Completion, Finish, Usage
from pullback.text.lm._secrets import scrub
from pullback.text.prices import Price

__all__ = ["Pieces", "read_reply"]


def read_reply(reply: Any, price: Price | None, model: str) -> Completion:
    """A whole reply.

    Raises:
        ReplyError: it has no choice, or is no completion at all.
    """
    choices = getattr(reply, "choices", None)
    if not choices or getattr(choices[0], "message", None) is None:
        raise ReplyError(
            "The server answered without a choice.", given=scrub(repr(reply))[:300],
            expected="a chat completion with one choice", transient=True,
            may_be_billed=True,
        )  # fmt: skip
    pieces = Pieces(price, model)
    pieces.add(reply)
    pieces.finish = pieces.finish or "stop"
    return pieces.completion()


@dataclass
class Pieces:
    """A reply that is put together, event by event."""

    price: Price | None
    model: str
    texts: list[str] = field(default_factory=list)
    head: Any = None
    usage: Any = None
    finish: str | None = None
    refusal: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)

    def add(self, event: Any) -> str:
        """Take an event of a stream, or a whole reply; what text is new in it."""
        self.head = self.head or event
        self.usage = event.usage or self.usage
        if not event.choices:
            return ""
        choice = event.choices[0]
        self.finish = choice.finish_reason or self.finish
        part = choice.delta if hasattr(choice, "delta") else choice.message
        self.refusal += getattr(part, "refusal", None) or ""
        for number, asked in enumerate(part.tool_calls or ()):
            call = self.calls.setdefault(getattr(asked, "index", number), ["", "", ""])
            function = asked.function
            call[0] = asked.id or call[0]
            call[1] += (function and function.name) or ""
            call[2] += (function and function.arguments) or ""
        text = scrub(part.content or "")
        self.texts.append(text)
        return text

    def completion(self) -> Completion:
        """The whole.

        Raises:
            ReplyError: the stream ended without its end.
        """
        if self.finish is None:
            raise ReplyError(
                "The stream of the answer ended before the answer did.",
                given=f"{sum(map(len, self.texts))} characters", transient=True,
                may_be_billed=True,
            )  # fmt: skip
        calls = tuple(
            ToolCall(name or f"call_{number}", function, scrub(arguments))
            for number, (name, function, arguments) in sorted(self.calls.items())
        )
        usage, metadata = self._usage()
        metadata["id"] = scrub(str(getattr(self.head, "id", "") or ""))
        finish = Finish.STOP
        if self.refusal:
            finish, metadata["refusal"] = Finish.CONTENT_FILTER, scrub(self.refusal)
        elif self.finish in set(Finish):
            finish = Finish(self.finish)
        else:
            metadata["finish_reason"] = scrub(self.finish)
        model = scrub(getattr(self.head, "model", None) or self.model)
        text = scrub("".join(self.texts))
        return Completion(text, usage, finish, None, calls, model, metadata)

    def _usage(self) -> tuple[Usage, dict[str, Any]]:
        if self.usage is None:
            return Usage(), {"usage": "not reported"}
        details = getattr(self.usage, "prompt_tokens_details", None)
        cached = min(getattr(details, "cached_tokens", None) or 0, self.usage.prompt_tokens)
        tokens = (self.usage.prompt_tokens, self.usage.completion_tokens, cached)
        cost = None if self.price is None else self.price.cost(*tokens)
        return Usage(*tokens, cost), {}
