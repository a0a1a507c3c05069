"""`Context`: what the author of a Function calls ``ctx``.

It is a view, made anew for each run of a rule. What is put on it lives in one dict: that of the
view while forward runs, then the node's. So nothing that a node holds leads back to the node.
"""

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from pullback.errors import ArgumentTypeError, DefinitionError, GraphError
from pullback.internal._arguments import checked
from pullback.tape._layout import below, leaves, mapped
from pullback.tape._mode import mode
from pullback.tape._node import AccumulateGrad, edge_of
from pullback.tape._registry import space_of
from pullback.tape._variable import Variable, describe, wrap

__all__ = ["NOTHING_KEPT", "Context", "freed", "kept", "saved_variables_hooks", "stamp_of"]

_IMMUTABLE = frozenset((float, int, str, bool))


class Context:
    """Carries values from forward to backward and jvp.

    Any attribute may be set on it; Variables among them are kept as `save_for_backward` keeps
    them, so that nothing leaks and a later change in place is noticed.
    """

    __slots__ = ("__dict__", "__weakref__", "_node", "_phase", "needs_input_grad")

    # What an author says in forward takes their place, beside the attributes that are set.
    _saved: tuple[Any, ...] | None = None
    _saved_for_forward: tuple[Any, ...] | None = None
    _dirty: tuple[Any, ...] = ()
    _non_differentiable: tuple[Any, ...] = ()
    _materialize = True

    def __init__(self, node: Any, needs: tuple[bool, ...], phase: str) -> None:
        self._node = node
        self._phase = phase
        self.needs_input_grad = needs

    @property
    def _name(self) -> str:
        return self._node.definition.name

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
        node, phase = self._node, self._phase
        if phase == "forward":
            raise DefinitionError(
                f"{self._name} reads its saved values before they are saved.",
                expected="ctx.saved_variables in backward or jvp only",
            )
        if node.versions is not None:
            saved = node.kept["_saved"]
            for value, version in zip(saved, node.versions, strict=True):
                if value._version != version:
                    _stale(value, version)
            return saved
        name = "_saved_for_forward"
        saved = node.kept.get(name if phase == "jvp" and name in node.kept else "_saved", ())
        return tuple([self._unpack(entry, "a saved plain value") for entry in saved])

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
        # Only what is not found otherwise comes here: what forward has set.
        if name.startswith("__") or self._phase == "forward" or name not in self._node.kept:
            raise AttributeError(f"The ctx of {self._name} has no attribute {name!r}.")
        return self._unpack(self._node.kept[name], f"ctx.{name}")

    def _unpack(self, value: Any, what: str) -> Any:
        """A value that was put away, as it was; a watched rule is told of plain data in it."""
        if value is _FREED:
            raise GraphError(
                "Trying to run backward through a graph a second time: its saved values were "
                "freed after the first.",
                given=self._node.title(),
                mend="Pass retain_graph=True to the first backward or grad.",
            )
        watch = mode.get().watch
        if watch is not None and not self._is_constant(value):
            watch.append(what)
        return mapped(_Saved, lambda entry: entry.unpack(self._node), value)

    def _is_constant(self, value: Any) -> bool:
        """Whether no derivative is hidden in it, but in a Variable, which says so of itself."""
        if isinstance(value, _Saved | bool | type) or value is None:
            return True
        if any(_holds(given, value) for given in self._node.constants):
            return True
        return bool(below(value)) and all(map(self._is_constant, below(value)))


def _holds(structure: Any, value: Any) -> bool:
    return structure is value or any(_holds(entry, value) for entry in below(structure))


def kept(
    ctx: Context, inputs: Sequence[Variable], raw: Sequence[Any], outputs: Sequence[Any]
) -> tuple[dict[str, Any], tuple[int, ...] | None]:
    """What a node keeps of what forward put on ``ctx``, so that it neither leaks nor goes stale.

    The view is empty afterwards; what forward returned, ``raw``, is kept as the outputs that stand
    for it on the tape. Given are the values by name; and the versions of those saved for backward,
    if they are kept as they are.
    """
    values = ctx.__dict__
    hooks = _hooks.get()
    given = set(map(id, inputs))
    if not hooks and len(values) == 1 and "_saved" in values:
        # The usual case: inputs alone, of data that cannot change. Their versions say all that a
        # `_Saved` would.
        own = given.difference(map(id, raw))
        plain = [id(v) in own and type(v._data) in _IMMUTABLE for v in values["_saved"]]
        if False not in plain:
            ctx.__dict__ = {}
            return values, tuple([value._version for value in values["_saved"]])
    twins = {id(value): twin for value, twin in zip(raw, outputs, strict=True)}

    def keep(value: Any) -> Any:
        if not isinstance(value, Variable):
            return value
        twin = twins.get(id(value))
        residual = twin is None and id(value) not in given and not value._requires_grad
        return _Saved(value if twin is None else twin, twin is not None, residual, hooks)

    made = {
        name: mapped(object, keep, value) for name, value in values.items() if name not in _MARKS
    }
    values.clear()
    return made, None


