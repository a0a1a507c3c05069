"""`FunctionNode`: one application of a Function, and how its rules are called.

Past first order it is right or refused, by what the record shows. A recorded rule is differentiated
as it is written. What it reads as plain data (``.data``, a number on ``ctx``, an intermediate that
forward saved) has no history, so a derivative through it would be silently zero. A rule that runs
while it is recorded is therefore watched, and what it read so is known: its gradient stays, tied to
a node that refuses to be differentiated with respect to that. No rule is run a second time and no
point is tried, so nothing depends on values or order. What forward leaves in a container that
backward holds too, captured or as a default, counts as read. Not seen are globals, private
attributes, attributes of classes and instances, files and other threads: a number that takes such a
way has no derivative, as in torch.
"""

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from pullback.errors import DefinitionError, UnsupportedError
from pullback.tape import _layout
from pullback.tape._concurrency import call_within_limit, run, within
from pullback.tape._context import Context, at_edge
from pullback.tape._definition import Definition
from pullback.tape._feedback import Feedback, notes_in
from pullback.tape._hooks import Origin
from pullback.tape._mode import Mode, mode, running
from pullback.tape._node import Edge, Node, Output, count, edge_of
from pullback.tape._registry import Space, space_of
from pullback.tape._variable import Variable, wrap

__all__ = ["FunctionNode", "settle"]


class Refusal(Node):
    """Hands a gradient on, tied to what it depends on without a history."""

    __slots__ = ("error", "outputs")
    linear = "first"

    def __init__(
        self, error: UnsupportedError, gradient: Variable, causes: Sequence[Variable]
    ) -> None:
        super().__init__("RefusalBackward", map(edge_of, (gradient, *causes)))
        self.error = error
        self.outputs = (Output(space_of(gradient._data), gradient.role, None, True),)

    def pull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool, later: list[Any]
    ) -> Sequence[Any]:
        """Pass the gradient on where nothing is asked of the rest."""
        if needed is None or any(needed[1:]):
            raise self.error
        return (gradients[0], *[None] * (len(self._next) - 1))

    def push(self, tangents: Any) -> list[Any]:
        """Pass the tangent on where the rest has none."""
        if any(tangent is not None for tangent in tangents[1:]):
            raise self.error
        return [tangents[0]]


def settle(
    node: Any,
    rule: str,
    read: Sequence[Any] | None,
    answers: Sequence[Any],
    received: Sequence[Any] = (),
) -> list[Any]:
    """Let pass what is right past first order; tie the rest to a refusal.

    Arguments:
        node: the application of a Function.
        rule: what ran, in words.
        read: what it has read as plain data, Variables and words; None where nothing was recorded,
            or needs watching.
        answers: the gradients or tangents that it gave.
        received: the gradients that it was given.
    """
    once = node.definition.once and rule == "backward"
    left = any(map(bool, node.definition.shared))  # what lies there has no history
    if read is None or not (once or read or left):
        return list(answers)
    inputs = [at_edge(0.0, "", edge) for edge in node._next if edge[0] is not None]
    if once:
        error = UnsupportedError(
            f"{node.title()} is declared once_differentiable and was differentiated twice.",
            mend="Write its backward in operations on Variables, and drop the decorator.",
        )
        causes, received = [*inputs, *(each for each in received if each is not None)], ()
    else:
        hidden = [each for each in read if isinstance(each, str)]
        if left:
            hidden.append("what forward left outside of ctx")
        error = UnsupportedError(
            f"The {rule} of {node.title()} reads {[*hidden, 'the data of a Variable'][0]} as plain "
            "data, so the derivative of what it gives is not known.",
            mend="Compute with the Variables; save inputs and outputs, not intermediates.",
        )
        causes = [each for each in read if isinstance(each, Variable)]
        causes += inputs if hidden else []
    causes = [variable for variable in causes if variable._requires_grad]
    passed_on = [*received, *(note for each in received for note in getattr(each, "notes", ()))]

    def tied(gradient: Any) -> Any:
        if not causes or gradient is None or any(gradient is each for each in passed_on):
            return gradient
        if isinstance(gradient, Feedback):
            return Feedback(map(tied, gradient.notes), gradient.role)
        twin = wrap(gradient._data, gradient.role, Refusal(error, gradient, causes))
        twin._origin = gradient._origin
        return twin

    return list(map(tied, answers))


