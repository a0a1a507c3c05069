"""Past first order a Function is right or refused, by what the record shows.

A recorded rule is differentiated as it is written. What it reads as plain data (``.data``, a number
on ``ctx``, an intermediate that forward saved) has no history, so a derivative through it would be
silently zero. A rule that runs while it is recorded is therefore watched, and what it read so is
known: its gradient stays, tied to a node that refuses to be differentiated with respect to that. No
rule is run a second time and no point is tried, so nothing depends on values or order. What forward
leaves in a container that backward holds too, captured or as a default, counts as read. Not seen
are globals, private attributes, attributes of classes and instances, files and other threads: a
number that takes such a way has no derivative, as in torch.
"""

from collections.abc import Sequence
from typing import Any

from pullback.errors import UnsupportedError
from pullback.tape._feedback import Feedback
from pullback.tape._mode import mode
from pullback.tape._node import Edge, Node, Output, edge_of
from pullback.tape._registry import space_of
from pullback.tape._variable import Variable, wrap

__all__ = ["hooked", "settled"]


class _Refusal(Node):
    """Hands a gradient on, tied to what it depends on without a history.

    A gradient that it hands on is multiplied, further down, by what has that hidden dependence: so
    while that is recorded it is tied again.
    """

    __slots__ = ("error", "outputs")
    linear = "first"

    def __init__(self, error: UnsupportedError, gradient: Variable, causes: Sequence[Edge]) -> None:
        super().__init__("RefusalBackward", (edge_of(gradient), *causes))
        self.error = error
        self.outputs = (Output(space_of(gradient._data), gradient.role, None, True),)

    def pull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool, later: Any
    ) -> Sequence[Any]:
        """Pass the gradient on where nothing is asked of the rest."""
        if needed is None or any(needed[1:]):
            raise self.error
        return (self._again(gradients[0], create_graph), *[None] * (len(self._next) - 1))

    def push(self, tangents: Any) -> list[Any]:
        """Pass the tangent on where the rest has none."""
        if any(tangent is not None for tangent in tangents[1:]):
            raise self.error
        return [self._again(tangents[0], mode.get().grad)]

    def _again(self, gradient: Any, recorded: bool) -> Any:
        return _tied(gradient, self.error, self._next[1:]) if recorded else gradient


def _tied(
    gradient: Any, error: UnsupportedError, causes: Sequence[Edge], passed_on: Sequence[Any] = ()
) -> Any:
    if gradient is None or any(gradient is each for each in passed_on):
        return gradient
    if isinstance(gradient, Feedback):
        notes = [_tied(note, error, causes, passed_on) for note in gradient.notes]
        return Feedback(notes, gradient.role)
    twin = wrap(gradient._data, gradient.role, _Refusal(error, gradient, causes))
    twin._origin = gradient._origin
    return twin


def settled(
    node: Any, rule: str, read: Sequence[Any] | None, answers: Sequence[Any],
    received: Sequence[Any] = (),
) -> list[Any]:  # fmt: skip
    """Let pass what is right past first order; tie the rest to a refusal.

    What the rule has read is None where nothing was recorded, or needs watching.
    """
    once = node.definition.once and rule == "backward"
    left = any(map(bool, node.definition.shared))  # what lies there has no history
    if read is None or not (once or read or left):
        return list(answers)
    around = mode.get().watch
    if around is not None:
        around.extend([each for each in read if isinstance(each, tuple)])
    hidden = [each for each in read if isinstance(each, str)]
    hidden += ["what forward left outside of ctx"] if left else []
    causes = [edge_of(each) for each in read if isinstance(each, Variable)]
    causes += node._next if hidden or once else ()
    if once:
        causes += [edge_of(each) for each in received if each is not None]
        received = ()
        error = UnsupportedError(
            f"{node.title()} is declared once_differentiable and was differentiated twice.",
            mend="Write its backward in operations on Variables, and drop the decorator.",
        )
    else:
        error = UnsupportedError(
            f"The {rule} of {node.title()} reads {[*hidden, 'the data of a Variable'][0]} as plain "
            "data, so the derivative of what it gives is not known.",
            mend="Compute with the Variables; save inputs and outputs, not intermediates.",
        )
    return _all_tied(answers, error, causes, received)


def hooked(
    node: Node, read: Sequence[Any], answers: Sequence[Any], received: Sequence[Any]
) -> list[Any]:
    """What hooks gave, by the same rule: what one has read as plain data has no history."""
    causes = [edge_of(each) for each in read if isinstance(each, Variable)]
    error = UnsupportedError(
        f"A hook of {node.title()} reads the data of a gradient as plain data, so the derivative "
        "of what it gives is not known.",
        mend="Compute with the gradient itself.",
    )
    return _all_tied(answers, error, causes, received)


def _all_tied(
    answers: Sequence[Any], error: UnsupportedError, causes: Sequence[Edge], received: Sequence[Any]
) -> list[Any]:
    """Each answer tied, but for those that are handed on as they were received."""
    causes = [edge for edge in dict.fromkeys(causes) if edge[0] is not None]
    if not causes:
        return list(answers)
    passed_on = [each for given in received for each in (given, *getattr(given, "notes", ()))]
    return [_tied(answer, error, causes, passed_on) for answer in answers]
