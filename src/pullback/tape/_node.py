"""Graph nodes, the edges between them, and the order in which a pass runs them."""

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from pullback.errors import ArgumentError, ArgumentTypeError, GraphError
from pullback.internal._arguments import checked, is_whole
from pullback.internal._text import shown
from pullback.tape._registry import Space, space_of
from pullback.tape._variable import Handle, Variable

__all__ = [
    "AccumulateGrad",
    "Edge",
    "GradientEdge",
    "Node",
    "Output",
    "count",
    "edge_of",
    "get_gradient_edge",
    "plan",
]


Edge = tuple["Node | None", int]
Step = Callable[[Sequence[Any]], Sequence[Any]]


class GradientEdge(NamedTuple):
    """The place in a graph where a gradient arrives: an output of a node.

    Arguments:
        node: the node.
        output_nr: which of its outputs.
    """

    node: "Node"
    output_nr: int


class Output(NamedTuple):
    """What a node remembers of one of its outputs: of a value that is plain its data, for pictures.

    The space is None for an output that is no Variable.
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
    linear = ""
    waits = False  # whether its rule waits for something, so that others should run beside it

    @checked
    def __init__(self, name: str = "Node", next_functions: Iterable[Any] = ()) -> None:
        self._name = name
        self.sequence = next(count)
        self._hooks: dict[Any, Callable[..., Any]] | None = None
        self._prehooks: dict[Any, tuple[int | None, Callable[..., Any]]] | None = None
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
        pairs = tuple(edges)
        for edge in pairs:
            pair = isinstance(edge, tuple | list) and len(edge) == 2 and is_whole(edge[1])
            if not pair or not (edge[0] is None or isinstance(edge[0], Node)):
                raise ArgumentTypeError(
                    "An edge of a graph is a pair of a Node, or None, and the number of one of "
                    "its outputs.",
                    given=shown(edge),
                )
        pairs = tuple(map(tuple, pairs))
        self._next: tuple[Edge, ...] = pairs  # type: ignore[bad-assignment]

    @property
    def role(self) -> str:
        """The role of what the operation made, for messages."""
        for output in self.outputs:  # a generator would cost a node of texts a tenth of its time
            if output.role:
                return output.role
        return ""

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> Handle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the rule; what it returns replaces.

        Returns:
            A handle with `remove()`.
        """
        return Handle(self, "_hooks", hook)

    @checked
    def register_prehook(self, hook: Callable[[Any], Any], output_nr: int | None = None) -> Handle:
        """Call ``hook(grad_outputs)`` before the rule; what it returns replaces.

        Arguments:
            hook: given a tuple of the gradients; of one output alone if ``output_nr`` is given.
            output_nr: which output.

        Returns:
            A handle with `remove()`.
        """
        if output_nr is not None and output_nr not in range(len(self.outputs)):
            raise ArgumentError(f"{self.title()} has no such output.", given=f"{output_nr=}",
                                expected=f"below {len(self.outputs)}")  # fmt: skip
        return Handle(self, "_prehooks", (output_nr, hook))

    def retain(self, output_nr: int, variable: Variable) -> None:
        """Give a Variable that is not a leaf the gradient of its output, as long as it lives."""
        self._retained = {**(self._retained or {}), output_nr: weakref.ref(variable)}

    # Each hook is a step from the gradients that reach it to those that leave it.

    def _hooks_of_outputs(self) -> list[Step]:
        """The hooks of what the node made: before all others, whether or not the rule runs."""
        pairs = (self._prehooks or {}).values()
        return [partial(self._at, number, hook) for number, hook in pairs if number is not None]

    def _hooks_before(self) -> list[Step]:
        """The hooks before the rule."""
        spaces = [output.space for output in self.outputs]
        pairs = (self._prehooks or {}).values()
        return [partial(self._replaced, hook, spaces) for number, hook in pairs if number is None]

    def _hooks_after(self, received: Sequence[Any]) -> list[Step]:
        """The hooks after the rule, which gave gradients for those that it had received."""
        spaces = [None if node is None else node.outputs[nr].space for node, nr in self._next]
        return [
            partial(self._replaced, lambda sent, hook=hook: hook(sent, tuple(received)), spaces)
            for hook in (self._hooks or {}).values()
        ]

    def _at(self, number: int, hook: Callable[[Any], Any], before: Sequence[Any]) -> Sequence[Any]:
        """What the hook of one output makes of the gradients."""
        if before[number] is None:
            return before
        space = self.outputs[number].space
        [found] = self._replaced(lambda one: hook(*one), [space], [before[number]])
        return [*before[:number], found, *before[number + 1 :]]

    def _replaced(
        self, hook: Callable[[Any], Any], spaces: Sequence[Space | None], before: Sequence[Any]
    ) -> Sequence[Any]:
        """The gradients that a hook gives in place of others, if it gives any."""
        answer = hook(tuple(before))
        if answer is None:
            return before
        answers = answer if isinstance(answer, tuple) else (answer,)
        if len(answers) != len(spaces):
            raise ArgumentTypeError(
                f"A hook of {self.title()} returned a wrong number of gradients.",
                given=str(len(answers)), expected=str(len(spaces)),
            )  # fmt: skip

        def complain(detail: str) -> Exception:
            return ArgumentTypeError(
                f"A hook of {self.title()} returned no gradient for it: {detail}."
            )

        found = list(answers)
        for number, (space, each) in enumerate(zip(spaces, answers, strict=True)):
            if each is not None:
                if space is None:
                    raise complain("the output has none")
                found[number] = space.total((space.conform(each, complain),))
        return found

    def released(self) -> None:
        """Forget the saved values after a backward pass that does not retain the graph."""

    def pull(
        self, gradients: Any, needed: Sequence[bool] | None, create_graph: bool, later: Any
    ) -> Sequence[Any]:
        """Run the rule.

        Arguments:
            gradients: one an output, None where nothing arrived.
            needed: for each edge, whether its gradient is wanted; None if all that can be.
            create_graph: whether the rule is recorded.
            later: for a function the parts that it is called with when all nodes have run; what it
                gives is called when the whole pass has succeeded. None if no leaf accumulates.

        Returns:
            One gradient an edge.
        """
        self._refuse()

    def push(self, tangents: Any) -> list[Any] | None:
        """Push tangents through, one an edge; None where that is to be derived from `pull`."""
        return None

    def _refuse(self) -> NoReturn:
        raise GraphError(
            f"{self.title()} has no rule to run.",
            mend="A node made by hand or read from JSON is for looking at.",
        )

    def __reduce__(self) -> NoReturn:
        raise GraphError(
            "A node of a graph is not copied or pickled.", given=self.title(),
            mend="graph.to_json saves a whole graph.",
        )  # fmt: skip

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

    def _hooks_of_outputs(self) -> list[Step]:
        """The hooks of the leaf go first."""
        mine = [partial(self._at, 0, hook) for hook in self.variable._hooks.values()]
        return mine + super()._hooks_of_outputs()


