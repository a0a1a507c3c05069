"""`Function`: written like `torch.autograd.Function`, over any value; and how it is applied."""

from collections.abc import Coroutine
from typing import Any, ClassVar, Literal, NoReturn

from pullback.errors import DefinitionError, GraphError
from pullback.tape import _layout
from pullback.tape._concurrency import advance, call_within_limit, run, slot, within
from pullback.tape._context import Context, stamp_of
from pullback.tape._definition import Definition
from pullback.tape._feedback import Feedback
from pullback.tape._function_node import FunctionNode
from pullback.tape._mode import Mode, mode, running
from pullback.tape._node import Output, edge_of
from pullback.tape._registry import space_of
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["Application", "Function", "aapply", "apply"]


class Function:
    """A custom differentiable function of Variables, on torch's contract to the letter.

    Write ``forward(ctx, *args)``, or ``forward(*args)`` with ``setup_context(ctx, inputs,
    output)``; ``backward(ctx, *gradients)``, which may be called ``vjp``; if you like ``jvp(ctx,
    *tangents)`` and ``vmap(info, in_dims, *args)``. What is left out is derived where it can be,
    and refused by name where not. Then call `apply`.

    forward is given the arguments of `apply`: Variables, plain values, and lists, tuples and
    dicts of them. It returns a Variable or a tuple. backward is given one gradient for each
    output and returns one for each argument, None where there is none, in the argument's own
    structure where it is nested. The gradient of a text is `Feedback`.

    Each rule but setup_context may be a coroutine function; such rules, and those of a Function
    that declares ``blocking = True``, run beside others that are ready, up to the limit of
    `concurrency`.

    Attributes:
        gradient: ``"exact"`` (backward is the transpose of the derivative), ``"surrogate"``
            (linear, deliberately not the derivative) or ``"nonlinear"``.
        generate_vmap_rule: as in torch; a rule is derived either way.
        blocking: the rules wait for something outside of Python, so they run in threads.
        random: two runs with the same arguments differ, so `vmap` never shares one. ``"drawn"``:
            they may, as of a model, and `vmap` shares one unless it is told otherwise.

    Example:
        >>> from pullback.tape import Variable
        >>> class Shout(Function):
        ...     @staticmethod
        ...     def forward(ctx, text):
        ...         return Variable(text.data.upper(), role=f"loud {text.role}")
        ...     @staticmethod
        ...     def backward(ctx, feedback):
        ...         return feedback
        >>> text = Variable("quiet", role="word", requires_grad=True)
        >>> Shout.apply(text).backward(Variable("too loud"))
        >>> [note.data for note in text.grad]
        ['too loud']
    """

    gradient: ClassVar[Literal["exact", "surrogate", "nonlinear"]] = "exact"
    generate_vmap_rule: ClassVar[bool] = False
    blocking: ClassVar[bool] = False
    random: ClassVar[bool | Literal["drawn"]] = False
    _trusted: ClassVar[bool] = False
    _linear: ClassVar[Literal["", "jointly", "each", "first"]] = ""
    _definition: ClassVar[Definition | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise DefinitionError(
            f"{type(self).__name__} was made an instance; its rules are static.",
            mend=f"Call {type(self).__name__}.apply(...).",
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._definition = None

    # The names are those of torch's page. No rule is given keywords: a type checker takes these
    # signatures for any, so that a rule of its own number of gradients is no error to it.

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; to be written, with or without ``ctx`` before the arguments."""
        _missing("forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save what backward needs; forward is then given no ``ctx``."""
        _missing("setup_context")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any, **kwargs: Any) -> Any:
        """Give the gradients of the arguments, from those of the outputs."""
        _missing("backward")

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any, **kwargs: Any) -> Any:
        """Another name of `backward`."""
        _missing("vjp")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any, **kwargs: Any) -> Any:
        """Give the tangents of the outputs, from those of the arguments."""
        _missing("jvp")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        """Give the outputs of a whole batch and their out_dims."""
        _missing("vmap")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function; with or without a running event loop.

        Raises:
            ArgumentTypeError: the arguments do not fit forward.
            DefinitionError: the rules break the contract.
        """
        definition = cls._definition or cls._define()
        if kwargs or len(args) not in definition.counts:
            args = definition.bind(args, kwargs)
        return apply(definition, args)

    @classmethod
    async def aapply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function and await it, so that others run meanwhile."""
        definition = cls._definition or cls._define()
        if kwargs or len(args) not in definition.counts:
            args = definition.bind(args, kwargs)
        return await aapply(definition, args)

    @classmethod
    def _define(cls) -> Definition:
        cls._definition = Definition(cls, Function)
        return cls._definition


