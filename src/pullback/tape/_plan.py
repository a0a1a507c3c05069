"""The order in which a backward pass runs the nodes of a graph."""

from collections.abc import Collection, Sequence
from typing import NoReturn

from pullback.errors import GraphError
from pullback.tape._node import Node

__all__ = ["Plan", "plan"]


class Plan:
    """The nodes that a pass runs, each before all that its gradients flow to.

    The order depends on the graph alone: it is the reverse postorder of a depth-first walk along
    the edges in their order.

    Attributes:
        order: the nodes.
        index: the place of each node in the order.
        everything: whether every node is wanted, so that no edge needs a second look.
    """

    __slots__ = ("everything", "index", "order")

    def __init__(self, order: list[Node], everything: bool) -> None:
        self.order = order
        self.everything = everything
        self.index = dict(zip(order, range(len(order)), strict=True))


def plan(
    roots: Sequence[Node],
    wanted: Collection[Node] | None,
    stops: Collection[Node] = (),
    since: int = 0,
) -> Plan:
    """Order the nodes that are reached from some roots.

    Arguments:
        roots: where gradients come in.
        wanted: the nodes that gradients are wanted at; only what leads to one of them is kept.
            None wants every leaf.
        stops: nodes that the walk does not go beyond.
        since: the number of the oldest node that is of interest: none older can depend on it.

    Raises:
        GraphError: the graph has a cycle.
    """
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
        for following, _ in reversed(node._next) if node not in stops else ():
            if following is not None and following.sequence >= since:
                state = finished.get(following)
                if state is None:
                    stack.append(following)
                elif not state:
                    _cycle(following, stack, finished)
    postorder.reverse()
    if wanted is None:
        return Plan(postorder, True)
    kept = _leading_to(postorder, wanted)
    return Plan([node for node in postorder if node in kept], False)


def _leading_to(order: list[Node], wanted: Collection[Node]) -> set[Node]:
    kept: set[Node] = set()
    for node in reversed(order):
        if node in wanted or any(following in kept for following, _ in node._next):
            kept.add(node)
    return kept


def _cycle(start: Node, stack: list[Node], finished: dict[Node, bool]) -> NoReturn:
    """Name the nodes of the cycle: those below the start that the walk has not finished."""
    path = [node for node in dict.fromkeys(reversed(stack)) if finished.get(node) is False]
    names = [node.title() for node in path[: path.index(start) + 1]]
    raise GraphError(
        "The graph has a cycle, so no order to run it in.",
        given=" -> ".join([*reversed(names), start.title()][:8]),
        mend="Nodes whose next_functions were set by hand must not lead back.",
    )
