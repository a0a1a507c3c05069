"""`Request`: all that decides what a model answers; and the messages that it is made of."""

import base64
import mimetypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked, reading
from pullback.internal._text import shown
from pullback.text.lm._json import canonical, check_schema, digest_of, json_schema, parse_json
from pullback.text.lm._secrets import is_secret, masked

__all__ = ["Content", "Image", "Message", "Request", "Text", "Tool", "ToolCall"]

Detail = Literal["auto", "low", "high"]


@dataclass(frozen=True)
class Text:
    """A piece of text in a message.

    Example:
        >>> Text("hello").to_dict()
        {'type': 'text', 'text': 'hello'}
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # by hand: each message has one
            raise ArgumentTypeError("A text block holds a str.", given=type(self.text).__name__)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this block."""
        return {"type": "text", "text": self.text}


@checked
@dataclass(frozen=True)
class Image:
    """An image in a message.

    Arguments:
        url: where it is: ``https://...``, or the image itself as ``data:image/png;base64,...``.
        detail: how closely a model should look: ``"auto"``, ``"low"`` or ``"high"``.

    Raises:
        ArgumentError: another kind of address.
        ArgumentTypeError: another detail.

    Example:
        >>> Image.from_bytes(b"...", "image/png").url
        'data:image/png;base64,Li4u'
    """

    url: str
    detail: Detail = "auto"

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://", "data:image/")):
            raise ArgumentError(
                "This is no address of an image.",
                given=repr(self.url)[:80],
                expected="https://..., http://... or data:image/...",
                mend="Image.from_file(path) or Image.from_bytes(data, media_type)",
            )

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str, detail: Detail = "auto") -> "Image":
        """An image from its encoded bytes, for example those of a PNG file."""
        if not media_type.startswith("image/"):
            raise ArgumentError("This is no type of an image.", given=repr(media_type),
                                expected="for example 'image/png'")  # fmt: skip
        encoded = base64.b64encode(data).decode("ascii")
        return cls(f"data:{media_type};base64,{encoded}", detail)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], detail: Detail = "auto") -> "Image":
        """An image from a file; its type is told by the name."""
        media_type = mimetypes.guess_type(str(path))[0] or ""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ArgumentError("The image cannot be read.", given=str(error)) from None
        return cls.from_bytes(data, media_type, detail)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's dictionary of this block."""
        return {"type": "image_url", "image_url": {"url": self.url, "detail": self.detail}}


Content = Text | Image


@checked
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
        return {"type": "function",
                "function": {**vars(self), "parameters": dict(self.parameters)}}  # fmt: skip


@checked
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
        form = "{'id': ..., 'type': 'function', 'function': {'name', 'arguments'}}"
        with reading("tool call", value, form):
            function = value["function"]
            return cls(str(value["id"]), str(function["name"]), str(function["arguments"]))


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


Role = Literal["system", "developer", "user", "assistant", "tool"]


@checked
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

    role: Role
    content: tuple[Content, ...] = ()
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)
    tool_call_id: str | None = field(default=None, kw_only=True)

    def __init__(
        self,
        role: Role,
        content: str | Content | Iterable[Any] = (),
        *,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str | None = None,
    ) -> None:
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
        content, calls = value.get("content"), value.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            raise ArgumentTypeError("The tool_calls of a message are a list.", given=shown(calls))
        return cls(
            value["role"],
            () if content is None else content,
            tool_calls=[ToolCall.from_dict(call) for call in calls],
            tool_call_id=value.get("tool_call_id"),
        )


def read_messages(messages: Any) -> tuple[Message, ...]:
    """Messages from a str (one user's turn), a message, OpenAI's dictionaries, or a mix."""
    alone = isinstance(messages, str | Message | Mapping) or not isinstance(messages, Iterable)
    found = tuple(map(_read_message, [messages] if alone else messages))
    if not found:
        raise ArgumentError("There is no message to answer.", given="[]")
    return found


def _read_message(value: Any) -> Message:
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return Message("user", value)
    if isinstance(value, Mapping):
        return Message.from_dict(value)
    raise ArgumentTypeError("This is no message.", given=shown(value, 200),
                            expected="a Message, a str or a dictionary")  # fmt: skip


_HEADERS = "Headers and keys belong to the client: OpenAI(api_key=..., headers=...)."
_FRACTIONS = {"temperature", "top_p", "frequency_penalty", "presence_penalty"}
_REFUSED = {
    "extra_query": _HEADERS,
    "extra_body": "Pass what is in it as options of their own.",
    "model": "The model is chosen where it is made: OpenAI(model).",
    "n": "Ask as many times as answers are wanted.",
    "stream": "Call stream or astream.",
    "stream_options": "Call stream or astream.",
    "timeout": "The time belongs to the client: OpenAI(timeout=...).",
}


@checked
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
    def of(
        cls,
        messages: Any,
        *,
        schema: Any = None,
        tools: Iterable[Tool] | None = None,
        **options: Any,
    ) -> "Request":
        """A request from the arguments of `LM.complete`.

        Raises:
            ArgumentError: something that is no message, schema or tool, or an option that is not
                plain JSON.
        """
        if schema is not None:
            check_schema(schema)
        for name in _FRACTIONS & options.keys():  # 1 and 1.0 are one request, of one digest
            if type(options[name]) is int and abs(options[name]) < 10:
                options[name] = float(options[name])
        asked = cls(read_messages(messages), options, schema, tuple(tools or ()))
        names = [tool.name for tool in asked.tools]
        if len(set(names)) < len(names):
            raise ArgumentError("Two tools have one name.", given=", ".join(names))
        named = [tool.to_dict() for tool in asked.tools]
        form = None if schema is None else json_schema(schema)
        for name, value in {**options, "schema": form, "tools": named}.items():
            mend = _REFUSED.get(name, _HEADERS if is_secret(name) else None)
            if mend is not None:
                raise ArgumentError("This option cannot be passed.", given=name, mend=mend)
            try:
                canonical(value)
            except (TypeError, ValueError, RecursionError) as error:  # which name no value
                raise ArgumentError("The options, tools and schema of a request are plain JSON.",
                                    given=f"{name}: {error}") from None  # fmt: skip
            masked(value)  # what looks like a key in it is a secret from now on
        return asked

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

    def written(self) -> dict[str, Any]:
        """The request as JSON that may be kept and shown: no secret of its options is in it."""
        whole = self.to_dict()
        return {**whole, "options": masked(whole["options"])}

    def digest(self, model: str) -> str:
        """SHA-256 of the request and the model's name: the same in any process."""
        return digest_of({"model": model, "request": self.to_dict()})