def _missing(rule: str) -> NoReturn:
    raise DefinitionError(f"The Function has no {rule}.")


def apply(definition: Definition, args: tuple[Any, ...]) -> Any:
    """Apply a Function to arguments in the order of forward."""
    application = Application(definition, args)
    if application.batch is not None:
        each = application.batch.each(definition, args)
        waits = (
            definition.concurrent if definition.vmap is None else "vmap" in definition.asynchronous
        )
        return run(each) if waits else _at_once(each)
    if "forward" in definition.asynchronous:
        return run(_awaited(application))
    if definition.blocking:
        with slot():
            return application.finish(application.forward())
    return application.finish(application.forward())


async def aapply(definition: Definition, args: tuple[Any, ...]) -> Any:
    """The same, awaited: a rule that waits lets others run meanwhile."""
    application = Application(definition, args)
    if application.batch is not None:
        return await application.batch.each(definition, args)
    return await _awaited(application)


async def _awaited(application: "Application") -> Any:
    return application.finish(await application.aforward())


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives that waits for nothing, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise DefinitionError("A rule waits and is no coroutine function.")


class Application:
    """One application on its way: arguments, context, and what forward read of others.

    Arguments:
        definition: the rules.
        args: the arguments, in the order of forward.
    """

    __slots__ = (
        "ambient", "args", "batch", "context", "definition", "edges", "inputs", "layout",
        "recorded", "versions", "watch",
    )  # fmt: skip

    def __init__(self, definition: Definition, args: tuple[Any, ...]) -> None:
        self.definition = definition
        self.args = args
        self.inputs, self.layout = _layout.find(args)
        self.ambient = mode.get()
        self.batch = _layout.batch_in(self.inputs)
        flags = [value._requires_grad for value in self.inputs]
        self.recorded = self.ambient.grad and True in flags
        if self.recorded:
            self.edges = tuple(map(edge_of, self.inputs))
        else:
            flags = [False] * len(flags)
        self.context = Context(definition.name, _layout.needs(self.layout, flags))
        if definition.concurrent:
            self.context._place = advance()
        self.watch: list[Any] = []
        if self.ambient.watch is not None and not self.ambient.grad:
            self.ambient.watch.extend([value for value in self.inputs if value._requires_grad])
        if not definition.trusted:
            self.versions = [(value._version, stamp_of(value._data)) for value in self.inputs]

    def forward(self) -> Any:
        """Run forward here; of an operation that waits, at its place."""
        if not self.definition.concurrent:
            return self._forward()
        with within(self.context._place):
            return self._forward()

    def _forward(self) -> Any:
        definition, context = self.definition, self.context
        token = mode.set(Mode(False, self.watch))
        try:
            if definition.setup_context is None:
                return definition.forward(context, *self.args)
            return self.set_up(definition.forward(*self.args))
        finally:
            mode.reset(token)

    async def aforward(self) -> Any:
        """Run forward, awaited or in a thread if it waits, within the limit."""
        definition = self.definition
        asynchronous = "forward" in definition.asynchronous
        if not (asynchronous or definition.blocking):
            return self.forward()
        args = self.args if definition.setup_context else (self.context, *self.args)
        with running(Mode(False, self.watch)), within(self.context._place):
            return self.set_up(await call_within_limit(definition.forward, args, asynchronous))

    def set_up(self, raw: Any) -> Any:
        """Run setup_context, in the split form, on what forward gave."""
        if self.definition.setup_context is not None:
            with running(Mode(False, self.watch)):
                self.definition.setup_context(self.context, self.args, raw)
        return raw

    def finish(self, raw: Any) -> Any:
        """Put the outputs of forward on the tape.

        Raises:
            DefinitionError: forward breaks the contract.
            GraphError: a leaf that requires a gradient was changed in place.
        """
        if self.watch:
            self._hidden()
        outputs = raw if type(raw) is tuple else (raw,)
        dirty = self.context._dirty
        if not self.definition.trusted:
            self._check_outputs(outputs)
            self._check_inputs(outputs, dirty)
        if not self.recorded:
            made = [self._plain(value, dirty) for value in outputs]
        else:
            made = self._record(outputs, dirty)
        return tuple(made) if type(raw) is tuple else made[0]

    def _record(self, outputs: tuple[Any, ...], dirty: tuple[Any, ...]) -> list[Any]:
        context, definition = self.context, self.definition
        spaces = tuple([space_of(value._data) for value in self.inputs])
        node = FunctionNode(definition, self.edges, context, self.layout, spaces)
        made, records = [], []
        for number, value in enumerate(outputs):
            if not isinstance(value, Variable):
                made.append(value)
                records.append(Output(None, "", None, False))
                continue
            space = space_of(value._data)
            carries = space.differentiable and id(value) not in map(id, context._non_differentiable)
            records.append(Output(space, value.role, value._data if space.plain else None, carries))
            settle = _rebase if id(value) in map(id, dirty) else _twin
            made.append(settle(value, node if carries else None, number))
        node.outputs = tuple(records)
        if not definition.trusted:
            context._constants = tuple([a for a in self.args if not isinstance(a, Variable)])
        context.seal(node, self.inputs, outputs, made)
        return made

    def _plain(self, value: Any, dirty: tuple[Any, ...]) -> Any:
        if not isinstance(value, Variable):
            return value
        if id(value) in map(id, dirty):
            value._version += 1
            return value
        return _twin(value, None, 0)

    def _hidden(self) -> None:
        """Refuse Variables that forward reads and was not given: their gradient would be lost."""
        given = set(map(id, self.inputs))
        hidden = [
            value for value in self.watch if isinstance(value, Variable) and id(value) not in given
        ]
        if not hidden:
            return
        if self.ambient.grad:
            raise DefinitionError(
                f"{self.definition.name}.forward reads a Variable that requires a gradient and "
                "is none of its arguments, so its gradient would be lost.",
                given=describe(hidden[0]),
                mend="Pass it to apply as an argument, or its detach() if it is a constant.",
            )
        if self.ambient.watch is not None:
            self.ambient.watch.extend(hidden)

    def _check_outputs(self, outputs: tuple[Any, ...]) -> None:
        found = False
        for value in outputs:
            if isinstance(value, Variable):
                found = True
            elif isinstance(value, list | dict | tuple) and _layout.find((value,))[0]:
                raise DefinitionError(
                    f"{self.definition.name}.forward returned Variables inside a "
                    f"{type(value).__name__}, where no gradient could come back to them.",
                    expected="a Variable, or a tuple of Variables and plain values",
                    mend="Return a tuple, or one Variable whose data is a list or dict.",
                )
        if not found and self.recorded:
            raise DefinitionError(
                f"{self.definition.name}.forward returned no Variable, so no gradient could come "
                "back.",
                given=f"{type(outputs[0]).__name__}" if outputs else "an empty tuple",
                mend="Return Variable(value).",
            )

    def _check_inputs(self, outputs: tuple[Any, ...], dirty: tuple[Any, ...]) -> None:
        name = self.definition.name
        for value in dirty:
            if id(value) not in map(id, self.inputs):
                raise DefinitionError(f"{name} marks a Variable dirty that is no input.")
            if id(value) not in map(id, outputs):
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
            if id(value) not in map(id, outputs):
                raise DefinitionError(f"{name} marks as non-differentiable what is no output.")
        for value, (version, stamp) in zip(self.inputs, self.versions, strict=True):
            changed = value._version != version or (
                stamp is not None and stamp_of(value._data) != stamp
            )
            if changed and id(value) not in map(id, dirty):
                raise DefinitionError(
                    f"{name}.forward changes an input in place and does not say so.",
                    given=describe(value), mend="Call ctx.mark_dirty(input), and return it.",
                )  # fmt: skip


def _twin(value: Variable, node: Any, number: int) -> Variable:
    """The Variable that stands on the tape for what forward returned."""
    if isinstance(value, Feedback):
        twin = wrap(value._data, value.role, node, number, Feedback)
        twin.notes = value.notes
        return twin
    twin = wrap(value._data, value.role, node, number)
    if value._extra is not None and value._extra.name is not None:
        twin.name = value._extra.name
    return twin


def _rebase(value: Variable, node: Any, number: int) -> Variable:
    """Give an input that was changed in place its new history."""
    value._node, value._output_nr, value._requires_grad = node, number, node is not None
    value._version += 1
    return value
