"""Typed content blocks: dicts told apart by their ``"type"``."""

from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable

__all__ = [
    "ContentBlock",
    "DocumentBlock",
    "ImageBlock",
    "Message",
    "ProviderBlock",
    "StopReason",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolUseBlock",
    "read_part",
]


class TextBlock(TypedDict):
    """A text, or a Variable of one."""

    type: Literal["text"]
    text: str | Variable
    citations: NotRequired[list[dict[str, Any]]]


class ToolUseBlock(TypedDict):
    """A model asks for a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(TypedDict):
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Any
    is_error: NotRequired[bool]


class ThinkingBlock(TypedDict):
    """What a model thought before it answered."""

    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str]


class ImageBlock(TypedDict):
    """An image, its source as the provider has it."""

    type: Literal["image"]
    source: dict[str, Any]


class DocumentBlock(TypedDict):
    """A document, its source as the provider has it."""

    type: Literal["document"]
    source: dict[str, Any]


class ProviderBlock(TypedDict):
    """What only one provider knows."""

    type: Literal["provider"]
    _provider: str
    _native_type: str
    payload: dict[str, Any]


ContentBlock = (
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | ImageBlock | DocumentBlock
    | ProviderBlock
)  # fmt: skip


class Message(TypedDict):
    """One turn."""

    role: Literal["user", "assistant", "system", "tool"]
    content: list[Any]
    _stop_reason: NotRequired[str]


class StopReason(StrEnum):
    """Why a model ended its turn."""

    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"


_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content"),
    "thinking": ("thinking",),
    "image": ("source",),
    "document": ("source",),
    "provider": ("_provider", "_native_type", "payload"),
}


def read_part(block: Any) -> Any:
    """A content block as `pullback.text.chat` takes it: its text, or an image's dictionary.

    Raises:
        TypeError: the block is of no known type, lacks a field, or cannot be sent to a server of
            chat completions.
    """
    if not isinstance(block, dict):
        return block
    kind = block.get("type")
    if kind == "image_url":
        return block
    if not isinstance(kind, str) or kind not in _FIELDS or not set(_FIELDS[kind]) <= block.keys():
        raise ArgumentTypeError(
            "This is no content block.", given=repr(block)[:80],
            expected="; ".join(f"{name}: {', '.join(fields)}" for name, fields in _FIELDS.items()),
        )  # fmt: skip
    if kind == "text":
        return block["text"]
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _address(block["source"])}}
    raise ArgumentTypeError(
        f"A {kind} block cannot be part of a message to chat completions.", given=repr(block)[:80],
        expected="text or image blocks",
    )  # fmt: skip


def _address(source: Any) -> Any:
    if source.get("type") == "base64":
        return f"data:{source['media_type']};base64,{source['data']}"
    return source.get("url") or source.get("image_url")
