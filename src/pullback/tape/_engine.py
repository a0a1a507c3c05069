"""The engine: runs a graph back from its roots, node by node, and commits at the end.

Nothing outside a pass changes before the pass has succeeded: gradients gather in the pass, and
leaves receive them together in one step. A failure or a cancellation therefore leaves the graph
as it was, to be run again, and nothing is ever accumulated twice.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import Any

from pullback.tape._concurrency import drive, run
from pullback.tape._mode import OFF, ON, Mode, running
from pullback.tape._node import AccumulateGrad, GradientEdge, Node, Step, plan
from pullback.tape._refusal import hooked
from pullback.tape._registry import space_of
from pullback.tape._variable import Variable

__all__ = ["Pass"]

# One gradient on its way: the place of the node that sent it, of its edge, the output that it
# belongs to, and the gradient.
Arrival = tuple[int, int, int, Any]

_commit_lock = threading.RLock()


class Pass:
    """One backward pass, from gradients at some edges.

    Each edge that is wanted comes with the Variable whose ``.grad`` receives its gradient, or None
    if that is a result; where None are, every leaf accumulates. A node among the stops is not run:
    what arrives at it is a result.
    """

    def __init__(
        self,
        roots: Sequence[tuple[GradientEdge, Any]],
        wanted: Mapping[GradientEdge, Variable | None] | None = None,
        create_graph: bool = False,
        stops: Sequence[Node] = (),
        since: int = 0,
    ) -> None:
        self.captured: dict[Any, Any] = {}
        self._leaves = wanted is None
        self._wanted: Mapping[Any, Variable | None] = wanted or {}
        self._create_graph = create_graph
        self._mode = ON if create_graph else OFF
        self._special = {node for node, _ in self._wanted}
        self._stops = frozenset(stops)
        starts = dict.fromkeys(edge.node for edge, _ in roots)
        targets = None if self._leaves else self._special
        self._order = plan(list(starts), targets, self._stops, since)
        self._inbox: dict[Node, list[Arrival]] = {}
        for number, (edge, gradient) in enumerate(roots):
            if edge.node in self._order:
                arrival = (-1, number, edge.output_nr, gradient)
                self._inbox.setdefault(edge.node, []).append(arrival)
        self._commits: list[tuple[Variable, Any]] = []
        self._outside: list[Any] = []
        self._later: dict[Callable[..., Any], list[Any]] = {}

    def run(self) -> None:
        """Run the nodes from synchronous code: one after another in this thread, if none waits."""
        if True in [node.waits for node in self._order]:
            run(self.arun())
            return
        with running(self._mode):
            for node, index in self._order.items():
                self._step(index, node)
            self._end()

    async def arun(self) -> None:
        """Run each node as soon as all that flows into it is there."""
        steps: TopologicalSorter[int] = TopologicalSorter()
        nodes = list(self._order)
        for node, number in self._order.items():
            steps.add(number)
            for following, _ in node._next:
                if following in self._order:
                    steps.add(self._order[following], number)
        with running(self._mode):
            await drive(
                steps,
                lambda index: self._step(index, nodes[index]),
                lambda index, pair: self._deliver(index, nodes[index], *pair),
            )
            self._end()

    def _end(self) -> None:
        """Run what nodes have left until all has come to the rest of them."""
        for together, parts in self._later.items():
            self._outside.append(together(parts, self._create_graph))

    async def _awaited(
        self, node: Any, gradients: Sequence[Any], needed: list[bool] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        return await node.apull(gradients, needed, self._create_graph), gradients

    def _step(self, index: int, node: Node) -> Any:
        """Run a node to which something has come; what is to be awaited, if its rule waits."""
        arrivals = self._inbox.pop(node, None)
        if arrivals is None:
            return None
        if len(arrivals) > 1:  # they may have come in another order
            arrivals.sort(key=itemgetter(0, 1))
        gradients = self._receive(node, arrivals)
        if type(node) is AccumulateGrad:
            self._accumulate(node, gradients)
            return None
        if node in self._special:
            self._take(node, gradients)
        needed = None if self._leaves else self._needed(node)  # None: no edge needs a look
        if node in self._stops:
            gradients = self._before(node, gradients)
            self.captured.update(((node, n), gradient) for n, gradient in enumerate(gradients))
        elif needed is None or True in needed:  # else its own is the last that is wanted
            gradients = self._before(node, gradients)
            if node.waits:
                return functools.partial(self._awaited, node, gradients, needed)
            later = self._later if self._leaves else None
            sent = node.pull(gradients, needed, self._create_graph, later)
            self._deliver(index, node, sent, gradients)
        return None

    def _accumulate(self, node: AccumulateGrad, gradients: Sequence[Any]) -> None:
        """End at a leaf; the hooks of its node run where it receives the gradient."""
        if self._leaves or self._wanted.get((node, 0)) is not None:
            gradients = self._before(node, gradients)
            if node._hooks is not None:  # which find the gradient in its .grad
                self._outside += [functools.partial(s, ()) for s in node._hooks_after(gradients)]
        if self._leaves and node.variable._requires_grad:  # still
            self._commits.append((node.variable, gradients[0]))
        if node in self._special:
            self._take(node, gradients)

    def _receive(self, node: Node, arrivals: list[Arrival]) -> Sequence[Any]:
        """The gradient of each output, added up in an order that no timing changes."""
        outputs = node.outputs
        leaf = type(node) is AccumulateGrad
        if leaf and node.variable._version:
            # The leaf was changed, and may be of another kind than when it was used.
            fit = node.variable._conformed
            arrivals = [
                (index, number, at, fit(gradient)) for index, number, at, gradient in arrivals
            ]
        gradients: list[Any] = [None] * len(outputs)
        if len(arrivals) == 1:  # mostly
            _, _, number, gradient = arrivals[0]
            space = outputs[number].space
            if space is not None and space.textual:  # of one note Feedback; else it is its own sum
                gradient = space.total((gradient,))
            gradients[number] = gradient
        else:
            parts: dict[int, list[Any]] = {}
            for _, _, number, gradient in arrivals:
                parts.setdefault(number, []).append(gradient)
            for number, part in parts.items():
                space = outputs[number].space
                if space is not None:
                    gradients[number] = space.total(part)
        received: Sequence[Any] = gradients
        if node._prehooks is not None or (leaf and node.variable._hooks):
            received = self._hooked(node, node._hooks_of_outputs(), gradients)
        if node._retained is not None:
            for number, reference in node._retained.items():
                variable = reference()
                if variable is not None and received[number] is not None:
                    self._commits.append((variable, received[number]))
        return received

    def _before(self, node: Node, gradients: Sequence[Any]) -> Sequence[Any]:
        """What the hooks before a rule that runs make of its gradients."""
        if node._prehooks is None:
            return gradients
        return self._hooked(node, node._hooks_before(), gradients)

    def _hooked(self, node: Node, hooks: Sequence[Step], gradients: Sequence[Any]) -> Sequence[Any]:
        """What hooks make of gradients; where that is recorded, each is watched as rules are."""
        for hook in hooks:
            if not self._create_graph:
                gradients = hook(gradients)
                continue
            received, read = gradients, list[Any]()
            with running(Mode(True, read)):
                gradients = hook(received)
            gradients = hooked(node, read, gradients, received)
        return gradients

    def _take(self, node: Node, gradients: Sequence[Any]) -> None:
        """Keep the gradients that were asked for at this node."""
        for number, gradient in enumerate(gradients):
            if gradient is None or (node, number) not in self._wanted:
                continue
            receiver = self._wanted[node, number]
            if receiver is None:
                self.captured[node, number] = gradient
            else:
                self._commits.append((receiver, gradient))

    def _needed(self, node: Node) -> list[bool]:
        """For each edge of a node, whether it leads to something wanted."""
        return [following in self._order for following, _ in node._next]

    def _deliver(
        self, index: int, node: Node, sent: Sequence[Any], received: Sequence[Any]
    ) -> None:
        if node._hooks is not None:
            sent = self._hooked(node, node._hooks_after(received), sent)
        inbox = self._inbox
        leaves, order = self._leaves, self._order
        number = -1
        for following, output_nr in node._next:
            number += 1
            gradient = sent[number]
            if gradient is None or following is None:
                continue
            if following in inbox:
                inbox[following].append((index, number, output_nr, gradient))
            elif leaves or following in order:
                inbox[following] = [(index, number, output_nr, gradient)]

    def commit(self, retain_graph: bool | None) -> None:
        """Give the leaves their gradients, all at once, and free the graph.

        It is kept if the rules were recorded, where nothing else is said.
        """
        # One pass at a time reads and writes ``.grad``, or of two threads that add to one leaf the
        # later would overwrite the earlier. The sums are made first and set together: what fails or
        # interrupts while they are made leaves every leaf as it was.
        with _commit_lock:
            totals: dict[int, tuple[Variable, Any]] = {}
            with running(self._mode):
                for variable, gradient in self._commits:
                    before = totals[id(variable)][1] if id(variable) in totals else variable._grad
                    space = space_of(variable._data)
                    if before is not None and variable._version:  # of another kind by now?
                        before = variable._conformed(before)
                    totals[id(variable)] = (variable, space.accumulate(before, gradient))
            self._commits = []
            retained = self._create_graph if retain_graph is None else retain_graph
            freed: list[Node] = []
            if not retained:
                every = list(self._order)
                freed = every if self._leaves else [n for n in every if True in self._needed(n)]
            try:
                if totals:  # one call that runs no Python in between, so no interrupt splits it
                    deque(map(_set_grad, *zip(*totals.values(), strict=True)), maxlen=0)
                for node in freed:
                    node.released()
            except BaseException:  # interrupted: free the rest, so that no second run adds again
                for node in freed:
                    node.released()
                raise
        for outside in self._outside:
            outside()
        for variable, _ in totals.values():
            for hook in tuple(variable._post_hooks.values()):
                hook(variable)


_set_grad = Variable._grad.__set__  # type: ignore[missing-attribute]
