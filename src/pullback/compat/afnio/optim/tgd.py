"""`TGD`: textual gradient descent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pullback import text
from pullback.compat.afnio._blocks import check_messages
from pullback.compat.afnio._client import as_lm
from pullback.compat.afnio._variable import plain
from pullback.compat.afnio.optim.optimizer import Optimizer
from pullback.errors import ArgumentTypeError
from pullback.text.optim import Constraint, keeps_fields

__all__ = ["TGD"]


class TGD(text.optim.TGD, Optimizer):
    """Textual gradient descent: see `pullback.text.optim.TGD`.

    Arguments:
        params: parameters, or groups of them.
        model_client: rewrites the texts.
        messages: in place of those that are sent; their placeholders are ``{role}``, ``{value}``,
            ``{feedback}``, ``{constraints}``, ``{earlier}`` and those of ``inputs``, and their
            answer stands between ``<IMPROVED>`` and ``</IMPROVED>``.
        inputs: values for placeholders of ``messages``.
        constraints: what each new text must satisfy, in words.
        momentum: how many past versions are shown, with the feedback that they got.
        completion_args: of the calls.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a placeholder has no value.
    """

    def __init__(
        self,
        params: Iterable[Any],
        model_client: Any,
        messages: Any = None,
        inputs: Mapping[str, Any] | None = None,
        constraints: list[Any] | None = None,
        momentum: int = 0,
        **completion_args: Any,
    ) -> None:
        told = [_constraint(each) for each in constraints or ()]
        prompt = None if messages is None else _prompt(messages, inputs or {})
        lm, options = as_lm(model_client, completion_args)
        super().__init__(
            params, lm, constraints=told, momentum=momentum, messages=prompt, **options
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[bad-override]
        """Rewrite each text that has feedback; gives what ``closure`` gave."""
        result = None if closure is None else closure()
        super().step()
        return result

    def _kept(self, parameter: Any) -> Constraint | None:
        return keeps_fields(parameter.data) if "{" in parameter.data else None  # any is a template


def _constraint(value: Any) -> Constraint:
    words = plain(value)
    if isinstance(words, Constraint):
        return words
    if not isinstance(words, str):
        raise ArgumentTypeError("A constraint is a text.", given=repr(words)[:80])
    return Constraint(words)


def _prompt(messages: Any, inputs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    check_messages(messages)
    parts = []
    for message in messages:
        content = message["content"]
        pieces = content if isinstance(content, list) else [content]
        template = "\n".join(str(plain(piece)) for piece in pieces)
        for name, value in inputs.items():
            shown = str(plain(value)).replace("{", "{{").replace("}", "}}")
            template = template.replace(f"{{{name}}}", shown)
        parts.append((message["role"], template))
    return tuple(parts)
