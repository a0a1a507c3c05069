"""`Application`: one application of a Function. It runs forward, and is the node of backward."""

from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import DefinitionError, GraphError, UnsupportedError
from pullback.tape import _layout
from pullback.tape._concurrency import advance, call_within_limit, run, within
from pullback.tape._context import NOTHING_KEPT, Context, freed, kept, stamp_of
from pullback.tape._definition import Definition
from pullback.tape._feedback import Feedback, Origin, notes_in
from pullback.tape._mode import Mode, mode, running
from pullback.tape._node import Node, Output, count, edge_of
from pullback.tape._refusal import settled
from pullback.tape._registry import Space, space_of
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["Application"]


class Application(Node):
    """One application of a Function, to arguments in the order of its forward."""

    # args, context, inputs, stamps and watch are there until the end of forward only.
    __slots__ = (
        "args", "attributes", "constants", "context", "definition", "inputs", "kept", "layout",
        "needs", "outputs", "place", "recorded", "spaces", "stamps", "versions", "waits", "watch",
    )  # fmt: skip

    def __init__(self, definition: Definition, args: tuple[Any, ...]) -> None:
        self._name = definition.node_name
        self._hooks = self._prehooks = self._retained = None
        self.definition = definition
        self.waits = "backward" in definition.waiting
        self.args = args
        self.inputs, self.layout = _layout.find(args)
        now = mode.get()
        flags = [value._requires_grad for value in self.inputs]
        self.recorded = now.grad and True in flags
        if self.recorded:
            self._next = tuple(map(edge_of, self.inputs))
            self.sequence = next(count)  # above that of all that it leads to
        else:
            flags = [False] * len(flags)
        self.needs = _layout.needs(self.layout, flags)
        self.context = Context(self, self.needs, "forward")
        if definition.waiting:
            self.place = advance()
        self.watch: list[Any] = []
        if now.watch is not None and not now.grad:
            now.watch.extend([value for value in self.inputs if value._requires_grad])
        if not definition.trusted:
            self.stamps = [(value._version, stamp_of(value._data)) for value in self.inputs]

    def forward(self) -> Any:
        """Run forward here; of an operation that waits, at its place."""
        if not self.definition.waiting:
            return self._forward()
        with within(self.place):
            return self._forward()

    def _forward(self) -> Any:
        definition = self.definition
        token = mode.set(Mode(False, self.watch))
        try:
            if definition.setup_context is None:
                return definition.forward(self.context, *self.args)
            return self.set_up(definition.forward(*self.args))
        finally:
            mode.reset(token)

    async def aforward(self) -> Any:
        """Run forward, awaited or in a thread if it waits, within the limit."""
        definition = self.definition
        if "forward" not in definition.waiting:
            return self.forward()
        args = self.args if definition.setup_context else (self.context, *self.args)
        with running(Mode(False, self.watch)), within(self.place):
            return self.set_up(await call_within_limit(definition.forward, args))

    def set_up(self, raw: Any) -> Any:
        """Run setup_context, in the split form, on what forward gave."""
        if self.definition.setup_context is not None:
            with running(Mode(False, self.watch)):
                self.definition.setup_context(self.context, self.args, raw)
        return raw

    def finish(self, raw: Any) -> Any:
        """Put the outputs of forward on the tape, if it keeps to the contract."""
        if self.watch:
            self._refuse_hidden()
        outputs = raw if type(raw) is tuple else (raw,)
        if not self.definition.trusted:
            self._check_outputs(outputs)
            self._check_marks(outputs)
        made = self._record(outputs) if self.recorded else list(map(self._unrecorded, outputs))
        del self.args, self.context, self.inputs, self.watch
        return tuple(made) if type(raw) is tuple else made[0]

    def _record(self, outputs: tuple[Any, ...]) -> list[Any]:
        ctx = self.context
        dirty, constant = ctx._dirty, ctx._non_differentiable
        self.spaces = tuple([space_of(value._data) for value in self.inputs])
        made, records = [], []
        for number, value in enumerate(outputs):
            if not isinstance(value, Variable):
                made.append(value)
                records.append(Output(None, "", None, False))
                continue
            space = space_of(value._data)
            carries = space.differentiable and not (constant and _among(value, constant))
            records.append(Output(space, value.role, value._data if space.plain else None, carries))
            settle = _rebase if dirty and _among(value, dirty) else _twin
            made.append(settle(value, self if carries else None, number))
        self.outputs = tuple(records)
        self.kept, self.versions = kept(ctx, self.inputs, outputs, made)
        if not self.definition.trusted:
            self.constants = tuple([arg for arg in self.args if not isinstance(arg, Variable)])
            self.attributes = ctx.__dict__  # what a rule sets is there for the next run
            ctx._phase = "backward"
        else:
            self.constants = ()
        return made

    def _unrecorded(self, value: Any) -> Any:
        if not isinstance(value, Variable):
            return value
        if _among(value, self.context._dirty):
            value._version += 1
            return value
        return _twin(value, None, 0)

    def _refuse_hidden(self) -> None:
        """Refuse Variables that forward reads and was not given: their gradient would be lost."""
        hidden = [
            value for value in self.watch
            if isinstance(value, Variable) and not _among(value, self.inputs)
        ]  # fmt: skip
        now = mode.get()
        if hidden and now.grad:
            raise DefinitionError(
                f"{self.definition.name}.forward reads a Variable that requires a gradient and "
                "is none of its arguments, so its gradient would be lost.",
                given=describe(hidden[0]),
                mend="Pass it to apply as an argument, or its detach() if it is a constant.",
            )
        if now.watch is not None:
            now.watch.extend(hidden)

    def _check_outputs(self, outputs: tuple[Any, ...]) -> None:
        found = False
        for value in outputs:
            if isinstance(value, Variable):
                found = True
            elif _layout.find((value,))[0]:
                raise DefinitionError(
                    f"{self.definition.name}.forward returned Variables inside a "
                    f"{type(value).__name__}, where no gradient could come back to them.",
                    expected="a Variable, or a tuple of Variables and plain values",
                    mend="Return a tuple, or one Variable whose data is a list or dict.",
                )
        if self.recorded and not found:
            raise DefinitionError(
                f"{self.definition.name}.forward returned no Variable, so no gradient could come "
                "back.",
                given=type(outputs[0]).__name__ if outputs else "an empty tuple",
                mend="Return Variable(value).",
            )

    def _check_marks(self, outputs: tuple[Any, ...]) -> None:
        name, dirty = self.definition.name, self.context._dirty
        for value in dirty:
            if not _among(value, self.inputs):
                raise DefinitionError(f"{name} marks a Variable dirty that is no input.")
            if not _among(value, outputs):
                raise DefinitionError(
                    f"{name} marks an input dirty that it does not return.",
                    mend="Return the input itself.",
                )
            if self.recorded and value._requires_grad and value._node is None:
                raise GraphError(
                    f"A leaf that requires a gradient was changed in place by {name}.",
                    given=describe(value), mend="Give it a value computed from the leaf.",
                )  # fmt: skip
        for value in self.context._non_differentiable:
            if not _among(value, outputs):
                raise DefinitionError(f"{name} marks as non-differentiable what is no output.")
        for value, (version, stamp) in zip(self.inputs, self.stamps, strict=True):
            changed = value._version != version or stamp_of(value._data) != stamp
            if changed and not _among(value, dirty):
                raise DefinitionError(
                    f"{name}.forward changes an input in place and does not say so.",
                    given=describe(value), mend="Call ctx.mark_dirty(input), and return it.",
                )  # fmt: skip
        del self.stamps

    # The node: how its rules are called, and what becomes of their answers.

    def released(self) -> None:
        """Forget the saved values after a backward pass that does not retain the graph."""
        if self.versions is not None:
            self.kept, self.versions = NOTHING_KEPT, None
        elif self.kept:
            self.kept = freed(self.kept)

    def _view(self, phase: str, wanted: Sequence[bool] | None) -> Context:
        """The ``ctx`` of one run of a rule."""
        needs = self.needs if wanted is None else _layout.needs(self.layout, wanted)
        ctx = Context(self, needs, phase)
        if not self.definition.trusted:
            ctx.__dict__ = self.attributes
        return ctx

    def _defined(self, values: Sequence[Any], spaces: Sequence[Space | None]) -> Sequence[Any]:
        """The gradients or tangents for a rule, zeros in place of None where it wants them."""
        if not (any(value is None for value in values) and self.kept.get("_materialize", True)):
            return values
        pairs = zip(values, spaces, strict=True)
        return [space.zero() if value is None and space else value for value, space in pairs]

    def pull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool, later: Any
    ) -> Sequence[Any]:
        """Run backward."""
        rule, args = self._called(gradients, needed)
        if not create_graph:
            return self._answered(rule(*args), gradients, needed)
        with running(self._recorded()) as now:
            returned = rule(*args)
        return self._answered(returned, gradients, needed, now.watch)

    async def apull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool
    ) -> Sequence[Any]:
        """Run backward where it waits, at its place, when there is one free."""
        rule, args = self._called(gradients, needed)
        chosen = self._recorded() if create_graph else mode.get()
        with running(chosen) as now, within((*self.place, "backward")):
            returned = await call_within_limit(rule, args)
        return self._answered(returned, gradients, needed, now.watch if create_graph else None)

    def _recorded(self) -> Mode:
        # A rule that is not differentiable itself is not recorded either.
        return mode.get() if self.definition.trusted else Mode(not self.definition.once, [])

    def _called(
        self, gradients: Sequence[Any], needed: Sequence[bool] | None
    ) -> tuple[Any, tuple[Any, ...]]:
        """The backward rule and what to call it with: for each output a gradient, or None."""
        rule = self.definition.backward
        if rule is None:
            raise DefinitionError(
                f"{self.title()} has no backward.", mend="Define backward, or vjp, on the Function."
            )
        if len(gradients) > 1 or gradients[0] is None:
            gradients = self._defined(gradients, [output.space for output in self.outputs])
        return rule, (self._view("backward", needed), *gradients)

    def _answered(
        self, returned: Any, gradients: Sequence[Any], needed: Sequence[bool] | None,
        watch: list[Any] | None = None,
    ) -> Sequence[Any]:  # fmt: skip
        """One gradient an edge, each of the space of its input, from what the rule returned."""
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
                result.append(space.conform(answer, self._wrong("gradient", "input", index)))
            if space.textual:
                texts.append(result[-1])
        if texts:
            self._sign(texts, gradients)
        if watch is None or self.definition.trusted:
            return result
        return settled(self, "backward", watch, result, gradients)

    def _matched(self, answers: tuple[Any, ...]) -> Sequence[Any]:
        """One answer an edge, read out of one an argument."""
        expected = len(self._next if self.layout is None else self.layout)
        if len(answers) < expected or any(each is not None for each in answers[expected:]):
            raise DefinitionError(
                f"{self.title()} returned a wrong number of gradients.", given=str(len(answers)),
                expected=f"{expected}, one for each argument of forward",
                mend="Return None for an argument that has no gradient.",
            )  # fmt: skip
        if self.layout is None:
            return answers[:expected]
        found: dict[int, Any] = {}
        for index, (entry, value) in enumerate(zip(self.layout, answers, strict=False)):
            _layout.match(entry, value, self._wrong("gradient", "input", index), found)
        return [found.get(number) for number in range(len(self._next))]

    def _wrong(self, what: str, of: str, number: int) -> Callable[[str], Exception]:
        """Makes the error for what a rule returned and is of the wrong kind."""
        rule = "" if what == "gradient" else "The jvp of "
        return lambda detail: DefinitionError(
            f"{rule}{self.title()} returned a {what} of the wrong kind for {of} {number}: {detail}."
        )

    def _sign(self, answers: Sequence[Variable], gradients: Sequence[Any]) -> None:
        """Say on new notes where they come from, but on those that were passed on."""
        passed_on = set(map(id, _notes(gradients)))
        for answer in answers:
            plain = type(answer) is Variable and type(answer._data) is str
            for note in (answer,) if plain else notes_in(answer):
                if note._origin is None and id(note) not in passed_on:
                    note._origin = Origin(self._name, self.role, self.sequence)

    def push(self, tangents: Sequence[Any]) -> list[Any] | None:
        """Run jvp; None where there is none, so that it is to be derived."""
        rule = self.definition.jvp
        if rule is None:
            return None
        ctx = self._view("jvp", [tangent is not None for tangent in tangents])
        tangents = self._defined(tangents, self.spaces)
        if self.layout is not None:
            tangents = _layout.mapped(int, tangents.__getitem__, self.layout)
        now = mode.get().grad
        watch = Mode(now, [] if now and not self.definition.trusted else None)
        with running(watch):
            returned = rule(ctx, *tangents)
            if "jvp" in self.definition.waiting:
                returned = run(returned)
        answers = returned if type(returned) is tuple else (returned,)
        if len(answers) != len(self.outputs):
            raise DefinitionError(
                f"The jvp of {self.title()} returned a wrong number of tangents.",
                given=str(len(answers)), expected=f"{len(self.outputs)}, one for each output",
            )  # fmt: skip
        return settled(
            self, "jvp", watch.watch, list(map(self._tangent, answers, range(len(answers))))
        )

    def _tangent(self, answer: Any, number: int) -> Any:
        """The tangent of one output, of its space."""
        output = self.outputs[number]
        if output.space is None or not output.differentiable:
            return None
        if answer is None:
            raise UnsupportedError(
                f"The jvp of {self.title()} returned None for output {number}, which carries a "
                "tangent.",
                expected="a Variable; a zero where nothing changes",
            )
        return output.space.conform(answer, self._wrong("tangent", "output", number))


def _notes(gradients: Sequence[Any]) -> Sequence[Variable]:
    """The notes in gradients: mostly in one, which is Feedback."""
    if len(gradients) == 1:
        return notes_in(gradients[0])
    return [note for gradient in gradients for note in notes_in(gradient)]


def _among(value: Any, others: Sequence[Any]) -> bool:
    return any(value is each for each in others)


def _twin(value: Variable, node: Any, number: int) -> Variable:
    """The Variable that stands on the tape for what forward returned."""
    if isinstance(value, Feedback):
        twin = wrap(value._data, value.role, node, number, Feedback)
        twin.notes = value.notes
        return twin
    twin = wrap(value._data, value.role, node, number)
    if value.name is not None:
        twin.name = value.name
    return twin


def _rebase(value: Variable, node: Any, number: int) -> Variable:
    """Give an input that was changed in place its new history."""
    value._node, value._output_nr, value._requires_grad = node, number, node is not None
    value._version += 1
    return value
