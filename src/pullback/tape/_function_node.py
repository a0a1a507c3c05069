"""`FunctionNode`: one application of a Function, and how its rules are called."""

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from pullback.errors import DefinitionError, UnsupportedError
from pullback.tape import _layout
from pullback.tape._concurrency import call_within_limit, run
from pullback.tape._context import Context
from pullback.tape._definition import Definition
from pullback.tape._feedback import notes_in
from pullback.tape._hooks import Origin
from pullback.tape._mode import Mode, mode, running
from pullback.tape._node import Edge, Node, Output, count
from pullback.tape._place import within
from pullback.tape._registry import Space
from pullback.tape._second_order import settle
from pullback.tape._variable import Variable

__all__ = ["FunctionNode"]


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
        new = [note for each in answers for note in notes_in(each) if note.origin is None]
        if new:
            passed_on = {id(note) for each in gradients for note in notes_in(each)}
            origin = Origin(self._name, self.role, self.sequence)
            for note in new:
                if id(note) not in passed_on:
                    note._more().origin = origin

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
