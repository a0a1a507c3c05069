"""`Completion`: what a model answered, what it used, and why it ended."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pullback.errors import ArgumentError
from pullback.text.lm._request import Message, ToolCall

__all__ = ["Chunk", "Completion", "Finish", "Usage"]


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True)
class Usage:
    """What a call used.

    Arguments:
        input_tokens: tokens of the messages.
        output_tokens: tokens of the answer.
        cached_tokens: how many of the input tokens the provider had cached.
        cost: US dollars, or None where no price is known.

    Example:
        >>> Usage(10, 5, cost=0.5) + Usage(1, 1, cost=0.25)
        Usage(input_tokens=11, output_tokens=6, cached_tokens=0, cost=0.75)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None

    def __post_init__(self) -> None:
        counts = (self.input_tokens, self.output_tokens, self.cached_tokens)
        bad_cost = self.cost is not None and not (math.isfinite(self.cost) and self.cost >= 0)
        if any(not isinstance(count, int) or count < 0 for count in counts) or bad_cost:
            raise ArgumentError("A usage is counted in whole numbers and dollars, none negative.",
                                given=repr(self))  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of the messages and of the answer."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Both together; a cost is unknown where one of both is."""
        if not isinstance(other, Usage):
            return NotImplemented
        known = self.cost is not None and other.cost is not None
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            (self.cost or 0.0) + (other.cost or 0.0) if known else None,
        )


@dataclass(frozen=True)
class Completion:
    """What a model answered.

    Arguments:
        text: the answer; empty where the model only asks for tools.
        usage: what it used.
        finish: why it ended.
        parsed: the answer read by the ``schema`` that was asked for, else None.
        tool_calls: what the model asks of tools.
        model: which model answered, by its own name.
        metadata: what a provider adds, plain JSON: an id, or that it is no model but a script.
    """

    text: str
    usage: Usage = Usage()
    finish: Finish = Finish.STOP
    parsed: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    model: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> Message:
        """The answer as the assistant's turn, to go on with the conversation."""
        return Message("assistant", self.text, tool_calls=self.tool_calls)

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON, but for `parsed`, which the schema makes again."""
        return {
            "text": self.text,
            "usage": asdict(self.usage),
            "finish": self.finish.value,
            "tool_calls": [call.to_dict() for call in self.tool_calls],
            "model": self.model,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Completion":
        """What `to_dict` gave.

        Raises:
            ArgumentError: it is something else.
        """
        try:
            calls: Iterable[Any] = value["tool_calls"]
            return cls(
                text=_text(value["text"]),
                usage=Usage(**value["usage"]),
                finish=Finish(value["finish"]),
                tool_calls=tuple(ToolCall.from_dict(call) for call in calls),
                model=_text(value["model"]),
                metadata=dict(value["metadata"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError("This is no completion.", given=f"{repr(value)[:200]} ({error})",
                                expected="what Completion.to_dict gave") from error  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a str is expected, not {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer that comes bit by bit.

    Arguments:
        text: what is new.
        completion: the whole answer, on the last chunk; None before.
    """

    text: str
    completion: Completion | None = None