count = itertools.count()
_leaf_lock = threading.Lock()


def edge_of(variable: Variable) -> Edge:
    """Where the gradient of a Variable arrives, ``(None, 0)`` if none is wanted."""
    node = variable._node
    if node is not None:
        return (node, variable._output_nr)
    if not variable._requires_grad:
        return (None, 0)
    reference = variable._accumulate
    node = None if reference is None else reference()
    if node is not None:
        return (node, 0)
    # Two threads that use one leaf for the first time must get one node, or hooks and sums split.
    # The leaf holds it weakly, for the node holds the leaf: a graph keeps both, and nothing else.
    with _leaf_lock:
        reference = variable._accumulate
        node = None if reference is None else reference()
        if node is None:
            node = AccumulateGrad(variable)
            variable._accumulate = weakref.ref(node)
    return (node, 0)


@checked
def get_gradient_edge(variable: Variable) -> GradientEdge:
    """Where the gradient of a Variable arrives.

    Raises:
        GraphError: the Variable requires no gradient.

    Example:
        >>> x = Variable(2.0, requires_grad=True)
        >>> get_gradient_edge(x * x).node.name()
        'MultiplyBackward'
    """
    variable._need_gradient("A gradient was asked for at")
    return GradientEdge(*edge_of(variable))  # type: ignore[bad-argument-type]


def plan(
    roots: Sequence[Node],
    wanted: Collection[Node] | None,
    stops: Collection[Node] = (),
    since: int = 0,
) -> dict[Node, int]:
    """The nodes that are reached from some roots, each with its place before all it flows to."""
    # The order depends on the graph alone: it is the reverse postorder of a depth-first walk along
    # the edges in their order, which does not go beyond the stops. Only what leads to a wanted node
    # is kept (None wants every leaf), and nothing older than `since`, which cannot depend on one.
    finished: dict[Node, bool] = {}  # False while the walk is below the node
    postorder: list[Node] = []
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        state = finished.get(node)
        if state is not None:
            stack.pop()
            if not state:  # all below it is finished
                finished[node] = True
                postorder.append(node)
            continue
        finished[node] = False
        for following, _ in () if node in stops else node._next[::-1]:
            if following is not None and following.sequence >= since:
                state = finished.get(following)
                if state is None:
                    stack.append(following)
                elif not state:
                    _cycle(following, stack, finished)
    postorder.reverse()
    if wanted is not None:
        kept: set[Node] = set()
        for node in reversed(postorder):
            if node in wanted or any(following in kept for following, _ in node._next):
                kept.add(node)
        postorder = [node for node in postorder if node in kept]
    return dict(zip(postorder, range(len(postorder)), strict=True))


def _cycle(start: Node, stack: list[Node], finished: dict[Node, bool]) -> NoReturn:
    """Name the nodes of the cycle: those below the start that the walk has not finished."""
    path = [node for node in dict.fromkeys(reversed(stack)) if finished.get(node) is False]
    names = [node.title() for node in path[: path.index(start) + 1]]
    raise GraphError(
        "The graph has a cycle, so no order to run it in.",
        given=" -> ".join([*reversed(names), start.title()][:8]),
        mend="Nodes whose next_functions were set by hand must not lead back.",
    )
