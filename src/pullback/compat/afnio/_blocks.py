"""Messages and their typed content blocks: dicts told apart by their ``"type"``."""

from enum import StrEnum
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable

__all__ = [
    "ContentBlock",
    "DocumentBlock",
    "ImageBlock",
    "Message",
    "MultiTurnMessages",
    "ProviderBlock",
    "StopReason",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolUseBlock",
    "check_messages",
    "read_part",
]

# Typed dicts there; what they are at run time is a dict, told apart by its "type".
Message = ContentBlock = dict[str, Any]
TextBlock = ThinkingBlock = ImageBlock = DocumentBlock = ContentBlock
ToolUseBlock = ToolResultBlock = ProviderBlock = ContentBlock
MultiTurnMessages = list[Message]


class StopReason(StrEnum):
    """Why a model ended its turn."""

    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"


_FIELDS = {
    "text": {"text"}, "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id", "content"}, "thinking": {"thinking"}, "image": {"source"},
    "document": {"source"}, "provider": {"_provider", "_native_type", "payload"},
}  # fmt: skip


def check_messages(messages: Any) -> None:
    """Refuse what is no list of turns.

    Raises:
        TypeError: a turn is no dict of a role and a content, a Variable or a list of them.
    """
    if not isinstance(messages, list) or not messages:
        raise ArgumentTypeError("Messages are a list, not empty.", given=repr(messages)[:80])
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ArgumentTypeError("A message has a role and a content.", given=repr(message)[:80])
        content = message["content"]
        for part in content if isinstance(content, list) else [content]:
            if not isinstance(part, Variable | str | dict):
                raise ArgumentTypeError(
                    "The content of a message is a list of Variables.", given=repr(part)[:80]
                )


def read_part(block: Any) -> Any:
    """A content block as `pullback.text.chat` takes it: its text, or an image's dictionary.

    Raises:
        TypeError: the block is of no known type, lacks a field, or cannot be sent to a server of
            chat completions.
    """
    if not isinstance(block, dict) or block.get("type") == "image_url":
        return block
    kind = str(block.get("type"))
    if not _FIELDS.get(kind, {"type of a known kind"}) <= block.keys():
        raise ArgumentTypeError(
            "This is no content block.", given=repr(block)[:80], expected=", ".join(_FIELDS)
        )
    if kind == "text":
        return block["text"]
    if kind != "image":
        raise ArgumentTypeError(
            f"A {kind} block cannot be part of a message to chat completions.",
            given=repr(block)[:80], expected="text or image blocks",
        )  # fmt: skip
    source = block["source"]
    url = source.get("url") or source.get("image_url")
    if source.get("type") == "base64":
        url = f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}
