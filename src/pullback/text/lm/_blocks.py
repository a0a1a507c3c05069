"""What a message is made of: texts and images, and the calls of tools."""

import base64
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text.lm._json import parse_json

__all__ = ["Content", "Image", "Text", "Tool", "ToolCall", "read_block"]


@dataclass(frozen=True)
class Text:
    """A piece of text in a message.

    Example:
        >>> Text("hello").to_dict()
        {'type': 'text', 'text': 'hello'}
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ArgumentTypeError("A text block holds a str.", given=type(self.text).__name__)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this block."""
        return {"type": "text", "text": self.text}


@dataclass(frozen=True)
class Image:
    """An image in a message.

    Arguments:
        url: where it is: ``https://...``, or the image itself as ``data:image/png;base64,...``.
        detail: how closely a model should look: ``"auto"``, ``"low"`` or ``"high"``.

    Raises:
        ArgumentError: another kind of address or detail.

    Example:
        >>> Image.from_bytes(b"...", "image/png").url
        'data:image/png;base64,Li4u'
    """

    url: str
    detail: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(
            ("https://", "http://", "data:image/")
        ):
            raise ArgumentError(
                "This is no address of an image.",
                given=repr(self.url)[:80],
                expected="https://..., http://... or data:image/...",
                mend="Image.from_file(path) or Image.from_bytes(data, media_type)",
            )
        if self.detail not in {"auto", "low", "high"}:
            raise ArgumentError(
                "The detail of an image is unknown.", given=repr(self.detail),
                expected="'auto', 'low' or 'high'",
            )  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str, detail: str = "auto") -> "Image":
        """An image from its encoded bytes, for example those of a PNG file."""
        if not media_type.startswith("image/"):
            raise ArgumentError("This is no type of an image.", given=repr(media_type),
                                expected="for example 'image/png'")  # fmt: skip
        encoded = base64.b64encode(data).decode("ascii")
        return cls(f"data:{media_type};base64,{encoded}", detail)

    @classmethod
    def from_file(cls, path: str | Path, detail: str = "auto") -> "Image":
        """An image from a file; its type is told by the name."""
        media_type = mimetypes.guess_type(str(path))[0] or ""
        return cls.from_bytes(Path(path).read_bytes(), media_type, detail)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this block."""
        return {"type": "image_url", "image_url": {"url": self.url, "detail": self.detail}}


Content = Text | Image


@dataclass(frozen=True)
class Tool:
    """A tool that a model may ask for; pullback itself never calls it.

    Arguments:
        name: letters, digits, ``_`` and ``-``.
        description: when to use it, for the model.
        parameters: the JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("_", "").replace("-", "").isalnum():
            raise ArgumentError("The name of a tool is letters, digits, _ and -.",
                                given=repr(self.name))  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this tool."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """What a model asks of a tool.

    Arguments:
        id: ties the tool's answer, a message of role ``"tool"``, to this call.
        name: of the tool.
        arguments: the model's own text, which should be a JSON object; see `parsed`.
    """

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments, read as JSON.

        Raises:
            ReplyError: the model wrote something else.
        """
        return parse_json(self.arguments, f"the arguments for the tool {self.name!r}", kind=dict)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this call."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ToolCall":
        """A call from OpenAI's dictionary."""
        try:
            function = value["function"]
            return cls(str(value["id"]), str(function["name"]), str(function["arguments"]))
        except (KeyError, TypeError) as error:
            raise ArgumentError(
                "This is no tool call.", given=repr(value)[:200],
                expected="{'id': ..., 'type': 'function', 'function': {'name', 'arguments'}}",
            ) from error  # fmt: skip


def read_block(value: Any) -> Content:
    """A block from a str, a block, or OpenAI's dictionary of one."""
    if isinstance(value, Text | Image):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Mapping):
        if value.get("type") == "text" and "text" in value:
            return Text(value["text"])
        image = value.get("image_url")
        if value.get("type") == "image_url" and isinstance(image, Mapping) and "url" in image:
            return Image(image["url"], image.get("detail", "auto"))
    raise ArgumentTypeError(
        "A message is made of texts and images.", given=repr(value)[:200],
        expected="a str, Text, Image, or OpenAI's dictionary of one",
    )  # fmt: skip
