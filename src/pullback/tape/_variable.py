"""`Variable`: a value on the tape."""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Self

from pullback.errors import ArgumentError, ArgumentTypeError, GraphError
from pullback.internal._text import shortened, shown
from pullback.tape._mode import mode
from pullback.tape._registry import OPERATIONS, space_of

__all__ = ["Handle", "Variable", "data_of", "describe", "roles_of", "wrap"]


class Handle(AbstractContextManager["Handle"]):
    """Removes a hook: call `remove()`, or use it as a context manager."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, owner: Any, name: str, entry: Any) -> None:
        hook = entry[1] if isinstance(entry, tuple) else entry
        if not callable(hook):
            raise ArgumentTypeError("A hook is a callable.", given=repr(hook)[:60])
        if True in map(inspect.iscoroutinefunction, (hook, type(hook).__call__)):
            raise ArgumentTypeError(
                "A hook is not awaited.", given=shown(hook), expected="no coroutine function"
            )
        if not getattr(owner, name):
            setattr(owner, name, {})
        self._hooks, self._key = getattr(owner, name), object()
        self._hooks[self._key] = entry

    def remove(self) -> None:
        """Remove the hook; a second time does nothing."""
        self._hooks.pop(self._key, None)

    def __exit__(self, *error: object) -> None:
        self.remove()


def _operators(verb: str) -> tuple[Any, Any]:
    """The operator of a verb that OPERATIONS knows, and its reflection."""

    def operate(self: "Variable", other: Any) -> Any:
        return OPERATIONS[verb](self, other)

    def reflected(self: "Variable", other: Any) -> Any:
        return OPERATIONS[verb](other, self)

    return operate, reflected


def _comparison(compare: Callable[[Any, Any], bool]) -> Any:
    def decide(self: "Variable", other: Any) -> bool:
        return compare(self._plain(), _plain(other))

    return decide


class Variable:
    """A value on the tape: a number, a text, a list, tuple or dict of them, or a tensor.

    It is used like a tensor of torch: operations on it are recorded while gradients are enabled
    and one of their inputs requires a gradient, and `backward` runs the record.

    Arguments:
        data: the value; its type must belong to a registered space.
        role: what the value is for, in words; feedback and error messages speak of it.
        requires_grad: whether a gradient is wanted.
        name: a short name for pictures.

    Attributes:
        grad: for a text an ordered list of Variables, empty before `backward`; for anything else
            one Variable, or None.
        grad_fn: the graph node that made the value, or None for a leaf.

    Raises:
        ArgumentTypeError: the type of the data is not registered, or role or name is no text.
        ArgumentError: a gradient is required of a value that has none, such as a bool.

    Example:
        >>> x = Variable(3.0, requires_grad=True)
        >>> (x * x).backward()
        >>> x.grad
        Variable(6.0)
        >>> Variable("a text", role="an answer")
        Variable('a text', role='an answer')
    """

    __slots__ = (  # a dict for what few Variables have: others have none
        "__dict__", "__weakref__", "_data", "_grad", "_node", "_origin", "_output_nr",
        "_requires_grad", "_version", "role",
    )  # fmt: skip
    name: str | None = None
    batched = False  # whether it stands for all items of a batch, inside vmap
    _accumulate: Any = None  # of a leaf: a weak reference to the node that adds to its .grad
    _hooks: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
    _post_hooks: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
    __array_priority__ = 1000  # numpy leaves an operation with a Variable to the Variable

    def __init__(
        self,
        data: Any = "",
        role: str = "",
        requires_grad: bool = False,
        name: str | None = None,
    ) -> None:
        if isinstance(data, Variable):
            raise ArgumentTypeError(
                "A Variable was made of a Variable.", given=describe(data),
                mend="Pass its data, or use detach() for a copy without history.",
            )  # fmt: skip
        space_of(data)
        if not isinstance(role, str) or not (name is None or isinstance(name, str)):
            raise ArgumentTypeError(
                "The role and name of a Variable are texts.",
                given=f"role={shown(role)}, name={shown(name)}",
            )
        self._data = data
        self.role = role
        self._node = None
        self._output_nr = 0
        self._version = 0
        self._requires_grad = False
        self._grad = None
        self._origin = None
        if requires_grad is not False:
            self.requires_grad_(requires_grad)
        if name is not None:
            self.name = name

    @property
    def data(self) -> Any:
        """The value itself. Assigning it changes the Variable in place."""
        if self._requires_grad:
            watch = mode.get().watch
            if watch is not None:
                watch.append(self)
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        if self._requires_grad and mode.get().grad:
            what = "A leaf that requires a gradient" if self._node is None else "A recorded value"
            raise GraphError(
                f"{what} was changed in place.", given=describe(self),
                mend="Assign its data inside `with no_grad():`, or compute a new Variable.",
            )  # fmt: skip
        space_of(value)
        self._data = value
        self._version += 1

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this value are recorded."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Require a gradient of this leaf, or no longer; gives the Variable back.

        Raises:
            GraphError: the Variable is no leaf.
            ArgumentError: its kind of value has no gradients.
        """
        if requires_grad is not True and requires_grad is not False:
            raise ArgumentTypeError("requires_grad is True or False.", given=shown(requires_grad))
        if self._node is not None and not requires_grad:
            raise GraphError(
                "Only a leaf can stop requiring a gradient.", given=describe(self),
                mend="Use detach() for a copy without history.",
            )  # fmt: skip
        space = space_of(self._data)
        if requires_grad and not space.differentiable:
            raise ArgumentError(
                f"A value of the space {space.name!r} has no gradient.", given=describe(self),
                expected="a number, a text, a list, tuple or dict of them, or a floating tensor",
            )  # fmt: skip
        self._requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Any:
        """The gradient that `backward` has accumulated."""
        return space_of(self._data).empty() if self._grad is None else self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        given = None if value is None else self._conformed(value)
        self._grad = None if given is None else space_of(self._data).accumulate(None, given)

    def _conformed(self, gradient: Any, what: str = "gradient", of: str = "value") -> Any:
        """A gradient or tangent as the space of the value has it."""
        return space_of(self._data).conform(gradient, lambda detail: ArgumentTypeError(
            f"The {what} does not belong to its {of}: {detail}.", given=describe(self)
        ))  # fmt: skip

    @property
    def grad_fn(self) -> Any:
        """The graph node that made this value, or None for a leaf."""
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of its graph node this value is."""
        return self._output_nr

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this value."""
        return self._node is None

    @property
    def origin(self) -> Any:
        """For feedback: the `Origin` of what a rule wrote; None for what a user gave."""
        return self._origin

    def detach(self) -> "Variable":
        """The same value without history."""
        return wrap(self.data, self.role)  # read as plain data, which a watched rule is told of

    def _fresh(self) -> "Variable":
        """A new leaf of the same value that requires a gradient: where a derivative starts."""
        return Variable(self._data, self.role, requires_grad=True)

    # What the tape can do with a Variable, it says in OPERATIONS: see there.

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Run the record back from this value: see `pullback.tape.backward`."""
        OPERATIONS["backward"](self, gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[["Variable"], Any]) -> Any:
        """Call a hook with each gradient of this value; what it returns replaces the gradient.

        Returns:
            A handle with `remove()`.
        """
        self._need_gradient("A hook was registered on")
        if self._node is not None:
            return self._node.register_prehook(hook, self._output_nr)
        return Handle(self, "_hooks", hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[["Variable"], Any]) -> Any:
        """Call a hook with this leaf after its ``.grad`` has been accumulated."""
        self._need_gradient("A hook was registered on")
        if self._node is not None:
            raise GraphError(
                "Only a leaf has a hook after its gradient is accumulated.", given=describe(self)
            )
        return Handle(self, "_post_hooks", hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this value in ``.grad`` though it is no leaf."""
        self._need_gradient("retain_grad was called on")
        if self._node is not None:
            self._node.retain(self._output_nr, self)

    def _need_gradient(self, what: str) -> None:
        if not self._requires_grad:
            raise GraphError(f"{what} a Variable that requires no gradient.", given=describe(self))

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __pow__, __rpow__ = _operators("power")

    def __neg__(self) -> Any:
        return OPERATIONS["negative"](self)

    def __getitem__(self, key: Any) -> Any:
        return OPERATIONS["item"](self, key)

    def __abs__(self) -> Any:
        return OPERATIONS["absolute"](self)

    # A comparison is a decision, not a value that a gradient could flow through.
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | str | list | tuple | dict):
            raise ArgumentTypeError(
                "A Variable was compared with a plain value.",
                given=f"{describe(self)} == {other!r}",
                mend="Compare its data; two Variables are equal if they are the same one.",
            )  # fmt: skip
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self._plain())

    def __len__(self) -> int:
        data = self._data
        if not hasattr(data, "__len__"):
            raise ArgumentTypeError("A value that is no list has no length.", given=describe(self))
        return len(data)

    def __contains__(self, item: Any) -> bool:
        return _plain(item) in self._plain()

    def _plain(self) -> Any:
        """The value for a decision, which a watched rule is told of."""
        watch = mode.get().watch
        if self._requires_grad and watch is not None:
            watch.append((self,))
        return self._data

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._data, dict):
            return iter(self._data)
        if isinstance(self._data, list | tuple):
            return iter(OPERATIONS["unstack"](self))
        return (self[index] for index in range(len(self)))

    def __float__(self) -> float:
        return float(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __str__(self) -> str:
        return str(self.data)

    def __repr__(self) -> str:
        parts = [repr(self._data)]
        if self.role:
            parts.append(f"role={self.role!r}")
        if self._node is not None:
            parts.append(f"grad_fn=<{self._node.name()}>")
        elif self._requires_grad:
            parts.append("requires_grad=True")
        return f"Variable({', '.join(parts)})"

    def __reduce__(self) -> Any:
        """A leaf as a copy or another process makes it again, without what was said of it."""
        if self._node is not None:
            raise GraphError(
                "A Variable with a history was copied or pickled.", given=describe(self),
                mend="Use detach() for a copy without history; graph.to_json saves a whole graph.",
            )  # fmt: skip
        slots = {"_requires_grad": self._requires_grad, "_origin": self._origin}
        named = None if self.name is None else {"name": self.name}
        return wrap, (self.data, self.role, None, 0, type(self)), (named, slots)


def wrap(
    data: Any, role: str = "", node: Any = None, output_nr: int = 0, kind: Any = Variable
) -> Any:
    """A Variable of data whose type is known to be registered, made by a node or by none."""
    variable = kind.__new__(kind)
    variable._data = data
    variable.role = role
    variable._node = node
    variable._output_nr = output_nr
    variable._version = 0
    variable._requires_grad = node is not None
    variable._grad = None
    variable._origin = None
    return variable


def describe(variable: Variable) -> str:
    """A Variable in an error message: its value, shortened, and its role."""
    text = shortened(repr(variable._data), 60)
    return f"{text} (role {variable.role!r})" if variable.role else text


def roles_of(values: Iterable[Variable]) -> str:
    """The role of what is made of several Variables."""
    return " and ".join(dict.fromkeys(value.role for value in values if value.role))


def data_of(value: Any) -> Any:
    """The data of a Variable; anything else as it is."""
    return value._data if isinstance(value, Variable) else value


def _plain(value: Any) -> Any:
    return value._plain() if isinstance(value, Variable) else value