_MARKS = ("_dirty", "_non_differentiable")


def freed(values: dict[str, Any]) -> dict[str, Any]:
    """What is left of kept values when a graph is freed: what is plain and was not saved."""
    return {
        name: (_FREED,) if name.startswith("_saved")
        else _FREED if any(isinstance(leaf, _Saved) for leaf in leaves(value)) else value
        for name, value in values.items()
    }  # fmt: skip


class _Saved:
    """A saved Variable, without the history that would make it keep its own graph alive."""

    __slots__ = ("data", "edge", "hook", "owner", "residual", "role", "stamp", "version", "weak")

    def __init__(
        self, value: Variable, output: bool, residual: bool, hooks: tuple[Any, ...]
    ) -> None:
        self.residual = residual  # neither an input nor an output
        self.version, self.role = value._version, value.role
        self.stamp = stamp_of(value._data)
        # An output holds its node, and that what is saved: held strongly, each would keep the
        # other. So what it is made of again is kept, and it only tells whether it was changed.
        self.weak = output or bool(hooks)
        self.owner: Any = weakref.ref(value) if self.weak else value
        self.data, self.hook = value._data, None
        self.edge: Any = value._output_nr if output and value._requires_grad else None
        if self.weak and self.edge is None:
            self.edge = edge_of(value)
        if hooks:
            pack, self.hook = hooks[-1]
            self.data = pack(wrap(value._data, value.role))

    def unpack(self, node: Any) -> Variable:
        """The Variable with its history, if it is still what was saved."""
        value: Any = self.owner() if self.weak else self.owner
        if value is not None and value._version != self.version:
            _stale(value, self.version)
        watch = mode.get().watch
        if self.residual and watch is not None:
            watch.append("a saved intermediate, neither an input nor an output")
        data = self.data
        if self.hook is not None:
            unpacked = self.hook(data)
            if not isinstance(unpacked, Variable):
                raise ArgumentTypeError(
                    "The unpack hook of saved values did not return a Variable.",
                    given=type(unpacked).__name__,
                )
            data = unpacked._data
        elif self.stamp is not None and stamp_of(data) != self.stamp:
            _stale(wrap(data, self.role), self.version)
        if not self.weak:
            return value  # type: ignore[bad-return]
        return _at_edge(data, self.role, self.edge if isinstance(self.edge, tuple)
                       else (node, self.edge))  # fmt: skip


_FREED = object()  # what stands for saved values when their graph is freed
NOTHING_KEPT = {"_saved": (_FREED,)}  # of what had nothing but saved inputs


def _stale(value: Variable, version: int) -> NoReturn:
    raise GraphError(
        "A saved value was changed in place since, so the gradient would be wrong.",
        given=describe(value), expected=f"version {version}, as it was saved",
        mend="Compute a new value instead, or change a copy.",
    )  # fmt: skip


def _at_edge(data: Any, role: str, edge: Any) -> Variable:
    """A Variable whose gradient arrives at an edge."""
    node, output_nr = edge
    if not isinstance(node, AccumulateGrad):
        return wrap(data, role, node, output_nr)
    value = wrap(data, role)
    value._requires_grad = True
    value._accumulate = weakref.ref(node)
    return value


def stamp_of(data: Any) -> Any:
    """What tells a change of the data in place; None for data that cannot be changed."""
    return None if type(data) in _IMMUTABLE else space_of(data).stamp(data)


_hooks: ContextVar[tuple[Any, ...]] = ContextVar("pullback.tape.saved_hooks", default=())


class saved_variables_hooks:  # noqa: N801  # torch's name of the same is in this style
    """Pack what is saved for backward inside, and unpack it when a rule reads it.

    What operations on tensors save is saved by torch: `torch.autograd.graph.saved_tensors_hooks`
    packs that.

    Arguments:
        pack: given a Variable without history, gives what is kept in its place.
        unpack: given that, gives a Variable.

    Example:
        >>> x = Variable(3.0, requires_grad=True)
        >>> with saved_variables_hooks(lambda v: str(v.data), lambda s: Variable(float(s))):
        ...     y = x * x
        >>> y.backward()
        >>> x.grad
        Variable(6.0)
    """

    @checked
    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self._pair = (pack, unpack)
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        self._tokens.append(_hooks.set((*_hooks.get(), self._pair)))

    def __exit__(self, *error: object) -> None:
        _hooks.reset(self._tokens.pop())