class FunctionNode(Node):
    """One application of a Function.

    Arguments:
        definition: its rules.
        edges: where the gradients of the input Variables flow to.
        context: what forward saved.
        layout: where the Variables are among the arguments.
        spaces: the spaces of the input Variables.
    """

    __slots__ = ("context", "definition", "layout", "outputs", "spaces", "waits")

    def __init__(
        self,
        definition: Definition,
        edges: tuple[Edge, ...],
        context: Context,
        layout: _layout.Layout,
        spaces: tuple[Space, ...],
    ) -> None:
        self._name = definition.node_name
        self._next = edges
        self._hooks = self._prehooks = self._retained = None
        self.sequence = next(count)
        self.definition = definition
        self.waits = definition.waits
        self.context = context
        self.layout = layout
        self.spaces = spaces
        self.outputs: tuple[Output, ...] = ()

    def released(self) -> None:
        """Forget the saved values after a backward pass that does not retain the graph."""
        self.context.release()

    @property
    def linear(self) -> str:  # type: ignore[bad-override]
        """What its Function is linear in; see `Definition`."""
        return self.definition.linear

    def pull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool, later: list[Any]
    ) -> Sequence[Any]:
        """Run backward."""
        rule, args = self.backward_call(gradients, needed)
        watch = self._watch() if create_graph else None
        if watch is None:
            returned = rule(*args)
        else:
            with running(watch):
                returned = rule(*args)
        return self._sent(returned, gradients, needed, watch)

    async def apull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool
    ) -> Sequence[Any]:
        """Run backward where it waits, at its place, when there is one free."""
        rule, args = self.backward_call(gradients, needed)
        watch = self._watch() if create_graph else None
        asynchronous = "backward" in self.definition.asynchronous
        with running(watch or mode.get()), within((*self.context._place, "backward")):
            returned = await call_within_limit(rule, args, asynchronous)
        return self._sent(returned, gradients, needed, watch)

    def _watch(self) -> Mode | None:
        if self.definition.trusted:
            return None
        # A rule that is not differentiable itself is not recorded either.
        return Mode(not self.definition.once, [])

    def _sent(
        self, returned: Any, gradients: Any, needed: Sequence[bool] | None, watch: Mode | None
    ) -> Sequence[Any]:
        sent = self.backward_answer(returned, gradients, needed)
        if watch is not None:
            sent = settle(self, "backward", watch.watch, sent, gradients)
        for hook in () if self._hooks is None else list(self._hooks.values()):
            answer = hook(tuple(sent), tuple(gradients))
            if answer is not None:
                sent = self._all_hooked(self.spaces, answer)
        return sent

    def backward_call(
        self, gradients: Sequence[Any], needed: Sequence[bool] | None
    ) -> tuple[Any, tuple[Any, ...]]:
        """The backward rule and what to call it with.

        Arguments:
            gradients: one an output, None where nothing arrived.
            needed: for each edge, whether its gradient is wanted; None if all that can be.
        """
        rule = self.definition.backward
        if rule is None:
            raise DefinitionError(
                f"{self.title()} has no backward.", mend="Define backward, or vjp, on the Function."
            )
        context = self.context
        if context._phase == "released":  # its error names the node
            context._node = weakref.ref(self)
        if needed is not None:
            context = context.with_needs(_layout.needs(self.layout, needed))
        if context._materialize and (len(gradients) > 1 or gradients[0] is None):
            gradients = [
                output.space.zero() if gradient is None and output.space is not None else gradient
                for gradient, output in zip(gradients, self.outputs, strict=True)
            ]
        return rule, (context, *gradients)

    def backward_answer(
        self, returned: Any, gradients: Sequence[Any], needed: Sequence[bool] | None
    ) -> Sequence[Any]:
        """One gradient an edge, each of the space of its input, from what the rule returned.

        Raises:
            DefinitionError: the number or kind of the gradients is wrong.
        """
        answers = returned if type(returned) is tuple else (returned,)
        if self.layout is None and self.definition.trusted:
            return answers
        if self.layout is not None or len(answers) != len(self._next):
            answers = self._matched(answers)
        result: list[Any] = []
        texts: list[Variable] = []
        for answer, (node, _), space in zip(answers, self._next, self.spaces, strict=True):
            index = len(result)
            if answer is None or node is None or not (needed is None or needed[index]):
                result.append(None)
                continue
            if type(answer) is Variable and type(answer._data) is space.settled:
                result.append(answer)
            else:
                wrong = functools.partial(self._wrong_kind, index)
                result.append(space.conform(answer, wrong))
            if space.textual:
                texts.append(result[-1])
        if texts:
            self._sign(texts, gradients)
        return result

    def _matched(self, answers: tuple[Any, ...]) -> Sequence[Any]:
        """One answer an edge, read out of one an argument."""
        expected = len(self._next if self.layout is None else self.layout)
        if len(answers) != expected:
            beyond = answers[expected:]
            if len(answers) < expected or any(answer is not None for answer in beyond):
                raise DefinitionError(
                    f"{self.title()} returned a wrong number of gradients.",
                    given=str(len(answers)),
                    expected=f"{expected}, one for each argument of forward",
                    mend="Return None for an argument that has no gradient.",
                )
            answers = answers[:expected]
        if self.layout is None:
            return answers
        return _layout.match(self.layout, answers, self._wrong_kind)

    def _wrong_kind(self, index: int, detail: str) -> Exception:
        return DefinitionError(
            f"{self.title()} returned a gradient of the wrong kind for input {index}: {detail}."
        )

    def _sign(self, answers: Sequence[Variable], gradients: Sequence[Any]) -> None:
        """Say on new notes where they come from."""
        origin, passed_on = None, set()
        for each in answers:
            for note in notes_in(each):
                if note._origin is not None:
                    continue
                if origin is None:
                    passed_on = {id(note) for each in gradients for note in notes_in(each)}
                    origin = Origin(self._name, self.role, self.sequence)
                if id(note) not in passed_on:
                    note._origin = origin

    def push(self, tangents: Sequence[Any]) -> list[Any] | None:
        """Run jvp; None where there is none, so that it is to be derived.

        Raises:
            DefinitionError: the number or kind of the tangents that it gives is wrong.
        """
        rule = self.definition.jvp
        if rule is None:
            return None
        needed = [tangent is not None for tangent in tangents]
        context = self.context.with_needs(_layout.needs(self.layout, needed), "jvp")
        if context._materialize:
            tangents = [
                space.zero() if tangent is None else tangent
                for tangent, space in zip(tangents, self.spaces, strict=True)
            ]
        if self.layout is not None:
            tangents = _layout.replace(self.layout, None, tangents)
        now = mode.get().grad
        watch = Mode(now, [] if now and not self.definition.trusted else None)
        with running(watch):
            returned = rule(context, *tangents)
            if "jvp" in self.definition.asynchronous:
                returned = run(returned)
        return settle(self, "jvp", watch.watch, self._tangents(returned))

    def _tangents(self, returned: Any) -> list[Any]:
        """One tangent an output, each of the space of the output."""
        answers = returned if type(returned) is tuple else (returned,)
        if len(answers) != len(self.outputs):
            raise DefinitionError(
                f"The jvp of {self.title()} returned a wrong number of tangents.",
                given=str(len(answers)), expected=f"{len(self.outputs)}, one for each output",
            )  # fmt: skip
        result: list[Any] = []
        for index, (answer, output) in enumerate(zip(answers, self.outputs, strict=True)):
            if output.space is None or not output.differentiable:
                result.append(None)
            elif answer is None:
                raise UnsupportedError(
                    f"The jvp of {self.title()} returned None for output {index}, which carries a "
                    "tangent.",
                    expected="a Variable; a zero where nothing changes",
                )
            else:
                complain = lambda detail, i=index: DefinitionError(  # noqa: E731
                    f"The jvp of {self.title()} returned a tangent of the wrong kind for output "
                    f"{i}: {detail}."
                )
                result.append(output.space.conform(answer, complain))
        return result
