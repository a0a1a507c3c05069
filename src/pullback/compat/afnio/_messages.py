"""Messages of several turns, as afnio writes them."""

from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable

__all__ = ["MultiTurnMessages", "check_messages"]

MultiTurnMessages = list[dict[str, Any]]


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
