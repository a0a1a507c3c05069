"""A conversation whose texts are Variables: its form is read once, and filled in strictly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape import Variable
from pullback.text._joining import written
from pullback.text._templates import Template, fence_of, fields_of, fill
from pullback.text.lm import Image, Message

__all__ = ["Conversation", "read_conversation"]

_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, eq=False)
class Turn:
    """One message: its role, and its parts, each the number of a Variable or an Image."""

    role: str
    parts: tuple[int | Image, ...]
    ready: Message | None = None


@dataclass(frozen=True, eq=False)
class Conversation:
    """The form of a conversation, without its texts.

    Arguments:
        turns: its messages.
        count: how many Variables are texts of it; the rest are values of fields.
        fields: the names of the values of fields, or None if there are none.
        templates: for each text, whether it has fields; in the others braces are characters.
        unused: whether a value may have no field.
    """

    turns: tuple[Turn, ...]
    count: int
    fields: tuple[str, ...] | None
    templates: tuple[bool, ...] = ()
    unused: bool = False

    @property
    def instructions(self) -> tuple[bool, ...]:
        """For each Variable, whether it is a text of a system or developer message."""
        telling = {
            part for turn in self.turns if turn.role in _INSTRUCTING
            for part in turn.parts if isinstance(part, int)
        }  # fmt: skip
        return tuple(number in telling for number in range(self.count + len(self.fields or ())))

    def texts(self, variables: Sequence[Variable]) -> list[str]:
        """The texts as they are sent, their fields filled in.

        Raises:
            ArgumentError: a field has no value, or a value no field.
        """
        data = list(map(written, variables))
        if self.fields is None:
            return data[: self.count]
        values = dict(zip(self.fields, data[self.count :], strict=True))
        used: set[str] = set()
        texts = []
        for template, is_template in zip(data, self.templates, strict=False):
            if not is_template:
                texts.append(template)
                continue
            wanted = fields_of(template)
            used.update(wanted)
            texts.append(fill(template, {k: v for k, v in values.items() if k in wanted}))
        unused = [name for name in values if name not in used]
        if unused and not self.unused:
            raise ArgumentError(
                f"No message has a field for the input {unused[0]!r}, so it would tell nothing.",
                given=", ".join(values), expected=", ".join(sorted(used)) or "no inputs",
                mend=f"Write {{{unused[0]}}} into a Template; other texts have no fields.",
            )  # fmt: skip
        return texts

    def messages(self, variables: Sequence[Variable]) -> list[Message]:
        """The messages to send."""
        texts = self.texts(variables)
        return [turn.ready or Message(turn.role, _blocks(turn.parts, texts)) for turn in self.turns]

    def transcript(self, variables: Sequence[Variable]) -> str:
        """The conversation as one text, to be read by a critic."""
        messages = self.messages(variables)
        fence = fence_of({f"{n}": message.text for n, message in enumerate(messages)})
        lines = []
        for message in messages:
            images = sum(isinstance(block, Image) for block in message.content)
            seen = f" [with {images} image(s)]" if images else ""
            lines.append(f"[{message.role} {fence}]{seen}\n{message.text}")
        return "\n\n".join(lines)


def read_conversation(
    messages: Any,
    inputs: Mapping[str, Any] | None,
    unused: bool = False,
    *,
    every: bool = False,
) -> tuple[Conversation, list[Variable]]:
    """The form of a conversation, and its Variables.

    Arguments:
        messages: a text (one user's turn), or a list of `Message` or of dictionaries with a role
            and a content: a Variable, a text, an Image, or a list of them.
        inputs: values for the fields of its templates.
        unused: whether a value may have no field.
        every: whether every text is a template, and not only each `Template`.

    Raises:
        ArgumentError: there is no message, or it is none.
    """
    if isinstance(messages, str | Variable):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise ArgumentTypeError(
            "A conversation is a list of messages.", given=repr(messages)[:80],
            expected="[{'role': 'user', 'content': ...}, ...], not empty",
        )  # fmt: skip
    variables: list[Variable] = []
    turns = [_turn(message, variables) for message in messages]
    count = len(variables)
    names = None
    if inputs is not None:
        names = tuple(inputs)
        variables += [v if isinstance(v, Variable) else Variable(v) for v in inputs.values()]
    templates = tuple([every or isinstance(each, Template) for each in variables[:count]])
    if names is None and any(isinstance(each, Template) and each.fields for each in variables):
        names = ()
    return Conversation(tuple(turns), count, names, templates, unused), variables


def _turn(message: Any, variables: list[Variable]) -> Turn:
    if isinstance(message, Message) and (message.tool_calls or message.tool_call_id):
        return Turn(message.role, (), message)
    if isinstance(message, Message):
        message = {"role": message.role, "content": list(message.content)}
    if isinstance(message, Mapping) and message.keys() - {"role", "content"}:
        return Turn(str(message.get("role")), (), Message.from_dict(message))
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        raise ArgumentTypeError(
            "This is no message.", given=repr(message)[:80],
            expected="{'role': ..., 'content': a Variable, a text, or a list of them}",
        )  # fmt: skip
    Message(message["role"], "")  # refuses a role that there is not
    content = message["content"]
    parts = content if isinstance(content, list | tuple) else [content]
    return Turn(message["role"], tuple(_part(part, variables) for part in parts))


def _part(part: Any, variables: list[Variable]) -> int | Image:
    if not isinstance(part, Variable):
        [block] = Message("user", [part]).content
        if isinstance(block, Image):
            return block
        part = Variable(block.text)
    variables.append(part)
    return len(variables) - 1


def _blocks(parts: tuple[int | Image, ...], texts: list[str]) -> Any:
    if not any(isinstance(part, Image) for part in parts):
        return "\n".join(texts[part] for part in parts if isinstance(part, int))
    return [part if isinstance(part, Image) else texts[part] for part in parts]
