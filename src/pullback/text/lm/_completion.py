"""`Completion`: what a model answered; `Call`: one call, as a journal keeps it; what calls cost."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from pullback.internal._arguments import Amount, Natural, checked, reading
from pullback.text.lm._request import Message, ToolCall
from pullback.text.prices import Price

__all__ = ["Call", "Chunk", "Completion", "Finish", "Usage"]


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@checked
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

    input_tokens: Natural = 0
    output_tokens: Natural = 0
    cached_tokens: Natural = 0
    cost: Amount | None = None

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


@checked
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
        with reading("completion", value, "what Completion.to_dict gave"):
            calls: Iterable[Any] = value["tool_calls"]
            return cls(
                text=value["text"],
                usage=Usage(**value["usage"]),
                finish=Finish(value["finish"]),
                tool_calls=tuple(ToolCall.from_dict(call) for call in calls),
                model=value["model"],
                metadata=dict(value["metadata"]),
            )


def priced(answer: Completion, price: Price | None) -> Completion:
    """An answer with its cost, where it tells the tokens alone and the price is known."""
    usage = answer.usage
    if usage.cost is not None or not usage.tokens or price is None:
        return answer
    tokens = usage.input_tokens, usage.output_tokens, usage.cached_tokens
    return replace(answer, usage=replace(usage, cost=price.cost(*tokens)))


@checked
@dataclass(frozen=True)
class Chunk:
    """A piece of an answer that comes bit by bit.

    Arguments:
        text: what is new.
        completion: the whole answer, on the last chunk; None before.
    """

    text: str
    completion: Completion | None = None


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Arguments:
        id: its place in the journal.
        digest: of the request and the model's name.
        place: where in the program it was asked.
        occurrence: which of the equal requests at that place it is, from 0; below 0 if it failed
            and is to be asked again.
        model: the model's name.
        request: `Request.to_dict`.
        key: sent as ``Idempotency-Key``.
        begun, ended: seconds since 1970.
        answer: None where none arrived: whether the call was billed is in doubt.
        failure: why the answer could not be used; None if it could.
        fresh: whether the entry was just made, so that it was never sent before.
    """

    id: int
    digest: str
    place: str
    occurrence: int
    model: str
    request: Mapping[str, Any]
    key: str
    begun: float
    ended: float | None = None
    answer: Completion | None = None
    failure: str | None = None
    fresh: bool = False


@dataclass
class ModelSummary:
    """What the calls of one model used.

    Arguments:
        model: its name.
        calls: answers that arrived.
        in_doubt: calls without an answer, which may have been billed.
        usage: tokens, and cost where every price was known.
        unpriced: answers of unknown cost.
    """

    model: str = ""
    calls: int = 0
    in_doubt: int = 0
    usage: Usage = field(default_factory=lambda: Usage(cost=0.0))
    unpriced: int = 0

    def add(self, call: Call) -> None:
        """Count a call."""
        if call.answer is None:
            self.in_doubt += 1
            return
        usage = call.answer.usage
        self.calls += 1
        self.unpriced += usage.cost is None
        self.usage += replace(usage, cost=usage.cost or 0.0)

    @property
    def cost(self) -> str:
        """The cost in words, which say where a part of it is not known."""
        text = f"${self.usage.cost or 0.0:.6f}"
        return f"{text} and {self.unpriced} calls of unknown price" if self.unpriced else text


@dataclass
class RunSummary(ModelSummary):
    """What all calls of a run used, and each model's part of it."""

    models: list[ModelSummary] = field(default_factory=list)


def summarise(calls: Iterable[Call]) -> RunSummary:
    """Count what calls of a journal used, in all and by model."""
    models: dict[str, ModelSummary] = {}
    whole = RunSummary()
    for call in calls:
        whole.add(call)
        models.setdefault(call.model, ModelSummary(call.model)).add(call)
    whole.models = list(models.values())
    return whole
