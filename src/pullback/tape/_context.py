"""`Context`: what the author of a Function calls ``ctx``."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from pullback.errors import ArgumentTypeError, DefinitionError, GraphError
from pullback.tape._hooks import saved_hooks
from pullback.tape._mode import mode
from pullback.tape._node import AccumulateGrad, Node, edge_of
from pullback.tape._registry import space_of
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["Context", "at_edge", "stamp_of"]

_IMMUTABLE = frozenset((float, int, str, bool))


class Context:
    """Carries values from forward to backward and jvp.

    Arguments:
        name: the name of the Function.
        needs: for each argument of forward, whether its gradient is wanted.

    Any attribute may be set on it; Variables among them are kept as `save_for_backward` keeps
    them, so that nothing leaks and a later change in place is noticed.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_attributes",
        "_constants",
        "_dirty",
        "_materialize",
        "_name",
        "_node",
        "_non_differentiable",
        "_packed",
        "_phase",
        "_place",  # of an operation that waits
        "_saved",
        "_saved_for_forward",
        "_versions",
        "needs_input_grad",
    )

    def __init__(self, name: str, needs: tuple[bool, ...]) -> None:
        self._name = name
        self.needs_input_grad = needs
        self._phase = "forward"
        self._saved: tuple[Any, ...] | None = None
        self._saved_for_forward: tuple[Any, ...] | None = None
        self._versions: tuple[int, ...] | None = None  # of saved values that are kept as they are
        self._dirty: tuple[Any, ...] = ()
        self._non_differentiable: tuple[Any, ...] = ()
        self._materialize = True
        self._attributes: dict[str, Any] | None = None
        self._packed: Sequence[_Packed] = ()
        self._constants: tuple[Any, ...] = ()
        self._node: Any = None
        self._place: tuple[str | int, ...] = ()

    def save_for_backward(self, *values: Any) -> None:
        """Save values for backward (or vjp), once: Variables, None, or plain values."""
        self._only_in_forward("save_for_backward", again=self._saved is not None)
        self._saved = values

    def save_for_forward(self, *values: Any) -> None:
        """Save values for jvp, once."""
        self._only_in_forward("save_for_forward", again=self._saved_for_forward is not None)
        self._saved_for_forward = values

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The saved values, in the order they were saved in.

        Raises:
            GraphError: the graph was freed, or a saved value was changed since.
        """
        saved, versions = self._saved, self._versions
        plain = self._phase == "backward" or self._saved_for_forward is None
        if saved is not None and versions is not None and plain:
            for value, version in zip(saved, versions, strict=True):
                if value._version != version:
                    _stale(value, version)
            return saved
        if self._phase == "forward":
            raise DefinitionError(
                f"{self._name} reads its saved values before they are saved.",
                expected="ctx.saved_variables in backward or jvp only",
            )
        if self._phase == "jvp" and self._saved_for_forward is not None:
            saved = self._saved_for_forward
        if saved is None:
            return ()
        if self._phase == "released":
            self._refuse_again()
        return tuple([self._unpack(entry) for entry in saved])

    # torch's name of the same.
    saved_tensors = saved_variables

    def mark_dirty(self, *variables: Variable) -> None:
        """Declare inputs that forward changes in place; each must be returned."""
        self._dirty = self._marked("mark_dirty", variables)

    def mark_non_differentiable(self, *variables: Variable) -> None:
        """Declare outputs that carry no gradient."""
        self._non_differentiable = self._marked("mark_non_differentiable", variables)

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether undefined gradients reach the rules as zeros (the default) or None."""
        self._only_in_forward("set_materialize_grads")
        if not isinstance(value, bool):
            raise ArgumentTypeError(
                f"{self._name} gives set_materialize_grads no truth value.", given=repr(value)
            )
        self._materialize = value

    def _marked(self, verb: str, variables: tuple[Any, ...]) -> tuple[Any, ...]:
        self._only_in_forward(verb)
        for variable in variables:
            if not isinstance(variable, Variable):
                raise ArgumentTypeError(
                    f"{self._name} gives {verb} something that is no Variable.",
                    given=type(variable).__name__,
                )
        return variables

    def _only_in_forward(self, verb: str, again: bool = False) -> None:
        if self._phase != "forward":
            raise DefinitionError(
                f"{self._name} calls ctx.{verb} in {self._phase}.",
                expected=f"ctx.{verb} in forward or setup_context",
            )
        if again:
            raise DefinitionError(
                f"{self._name} calls {verb} twice.", expected="one call with all that is saved"
            )

    def __getattr__(self, name: str) -> Any:
        # Only what is not found otherwise comes here: attributes that seal() has put away.
        attributes = None if name.startswith("__") else self._attributes
        if attributes is None or name not in attributes:
            raise AttributeError(f"The ctx of {self._name} has no attribute {name!r}.")
        return self._unpack(attributes[name], f"ctx.{name}")

    def _is_constant(self, value: Any) -> bool:
        """Whether no derivative can be hidden in it: it holds arguments of forward, and Variables.

        Unpacking a Variable says of itself what it hides.
        """
        if isinstance(value, _Packed | bool | type) or value is None:
            return True
        if any(value is given for given in _entries(self._constants)):
            return True
        *below, _ = _entries(value)
        return bool(below) and all(map(self._is_constant, below))

    def _refuse_again(self) -> NoReturn:
        node = None if self._node is None else self._node()
        raise GraphError(
            "Trying to run backward through a graph a second time: its saved values were "
            "freed after the first.",
            given=node.title() if node is not None else self._name,
            mend="Pass retain_graph=True to the first backward or grad.",
        )

    def _unpack(self, value: Any, what: str = "a saved plain value") -> Any:
        """A value that was put away, as it was; a watched rule is told of plain data in it."""
        watch = mode.get().watch
        if watch is not None and not self._is_constant(value):
            watch.append(what)
        return _rebuild(value, _Packed, lambda entry: entry.unpack(self))

    def seal(
        self, node: Node, inputs: Sequence[Variable], raw: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        """End of forward: keep the saved values so that they neither leak nor go stale.

        Arguments:
            node: the node that this context belongs to.
            inputs: the Variables that forward was given.
            raw: what forward returned.
            outputs: the Variables that stand for it on the tape.
        """
        self._phase = "backward"
        hooks = saved_hooks.get()
        hooks = hooks[-1] if hooks else None
        given = {id(value) for value in inputs}
        if self._saved and hooks is None:
            # The usual case: inputs alone, of data that cannot change. Their versions say all that
            # a `_Packed` would, and no reference to a node is needed.
            given.difference_update([id(value) for value in raw])
            plain = [id(v) in given and type(v._data) in _IMMUTABLE for v in self._saved]
            if False not in plain:
                self._versions = tuple([value._version for value in self._saved])
                if self._saved_for_forward is None and not self.__dict__:
                    return
        self._node = weakref.ref(node)
        twins = {id(value): twin for value, twin in zip(raw, outputs, strict=True)}
        packs: list[_Packed] = []
        self._packed = packs

        def pack(value: Variable) -> _Packed:
            output = id(value) in twins
            residual = not (output or id(value) in given or value._requires_grad)
            packs.append(_Packed(twins.get(id(value), value), output, residual, hooks))
            return packs[-1]

        if self._versions is None:
            self._saved = _rebuild(self._saved, Variable, pack)
        self._saved_for_forward = _rebuild(self._saved_for_forward, Variable, pack)
        if self.__dict__:
            self._attributes = _rebuild(dict(self.__dict__), Variable, pack)
            self.__dict__.clear()

    def release(self) -> None:
        """Forget the saved values."""
        self._versions = None
        if self._saved is not None:
            self._saved = ()
        for entry in self._packed:
            entry.owner = entry.edge = entry.data = None
        self._phase = "released"

    def with_needs(self, needs: tuple[bool, ...], phase: str = "backward") -> "Context":
        """The same context for one run of a rule, which wants other gradients or is another."""
        twin = Context(self._name, needs)
        twin._phase = self._phase if self._phase == "released" else phase
        twin._saved, twin._saved_for_forward = self._saved, self._saved_for_forward
        twin._versions = self._versions
        twin._materialize, twin._node = self._materialize, self._node
        twin._attributes, twin._constants = self._attributes, self._constants
        twin.__dict__ = self.__dict__  # what a rule sets is there for the next run
        return twin


class _Packed:
    """A saved Variable, without the history that would make it keep its own graph alive.

    Arguments:
        value: the Variable.
        output: whether forward gave it.
        residual: whether it is neither an input nor an output.
        hooks: what packs and unpacks it, or None.
    """

    __slots__ = ("data", "edge", "hook", "output", "owner", "residual", "role", "stamp", "version")

    def __init__(self, value: Variable, output: bool, residual: bool, hooks: Any) -> None:
        self.output, self.residual = output, residual
        self.version, self.role = value._version, value.role
        self.stamp = stamp_of(value._data)
        self.owner: Any = value
        self.data = self.hook = None
        self.edge: Any = None
        # An output is held weakly: it holds its node, and that this context, so each would keep the
        # other. What it is made of again is kept beside it.
        if output or hooks is not None:
            self.owner, self.data = weakref.ref(value), value._data
            self.edge = (value._requires_grad, value._output_nr) if output else edge_of(value)
        if hooks is not None:
            pack, self.hook = hooks
            self.data = pack(wrap(value._data, value.role))

    def unpack(self, ctx: Context) -> Variable:
        """The Variable with its history, if it is still what was saved."""
        if ctx._phase == "released":
            ctx._refuse_again()
        held = self.edge is None  # strongly: it is still there
        value: Any = self.owner if held else self.owner()
        if value is not None and value._version != self.version:
            _stale(value, self.version)
        watch = mode.get().watch
        if self.residual and watch is not None:
            watch.append("a saved intermediate, neither an input nor an output")
        data = value._data if held else self.data  # type: ignore[missing-attribute]
        if self.hook is not None:
            unpacked = self.hook(self.data)
            if not isinstance(unpacked, Variable):
                raise ArgumentTypeError(
                    "The unpack hook of saved values did not return a Variable.",
                    given=type(unpacked).__name__,
                )
            data = unpacked._data
        elif self.stamp is not None and stamp_of(data) != self.stamp:
            _stale(wrap(data, self.role), self.version)
        if held:
            return value  # type: ignore[bad-return]
        recorded, number = self.edge
        edge = (ctx._node() if recorded else None, number) if self.output else self.edge
        return at_edge(data, self.role, edge)


def _stale(value: Variable, version: int) -> NoReturn:
    raise GraphError(
        "A saved value was changed in place since, so the gradient would be wrong.",
        given=describe(value), expected=f"version {version}, as it was saved",
        mend="Compute a new value instead, or change a copy.",
    )  # fmt: skip


def at_edge(data: Any, role: str, edge: Any) -> Variable:
    """A Variable whose gradient arrives at an edge."""
    node, output_nr = edge
    if not isinstance(node, AccumulateGrad):
        return wrap(data, role, node, output_nr)
    value = wrap(data, role)
    value._requires_grad = True
    value._more().accumulate = weakref.ref(node)
    return value


def stamp_of(data: Any) -> Any:
    """What tells a change of the data in place; None for data that cannot be changed."""
    if type(data) in _IMMUTABLE:
        return None
    return space_of(data).stamp(data)


def _entries(value: Any) -> Iterator[Any]:
    """What a structure holds, however deep, and it itself at the end."""
    if type(value) in (list, tuple, dict):
        for below in value.values() if type(value) is dict else value:
            yield from _entries(below)
    yield value


def _rebuild(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A structure whose entries of a kind are changed."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_rebuild(entry, kind, change) for entry in value)
    if type(value) is dict:
        return {key: _rebuild(entry, kind, change) for key, entry in value.items()}
    return value
