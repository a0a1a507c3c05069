"""`Request`: all that decides what a model answers, in one form."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text.lm._json import canonical, check_schema, json_schema
from pullback.text.lm._message import Message, Tool, read_messages

__all__ = ["Request"]

_HEADERS = "Headers and keys belong to the client: OpenAI(api_key=..., headers=...)."
_REFUSED = {
    "api_key": _HEADERS,
    "extra_headers": _HEADERS,
    "extra_query": _HEADERS,
    "extra_body": "Pass what is in it as options of their own.",
    "model": "The model is chosen where it is made: OpenAI(model).",
    "n": "Ask as many times as answers are wanted.",
    "stream": "Call stream or astream.",
    "stream_options": "Call stream or astream.",
    "timeout": "The time belongs to the client: OpenAI(timeout=...).",
}


@dataclass(frozen=True)
class Request:
    """All that decides what a model answers.

    Arguments:
        messages: the conversation so far.
        options: plain JSON by OpenAI's names: ``temperature``, ``max_tokens``, ``stop``...
        schema: the JSON schema or pydantic model that the answer must follow, or None.
        tools: what the model may ask for.

    Example:
        >>> Request.of("Hello", temperature=0.0).to_dict()["options"]
        {'temperature': 0.0}
    """

    messages: tuple[Message, ...]
    options: Mapping[str, Any]
    schema: Any = None
    tools: tuple[Tool, ...] = ()

    @classmethod
    def of(cls, messages: Any, **options: Any) -> "Request":
        """A request from the arguments of `LM.complete`.

        Raises:
            ArgumentError: something that is no message, schema or tool, or an option that is not
                plain JSON.
        """
        schema = options.pop("schema", None)
        tools = tuple(options.pop("tools", None) or ())
        if schema is not None:
            check_schema(schema)
        for tool in tools:
            if not isinstance(tool, Tool):
                raise ArgumentTypeError(
                    "This is no tool.", given=repr(tool)[:200],
                    expected="a Tool(name, description, parameters)",
                )  # fmt: skip
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ArgumentError("Two tools have one name.", given=", ".join(names))
        for name, value in options.items():
            if name in _REFUSED:
                raise ArgumentError("This option cannot be passed.", given=name,
                                    mend=_REFUSED[name])  # fmt: skip
            try:
                canonical(value)
            except (TypeError, ValueError):
                raise ArgumentError("An option of a model is plain JSON.",
                                    given=f"{name}={repr(value)[:100]}") from None  # fmt: skip
        return cls(read_messages(messages), options, schema, tools)

    def to_dict(self) -> dict[str, Any]:
        """The request as JSON: equal requests give equal JSON."""
        whole: dict[str, Any] = {
            "messages": [message.to_dict() for message in self.messages],
            "options": dict(self.options),
        }
        if self.schema is not None:
            whole["schema"] = json_schema(self.schema)
        if self.tools:
            whole["tools"] = [tool.to_dict() for tool in self.tools]
        return whole

    def digest(self, model: str) -> str:
        """SHA-256 of the request and the model's name: the same in any process."""
        text = canonical({"model": model, "request": self.to_dict()})
        return hashlib.sha256(text.encode()).hexdigest()
