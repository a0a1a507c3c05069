"""Graph nodes and the edges between them."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from pullback.errors import ArgumentTypeError, GraphError
from pullback.tape._registry import Space, space_of
from pullback.tape._variable import Variable, describe

__all__ = [
    "AccumulateGrad",
    "Edge",
    "GradientEdge",
    "Handle",
    "Node",
    "Output",
    "count",
    "edge_of",
    "get_gradient_edge",
]

Edge = tuple["Node | None", int]


class GradientEdge(NamedTuple):
    """The place in a graph where a gradient arrives: an output of a node.

    Arguments:
        node: the node.
        output_nr: which of its outputs.
    """

    node: "Node"
    output_nr: int


class Output(NamedTuple):
    """What a node remembers of one of its outputs.

    Arguments:
        space: the space of the value, or None for an output that is no Variable.
        role: the role of the Variable.
        data: the value, if it is plain; for pictures.
        differentiable: whether a gradient may come back to it.
    """

    space: Space | None
    role: str
    data: Any
    differentiable: bool


class Node:
    """One operation in a graph, as `torch.autograd.graph.Node` is.

    Arguments:
        name: what it is called.
        next_functions: the places that its gradients flow to, one for each Variable that the
            operation was given, ``(None, 0)`` where none is wanted.

    Raises:
        ArgumentTypeError: an edge is no pair of a node, or None, and a number.

    Example:
        >>> x = Variable(2.0, requires_grad=True)
        >>> node = (x * x).grad_fn
        >>> node.name()
        'MultiplyBackward'
        >>> [following.name() for following, output_nr in node.next_functions]
        ['AccumulateGrad', 'AccumulateGrad']
    """

    __slots__ = ("__weakref__", "_hooks", "_name", "_next", "_prehooks", "_retained", "sequence")

    outputs: tuple[Output, ...] = ()

    def __init__(self, name: str = "Node", next_functions: Iterable[Any] = ()) -> None:
        self._name = name
        self.sequence = next(count)
        self._hooks: dict[int, Callable[..., Any]] | None = None
        self._prehooks: dict[int, tuple[int | None, Callable[..., Any]]] | None = None
        self._retained: dict[int, Any] | None = None
        self.next_functions = next_functions  # type: ignore[bad-assignment]

    def name(self) -> str:
        """The name of the operation, followed by ``Backward``."""
        return self._name

    @property
    def next_functions(self) -> tuple[Edge, ...]:
        """The places that its gradients flow to: pairs of a node, or None, and an output."""
        return self._next

    @next_functions.setter
    def next_functions(self, edges: Iterable[Any]) -> None:
        pairs = tuple(tuple(edge) for edge in edges)
        for edge in pairs:
            if len(edge) != 2 or not (edge[0] is None or isinstance(edge[0], Node)):
                raise ArgumentTypeError(
                    "An edge of a graph is a pair of a Node, or None, and the number of one of "
                    "its outputs.",
                    given=repr(edge),
                )
        self._next: tuple[Edge, ...] = pairs  # type: ignore[bad-assignment]

    @property
    def role(self) -> str:
        """The role of what the operation made, for messages."""
        return next((output.role for output in self.outputs if output.role), "")

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> "Handle":
        """Call ``hook(grad_inputs, grad_outputs)`` after the rule; what it returns replaces.

        Returns:
            A handle with `remove()`.
        """
        if self._hooks is None:
            self._hooks = {}
        return Handle(self._hooks, hook)

    def register_prehook(self, hook: Callable[[Any], Any]) -> "Handle":
        """Call ``hook(grad_outputs)`` before the rule; what it returns replaces.

        Returns:
            A handle with `remove()`.
        """
        if self._prehooks is None:
            self._prehooks = {}
        return Handle(self._prehooks, (None, hook))

    def released(self) -> None:
        """Forget the saved values after a backward pass that does not retain the graph."""

    def pull(self, gradients: Any, create_graph: bool) -> tuple[list[Any], list[Any]]:
        """Run the rule of a node that is no application of a Function.

        Returns:
            One gradient an edge, and calls that give gradients to leaves of other graphs.
        """
        self._refuse()

    def push(self, tangents: Any) -> list[Any]:
        """Push tangents through a node that is no application of a Function."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise GraphError(
            f"{self.title()} has no rule to run.",
            mend="A node made by hand or read from JSON is for looking at.",
        )

    def title(self) -> str:
        """The node in a message: its name and its role."""
        return f"{self._name} (role {self.role!r})" if self.role else self._name

    def __repr__(self) -> str:
        return f"<{self.title()}>"


class AccumulateGrad(Node):
    """The end of a graph: adds what arrives to the ``.grad`` of a leaf."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        super().__init__("AccumulateGrad")
        self.variable = variable

    @property
    def outputs(self) -> tuple[Output, ...]:  # type: ignore[bad-override]
        """The leaf."""
        return (
            Output(space_of(self.variable._data), self.variable.role, self.variable._data, True),
        )

    @property
    def role(self) -> str:
        """The role of the leaf."""
        return self.variable.role


class Handle:
    """Removes a hook: call `remove()`, or use it as a context manager."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, hooks: dict[int, Any], entry: Any) -> None:
        self._hooks, self._key = hooks, next(count)
        hooks[self._key] = entry

    def remove(self) -> None:
        """Remove the hook; a second time does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


count = itertools.count()
_leaf_lock = threading.Lock()


def edge_of(variable: Variable) -> Edge:
    """Where the gradient of a Variable arrives, ``(None, 0)`` if none is wanted."""
    node = variable._node
    if node is not None:
        return (node, variable._output_nr)
    if not variable._requires_grad:
        return (None, 0)
    extra = variable._extra
    if extra is not None and extra.accumulate is not None:
        node = extra.accumulate()
        if node is not None:
            return (node, 0)
    with _leaf_lock:
        reference = variable._more().accumulate
        node = None if reference is None else reference()
        if node is None:
            node = AccumulateGrad(variable)
            variable._more().accumulate = weakref.ref(node)
    return (node, 0)


def get_gradient_edge(variable: Variable) -> GradientEdge:
    """Where the gradient of a Variable arrives.

    Raises:
        GraphError: the Variable requires no gradient.

    Example:
        >>> x = Variable(2.0, requires_grad=True)
        >>> get_gradient_edge(x * x).node.name()
        'MultiplyBackward'
    """
    if not isinstance(variable, Variable):
        raise ArgumentTypeError(
            "A gradient edge belongs to a Variable.", given=type(variable).__name__
        )
    node, output_nr = edge_of(variable)
    if node is None:
        raise GraphError(
            "A Variable that requires no gradient has no gradient edge.", given=describe(variable)
        )
    return GradientEdge(node, output_nr)
