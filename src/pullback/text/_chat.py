"""`chat`: a call of a language model as a differentiable operation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.errors import ArgumentTypeError, ReplyError
from pullback.tape import Variable
from pullback.text._conversation import Conversation, read_conversation
from pullback.text._critic import Review, current_critic
from pullback.text._failure import Failure, attempted
from pullback.text._feedback import read_feedback
from pullback.text._joining import Fields, Format, format, heard, spoken
from pullback.text._module import Module, Parameter
from pullback.text._operation import Operation
from pullback.text._prompts import prompt
from pullback.text._replies import check_retries, retry_messages, shorten
from pullback.text._templates import FENCE, Template, fence_of, fields_of
from pullback.text.lm import LM, Finish, Tool
from pullback.text.lm._schema import json_schema

__all__ = ["Chat", "ChatModule", "ModelCritic", "chat"]


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

    @staticmethod
    async def forward(call: Call, *variables: Variable) -> Variable:
        messages = call.conversation.messages(variables)
        options = dict(call.options)
        if call.schema is not None:
            options["schema"] = call.schema
        if call.tools:
            options["tools"] = call.tools
        with attempted() as tried:
            data = _data(call, await call.lm.acomplete(messages, **options))
        return Variable(data if tried.failure is None else _failed(call, tried.failure), call.role)

    @staticmethod
    async def backward(ctx: Any, feedback: Any) -> Any:
        call: Call = ctx.spec
        *inputs, output = ctx.saved_variables
        said = spoken(feedback)
        if not said:  # an item of a batch that succeeded: nobody is asked
            return (None, *[None] * len(inputs))
        review = Review(
            call.role, tuple(inputs), output,
            tuple(
                telling or isinstance(value, Parameter)
                for telling, value in zip(call.conversation.instructions, inputs, strict=True)
            ),
            ctx.needs_input_grad[1:], said,
        )  # fmt: skip
        critic = call.critic
        with attempted() as tried:
            if hasattr(critic, "review_call"):
                told = await critic.review_call(call, review)
            else:
                told = await critic.review(review)
        return (None, *(told if tried.failure is None else [None] * len(inputs)))


def chat(
    lm: LM,
    messages: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    role: str = "answer",
    schema: Any = None,
    tools: Sequence[Tool] = (),
    critic: Any = None,
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
        ReplyError: its answer is empty, was withheld, or breaks the schema. While training and
            measuring, and inside `tolerate`, it is a `Failure` instead.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Scripted({"Hello": "Ciao"})
        >>> chat(lm, Template("Translate {word}."), {"word": "Hello"}).data
        'Ciao'
    """
    if not isinstance(lm, LM):
        raise ArgumentTypeError(
            "chat asks a language model.", given=type(lm).__name__, expected="an LM of text.lm"
        )
    conversation, variables = read_conversation(messages, inputs)
    chosen = critic or current_critic() or ModelCritic(lm)
    call = Call(lm, conversation, role, chosen, schema, tuple(tools), options)
    return Chat.apply(call, *variables)


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


class ModelCritic:
    """Asks a language model what the texts of a call should change.

    It is one more call for each call that is criticised, whatever the number of texts; it is an
    operation itself, so that under ``create_graph`` the critique can be criticised.

    Arguments:
        lm: the model.
        retries: how many more times to ask where the answer cannot be read.
        limit: how many characters of feedback are sent at most.
        options: the model's own.

    Raises:
        ReplyError: when asked: no answer could be read.
    """

    def __init__(self, lm: LM, *, retries: int = 2, limit: int = 8000, **options: Any) -> None:
        if not isinstance(lm, LM):
            raise ArgumentTypeError("A critic asks a language model.", given=type(lm).__name__)
        check_retries(retries)
        self.lm, self.retries, self.limit, self.options = lm, retries, limit, options

    async def review(self, review: Review) -> list[Any]:
        """One answer an input of any operation."""
        named = [f"{value.role or 'input'}: {{v{n}}}" for n, value in enumerate(review.inputs)]
        values: dict[str, Any] = {f"v{n}": value for n, value in enumerate(review.inputs)}
        what = review.purpose.replace("{", "{{").replace("}", "}}")  # the text around the fields
        return await self._ask(review, format("\n".join([what, *named]), **values))

    async def review_call(self, call: Call, review: Review) -> list[Any]:
        """One answer a text of a call of a model."""
        return await self._ask(review, Transcript.run(call.conversation, *review.inputs))

    async def _ask(self, review: Review, transcript: Variable) -> list[Any]:
        chosen = [number for number, wanted in enumerate(review.wanted) if wanted]
        if not chosen:
            return [None] * len(review.wanted)
        roles = tuple(review.inputs[number].role for number in chosen)
        fields = {
            "call": transcript,
            "answer": Written.run(None, review.output),
            "said": Bounded.run(self.limit, heard(review.feedback)),
            "parts": Parts.run(roles, *[review.inputs[number] for number in chosen]),
        }
        fence = fence_of({name: str(value._data) for name, value in fields.items()})
        fields[FENCE] = Variable(fence)
        messages = [
            {"role": role, "content": _filled(template, fields)}
            for role, template in prompt("feedback")
        ]
        told = await self._told(messages, roles)
        answers: list[Any] = [None] * len(review.wanted)
        for number, note in zip(chosen, told, strict=True):
            answers[number] = note if len(note) else None
        return answers

    async def _told(
        self, messages: list[dict[str, Any]], roles: tuple[str, ...]
    ) -> Sequence[Variable]:
        asked: list[dict[str, Any]] = messages
        for left in range(self.retries, -1, -1):
            conversation, variables = read_conversation(asked, None)
            call = Call(self.lm, conversation, "critique", self, options=self.options)
            said = ""
            try:
                answer = await Chat.run(call, *variables)
                said = str(answer._data)
                told = ReadFeedback.run(roles, answer)
            except ReplyError as error:
                if not left:
                    raise
                asked = [*messages, *retry_messages(str(error), said)]
                continue
            return told if isinstance(told, tuple) else (told,)
        raise ReplyError("No answer of the critic could be read.")


