"""ChatCompletion: a call of a model, for one input or a batch."""

from typing import Any

from pullback import tape
from pullback.compat.afnio._blocks import check_messages, read_part
from pullback.compat.afnio._client import BackwardCritic, as_lm
from pullback.compat.afnio._variable import Variable, adopt, over_batch
from pullback.errors import ArgumentTypeError
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
        turns = [
            {**message, "content": [read_part(part) for part in _parts(message["content"])]}
            for message in messages
        ]
        critic = current_critic() or BackwardCritic()

        def ask(**given: tape.Variable) -> Any:
            conversation, variables = read_conversation(turns, given, unused=True, every=True)
            call = Call(lm, conversation, "chat completion", critic, options=options)
            return Chat.apply(call, *variables)

        return adopt(over_batch(ask, inputs or {}, "chat completion"))


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]
