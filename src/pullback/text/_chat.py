"""`chat`: a call of a language model as a differentiable operation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._arguments import checked
from pullback.tape import Variable
from pullback.text._critic import Critic, ModelCritic, criticised, current_critic
from pullback.text._failure import Failure, NoText, attempted
from pullback.text._joining import Operation, spoken, written
from pullback.text._module import Module, Parameter
from pullback.text._prompts import Template, fence_of, fields_of, fill
from pullback.text.lm import LM, Content, Finish, Image, Message, Text, Tool
from pullback.text.lm._json import json_schema
from pullback.text.lm._request import read_block

__all__ = ["ChatModule", "chat"]


_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, eq=False)
class Conversation:
    """The form of a conversation: its messages, of whose texts none but the place counts.

    Its Variables are the texts, of which some are templates, then the values of these fields; of
    one that is lax a value may have no field.
    """

    turns: tuple[Message, ...]
    templates: tuple[bool, ...]
    fields: tuple[str, ...]
    lax: bool = False

    @property
    def instructions(self) -> tuple[bool, ...]:
        """For each Variable, whether it is a text of a system or developer message."""
        texts = [turn for turn in self.turns for each in turn.content if isinstance(each, Text)]
        return (*[turn.role in _INSTRUCTING for turn in texts], *[False] * len(self.fields))

    def messages(self, variables: Sequence[Variable]) -> list[Message]:
        """The messages to send, the fields of their texts filled in."""
        data = list(map(written, variables))
        values = dict(zip(self.fields, data[len(self.templates) :], strict=True))
        texts = list(zip(data, self.templates, strict=False))
        used = {name for text, is_template in texts if is_template for name in fields_of(text)}
        unused = [name for name in values if name not in used]
        if unused and not self.lax:
            raise ArgumentError(
                f"No message has a field for the input {unused[0]!r}, so it would tell nothing.",
                given=", ".join(values), expected=", ".join(sorted(used)) or "no inputs",
                mend=f"Write {{{unused[0]}}} into a Template; other texts have no fields.",
            )  # fmt: skip
        filled = iter([
            fill(text, values, more=True) if is_template else text for text, is_template in texts
        ])  # fmt: skip
        return [replace(turn, content=_blocks(turn.content, filled)) for turn in self.turns]

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
    messages: Any, inputs: Mapping[str, Any] | None, *, lax: bool = False
) -> tuple[Conversation, list[Variable]]:
    """The form of a conversation, and its Variables; the arguments are those of `chat`.

    Of afnio's, which are lax, every text is a template, and not only each `Template`.
    """
    if isinstance(messages, str | Variable):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise ArgumentTypeError(
            "A conversation is a list of messages.", given=repr(messages)[:80],
            expected="[{'role': 'user', 'content': ...}, ...], not empty",
        )  # fmt: skip
    texts: list[Variable] = []
    turns = tuple([_turn(message, texts) for message in messages])
    templates = tuple([lax or isinstance(each, Template) for each in texts])
    values = inputs or {}
    given = [v if isinstance(v, Variable) else Variable(v) for v in values.values()]
    return Conversation(turns, templates, tuple(values), lax), [*texts, *given]


def _turn(message: Any, texts: list[Variable]) -> Message:
    if isinstance(message, Message):
        return replace(message, content=tuple([_block(each, texts) for each in message.content]))
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise ArgumentTypeError(
            "This is no message.", given=repr(message)[:80],
            expected="{'role': ..., 'content': a Variable, a text, or a list of them}",
        )  # fmt: skip
    content = () if message["content"] is None else message["content"]
    parts = content if isinstance(content, list | tuple) else [content]
    return Message.from_dict({**message, "content": [_block(part, texts) for part in parts]})


def _block(part: Any, texts: list[Variable]) -> Content:
    block = Text("") if isinstance(part, Variable) else read_block(part)
    if isinstance(block, Text):
        texts.append(part if isinstance(part, Variable) else Variable(block.text))
    return block


def _blocks(content: Sequence[Any], texts: Iterator[str]) -> Any:
    blocks = [next(texts) if isinstance(each, Text) else each for each in content]
    return blocks if any(isinstance(each, Image) for each in blocks) else "\n".join(blocks)


@dataclass(frozen=True, eq=False)
class Call:
    """All of a call but its texts."""

    lm: LM
    conversation: Conversation
    role: str
    critic: Any
    schema: Any = None
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class Chat(Operation):
    """One call of a language model; its critic says what its texts should change."""

    random = "drawn"
    _reads_roles = False  # a model is sent texts alone

    @staticmethod
    async def forward(call: Call, *variables: Variable) -> Variable:
        messages, asked = call.conversation.messages(variables), call.lm.acomplete
        with attempted() as failed:
            data = _data(
                call, await asked(messages, schema=call.schema, tools=call.tools, **call.options)
            )
        return Variable(_failed(call, failed[0]) if failed else data, call.role)

    @staticmethod
    async def backward(ctx: Any, feedback: Any) -> Any:
        call: Call = ctx.spec
        form = call.conversation
        return (None, *await criticised(
            ctx, call.critic, call.role, form.instructions, spoken(feedback),
            written=form.transcript,
        ))  # fmt: skip


@checked
def chat(
    lm: LM,
    messages: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    role: str = "answer",
    schema: Any = None,
    tools: Iterable[Tool] = (),
    critic: Critic | None = None,
    **options: Any,
) -> Variable:
    """What a language model answers, with feedback as its gradient.

    Arguments:
        lm: the model.
        messages: a text or Variable (one user's turn), or a list of dictionaries with a role and a
            content: a Variable, a text, an `Image`, or a list of them (texts go on lines of their
            own).
        inputs: values for the fields of each `Template` in them; in other texts braces are
            characters.
        role: what the answer is.
        schema: a JSON schema or pydantic model. The answer is then its data, and each field has a
            gradient of its own.
        tools: what the model may ask for. The answer is then a dict with ``"text"`` and
            ``"tool_calls"``, a list of dicts with ``"id"``, ``"name"`` and ``"arguments"``.
        critic: says what each text should change, given what is said of the answer; that of
            `use_critic` if None, else a `ModelCritic` that asks the same model.
        options: the model's own, such as ``temperature``.

    Raises:
        ArgumentError: a template has a field that no input fills, or the messages are none.
            Nothing was sent then.
        ModelError: the model cannot be asked.
        ReplyError: its answer is empty, cut off, withheld, or breaks the schema. While training and
            measuring, and inside `tolerate`, it is a `Failure` instead.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Scripted({"Hello": "Ciao"})
        >>> chat(lm, Template("Translate {word}."), {"word": "Hello"}).data
        'Ciao'
    """
    conversation, variables = read_conversation(messages, inputs)
    chosen = critic or current_critic() or ModelCritic(lm)
    call = Call(lm, conversation, role, chosen, schema, tuple(tools), options)
    return Chat.apply(call, *variables)


@checked
class ChatModule(Module):
    """One call of a language model with a system prompt, as a part of a pipeline.

    Arguments:
        lm: the model.
        system: the system prompt; a text becomes a `Parameter`, in which braces are characters.
        user: the template of the user's turn; a text becomes a `Template`.
        options: as of `chat`.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> translate = ChatModule(Scripted({"Hello": "Ciao"}), "Translate to Italian.", "{text}")
        >>> translate(text=Variable("Hello", role="English")).data
        'Ciao'
        >>> list(translate.state_dict())
        ['system']
    """

    def __init__(
        self, lm: LM, system: str | Variable, user: str | Variable = "{input}", **options: Any
    ) -> None:
        named = f"system prompt of {options.get('role', 'a call')}"
        self.system = system if isinstance(system, Variable) else Parameter(system, named)
        self.user = user if isinstance(user, Variable) else Template(user, "user template")
        self.lm = lm
        self.options = options

    def forward(self, **inputs: Any) -> Variable:
        """Ask, with these values for the fields."""
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]
        return chat(self.lm, messages, inputs, **self.options)


@checked
def count_calls(module: Module) -> int:
    """How many calls of models a module makes for a sample that asks each `ChatModule` once.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> count_calls(ChatModule(Scripted(["x"]), "Be brief."))
        1
    """
    return sum(isinstance(each, ChatModule) for each in module.modules())


def _data(call: Call, completion: Any) -> Any:
    if completion.finish is Finish.CONTENT_FILTER:
        raise ReplyError("The model's provider withheld the answer.", given="content_filter")
    if completion.finish is Finish.LENGTH:
        raise ReplyError("The answer of the model was cut off.", given=repr(completion.text[-60:]),
                         mend="Pass a larger max_tokens.")  # fmt: skip
    is_empty = not completion.text.strip() and not (call.tools and completion.tool_calls)
    if is_empty and (call.tools or call.schema is None):
        raise ReplyError("The model answered nothing.", given=repr(completion.text[:20]))
    if call.tools:
        return {"text": completion.text, "tool_calls": list(map(asdict, completion.tool_calls))}
    if call.schema is not None:
        if completion.finish is Finish.TOOL_CALLS:
            raise ReplyError("The model asked for a tool that it was not offered.")
        parsed = completion.parsed
        return parsed.model_dump(mode="json") if hasattr(parsed, "model_dump") else parsed
    return completion.text


def _failed(call: Call, failure: Failure) -> Any:
    """A failure in the form that an answer would have had, so that its fields can be selected."""
    if call.tools:
        return {"text": failure, "tool_calls": []}
    return failure if call.schema is None else _in_form(json_schema(call.schema), failure)


def _in_form(schema: Any, failure: Failure) -> Any:
    if not isinstance(schema, Mapping):  # true: anything
        return failure
    fields = schema.get("properties")
    if not isinstance(fields, Mapping) or not fields:
        kinds = [each for each in (schema, *schema.get("anyOf", ())) if isinstance(each, Mapping)]
        known = [each["type"] for each in kinds if "type" in each] or ["string"]
        return failure if any("string" in each for each in known) else NoText(failure.cause)
    return {name: _in_form(below, failure) for name, below in fields.items()}
