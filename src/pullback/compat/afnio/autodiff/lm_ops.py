"""ChatCompletion: a call of a model, for one input or a batch."""

from typing import Any

from pullback import tape, text
from pullback.compat.afnio._blocks import read_part
from pullback.compat.afnio._client import BackwardCritic, as_lm
from pullback.compat.afnio._messages import check_messages
from pullback.compat.afnio._variable import Variable, adopt
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text._chat import Call, Chat
from pullback.text._conversation import read_conversation
from pullback.text._critic import current_critic

__all__ = ["ChatCompletion"]


class ChatCompletion:
    """What a model answers to messages, their placeholders filled in."""

    @staticmethod
    def apply(
        forward_model_client: Any,
        messages: Any,
        inputs: dict[str, Any] | None = None,
        **completion_args: Any,
    ) -> Variable:
        """Ask; where an input is a list, once for each of its items, all at once.

        Raises:
            TypeError: the client, the messages or the inputs are none.
            ValueError: a placeholder has no input, or the lists differ in length. Nothing was
                sent then.
        """
        lm, options = as_lm(forward_model_client, completion_args)
        check_messages(messages)
        if inputs is not None and not isinstance(inputs, dict):
            raise ArgumentTypeError("The inputs are a dict.", given=type(inputs).__name__)
        given = {
            name: value if isinstance(value, tape.Variable) else Variable(value, name)
            for name, value in (inputs or {}).items()
        }
        turns = [
            {**message, "content": [read_part(part) for part in _parts(message["content"])]}
            for message in messages
        ]
        critic = current_critic() or BackwardCritic()

        def ask(*values: tape.Variable) -> Any:
            named = dict(zip(given, values, strict=True))
            conversation, variables = read_conversation(turns, named, unused=True, every=True)
            call = Call(lm, conversation, "chat completion", critic, options=options)
            return Chat.apply(call, *variables)

        return adopt(over_batch(ask, list(given.values()), "chat completion"))


def over_batch(ask: Any, values: list[tape.Variable], role: str) -> Any:
    """Run a callable, or one run for each item where values are lists of one length."""
    sizes = {len(value._data) for value in values if isinstance(value._data, list)}
    if not sizes:
        return ask(*values)
    if len(sizes) != 1 or 0 in sizes:
        raise ArgumentError("The inputs of a batch differ in length, or are empty.",
                            given=", ".join(map(str, sorted(sizes))))  # fmt: skip
    dims = tuple(0 if isinstance(value._data, list) else None for value in values)
    result = tape.vmap(ask, in_dims=dims)(*values)
    for each in result if isinstance(result, tuple) else (result,):
        each.role = role
    return result


def check_evaluation(result: text.Evaluation) -> tuple[Any, Any]:
    """A score and explanation with afnio's Variables."""
    return adopt(result.score), adopt(result.explanation)


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]