class Transcript(Operation):
    """A conversation as one text."""

    @staticmethod
    def forward(spec: Conversation, *variables: Variable) -> Variable:
        return Variable(spec.transcript(variables), "call")

    @staticmethod
    def backward(ctx: Any, feedback: Any) -> Any:
        return (None, *[feedback if need else None for need in ctx.needs_input_grad[1:]])


class Written(Operation):
    """Any value as a text."""

    takes_failures = True

    @staticmethod
    def forward(spec: None, value: Variable) -> Variable:
        data = value.data
        return Variable(str(data) if isinstance(data, str) else repr(data), value.role)

    @staticmethod
    def backward(ctx: Any, feedback: Any) -> Any:
        return None, None


class Bounded(Operation):
    """Feedback as one text of at most so many characters, each note with where it comes from."""

    @staticmethod
    def forward(limit: int, feedback: Variable) -> Variable:
        lines = []
        for note in getattr(feedback, "notes", (feedback,)):
            source = f"[on {note.origin.role}] " if note.origin and note.origin.role else ""
            lines.append(f"- {source}{note._data}")  # the history is that of the feedback
        kept, size = [], 0
        for line in lines:
            size += len(line)
            if kept and size > limit:
                break
            kept.append(shorten(line, limit))
        left = [f"- ({len(lines) - len(kept)} more left out)"] if len(kept) < len(lines) else []
        return Variable("\n".join([*kept, *left]), "what was said")

    @staticmethod
    def backward(ctx: Any, feedback: Any) -> Any:
        return None, feedback


class Parts(Operation):
    """The texts that feedback is asked for, numbered."""

    @staticmethod
    def forward(roles: tuple[str, ...], *variables: Variable) -> Variable:
        texts = [str(variable.data) for variable in variables]
        fence = fence_of({f"{number}": text for number, text in enumerate(texts)})
        named = [role.replace('"', "'") for role in roles]
        return Variable(
            "\n".join(
                f'<PART id="{number}" role="{role}" {fence}>\n{text}\n</PART {fence}>'
                for number, (role, text) in enumerate(zip(named, texts, strict=True))
            ),
            "parts",
        )

    @staticmethod
    def backward(ctx: Any, feedback: Any) -> Any:
        return (None, *[feedback if need else None for need in ctx.needs_input_grad[1:]])


class ReadFeedback(Operation):
    """The feedback on each part, read strictly out of a critic's answer."""

    @staticmethod
    def forward(roles: tuple[str, ...], answer: Variable) -> tuple[Variable, ...]:
        told = read_feedback(answer.data, len(roles))
        return tuple(
            Variable(text, f"feedback to {role or 'an input'}")
            for text, role in zip(told, roles, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *feedback: Any) -> Any:
        return None, list(feedback)


def _filled(template: str, fields: Mapping[str, Variable]) -> Variable:
    used: dict[str, Any] = {name: fields[name] for name in fields_of(template) if name in fields}
    spec = Fields(tuple(used), "critic's prompt")
    return Format.run(spec, Variable(template), *used.values())


def _data(call: Call, completion: Any) -> Any:
    if call.tools:
        calls = [
            {"id": each.id, "name": each.name, "arguments": each.arguments}
            for each in completion.tool_calls
        ]
        return {"text": completion.text, "tool_calls": calls}
    if call.schema is not None:
        parsed = completion.parsed
        return parsed.model_dump(mode="json") if hasattr(parsed, "model_dump") else parsed
    if completion.finish is Finish.CONTENT_FILTER:
        raise ReplyError("The model's provider withheld the answer.", given="content_filter")
    if not completion.text.strip():
        raise ReplyError("The model answered nothing.", given=repr(completion.text[:20]))
    return completion.text


def _failed(call: Call, failure: Failure) -> Any:
    """A failure in the form that an answer would have had, so that its fields can be selected."""
    if call.tools:
        return {"text": failure, "tool_calls": []}
    return failure if call.schema is None else _in_form(json_schema(call.schema), failure)


def _in_form(schema: Mapping[str, Any], failure: Failure) -> Any:
    fields = schema.get("properties")
    if not isinstance(fields, Mapping) or not fields:
        return failure
    return {name: _in_form(below, failure) for name, below in fields.items()}
