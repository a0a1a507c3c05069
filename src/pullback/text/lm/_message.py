"""`Message`: one turn of a conversation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text.lm._blocks import Content, Text, ToolCall, read_block

__all__ = ["Message", "read_messages"]

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Arguments:
        role: ``"system"``, ``"developer"``, ``"user"``, ``"assistant"`` or ``"tool"``.
        content: a str, or blocks: str, `Text`, `Image`; kept as a tuple of blocks.
        tool_calls: what an assistant asks of tools.
        tool_call_id: the call that a message of role ``"tool"`` answers.

    Raises:
        ArgumentError: another role, or a tool's answer without its call.

    Example:
        >>> Message("user", "What is this?").text
        'What is this?'
        >>> from pullback.text.lm import Image
        >>> Message("user", ["Look:", Image("https://example.org/a.png")]).content[0]
        Text(text='Look:')
    """

    role: str
    content: tuple[Content, ...] = ()
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)
    tool_call_id: str | None = field(default=None, kw_only=True)

    def __init__(
        self,
        role: str,
        content: str | Content | Iterable[Any] = (),
        *,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str | None = None,
    ) -> None:
        if role not in _ROLES:
            raise ArgumentError("The role of a message is unknown.", given=repr(role),
                                expected=", ".join(_ROLES))  # fmt: skip
        if (role == "tool") != (tool_call_id is not None):
            raise ArgumentError(
                "A tool's answer, and no other message, names the call that it answers.",
                given=f"role={role!r}, tool_call_id={tool_call_id!r}",
            )
        single = isinstance(content, str | Mapping) or not isinstance(content, Iterable)
        blocks = (content,) if single else tuple(content)
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "content", tuple(map(read_block, blocks)))
        object.__setattr__(self, "tool_calls", tuple(tool_calls))
        object.__setattr__(self, "tool_call_id", tool_call_id)

    @property
    def text(self) -> str:
        """Its texts, one after another."""
        return "".join(block.text for block in self.content if isinstance(block, Text))

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this message; a single text is a plain str in it."""
        plain = all(isinstance(block, Text) for block in self.content) and len(self.content) < 2
        content: Any = self.text if plain else [block.to_dict() for block in self.content]
        whole: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            whole["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            whole["tool_call_id"] = self.tool_call_id
        return whole

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Message":
        """A message from OpenAI's dictionary.

        Raises:
            ArgumentError: it has no role, or a field that is not known.
        """
        unknown = set(value) - {"role", "content", "tool_calls", "tool_call_id"}
        if "role" not in value or unknown:
            raise ArgumentError(
                "This is no message.", given=repr(dict(value))[:200],
                expected="role, content, and perhaps tool_calls or tool_call_id",
            )  # fmt: skip
        content = value.get("content")
        return cls(
            value["role"],
            () if content is None else content,
            tool_calls=[ToolCall.from_dict(call) for call in value.get("tool_calls") or ()],
            tool_call_id=value.get("tool_call_id"),
        )


def read_messages(messages: Any) -> tuple[Message, ...]:
    """Messages from a str (one user's turn), a message, OpenAI's dictionaries, or a mix of them.

    Raises:
        ArgumentError: there is none, or something else is among them.
    """
    if isinstance(messages, str | Message | Mapping):
        messages = [messages]
    if not isinstance(messages, Iterable):
        raise ArgumentTypeError("Messages are expected.", given=type(messages).__name__,
                                expected="a str, a Message, or a list of messages")  # fmt: skip
    found = []
    for message in messages:
        if isinstance(message, str):
            message = Message("user", message)  # noqa: PLW2901 - the forms become one
        elif isinstance(message, Mapping):
            message = Message.from_dict(message)  # noqa: PLW2901
        elif not isinstance(message, Message):
            raise ArgumentTypeError("This is no message.", given=repr(message)[:200],
                                    expected="a Message, a str or a dictionary")  # fmt: skip
        found.append(message)
    if not found:
        raise ArgumentError("There is no message to answer.", given="[]")
    return tuple(found)
