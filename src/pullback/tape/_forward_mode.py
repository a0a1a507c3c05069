"""`jvp` and `vjp`: the derivative of a callable, pushed forward or pulled back.

Forward mode runs the callable once, recorded from fresh inputs, and then pushes the tangents
through that record. Each call has inputs of its own, so nested calls cannot confuse their
tangents; and the rules it runs are operations on Variables, so its results can be differentiated
again, in either mode.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tape import _layout
from pullback.tape._concurrency import run
from pullback.tape._context import at_edge
from pullback.tape._function import Function
from pullback.tape._function_node import FunctionNode
from pullback.tape._mode import OFF, ON, Mode, mode
from pullback.tape._node import Edge, Node, edge_of
from pullback.tape._plan import plan
from pullback.tape._registry import OPERATIONS, space_of
from pullback.tape._second_order import guard, left_behind
from pullback.tape._transpose import transpose
from pullback.tape._variable import Variable, describe, wrap
from pullback.tape._verbs import grad

__all__ = ["jvp", "vjp"]


class Alias(Function):
    """The same value again, where a derivative starts."""

    _trusted = True
    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return a

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def _own(gradient: Variable) -> Variable:
    if gradient._requires_grad and mode.get().grad:
        return Alias.apply(gradient)
    return wrap(gradient._data, gradient.role)


OPERATIONS["own"] = _own


def jvp(
    func: Callable[..., Any], primals: Sequence[Variable], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The value of a callable and how it changes when its inputs change.

    A Function without a jvp has it derived where its outputs are numbers, or lists and mappings of
    them: it is the transpose of backward, if that is seen to be linear. There
    is no forward mode of texts, unless a Function writes a jvp of its own.

    Arguments:
        func: takes Variables, gives a Variable or a tuple of them.
        primals: its inputs.
        tangents: the change of each, in its space; None for none.

    Returns:
        The outputs and their tangents.

    Raises:
        ArgumentError: there is not one tangent for each primal.
        UnsupportedError: a tangent reaches a Function that cannot push it on.

    Example:
        >>> jvp(lambda x: x * x, (Variable(3.0),), (Variable(1.0),))
        (Variable(9.0), Variable(6.0))
    """
    batch = _layout.batch_in(_layout.find((func, primals, tangents))[0])
    if batch is not None:
        return batch.lift(jvp, (func, primals, tangents))
    starts = _starts(primals, "jvp")
    if len(tangents) != len(primals):
        raise ArgumentError(
            "There is not one tangent for each primal.",
            given=f"{len(tangents)} tangents", expected=str(len(primals)),
        )  # fmt: skip
    given = [
        None if tangent is None else _tangent(primal, tangent)
        for primal, tangent in zip(primals, tangents, strict=True)
    ]
    outer = mode.get().grad and any(
        variable is not None and variable._requires_grad for variable in (*primals, *given)
    )
    token = mode.set(ON)
    try:
        result = func(*starts)
        outputs = _outputs(result, "jvp")
        mode.set(ON if outer else OFF)
        changes = _Push(outputs, starts, given).run()
    finally:
        mode.reset(token)
    if not outer:
        outputs = [output.detach() for output in outputs]
        changes = [change.detach() for change in changes]
    if isinstance(result, Variable):
        return outputs[0], changes[0]
    return type(result)(outputs), type(result)(changes)


def vjp(func: Callable[..., Any], *primals: Variable) -> tuple[Any, Callable[..., Any]]:
    """The value of a callable and a function that pulls gradients back through it.

    Arguments:
        func: takes Variables, gives a Variable or a tuple of them.
        primals: its inputs.

    Returns:
        The outputs; and a function of one gradient for each output, that gives one for each
        primal, None where none arrives. It can be called again.

    Example:
        >>> value, pull = vjp(lambda x: x * x, Variable(3.0))
        >>> pull(Variable(1.0))
        (Variable(6.0),)
    """
    starts = _starts(primals, "vjp")
    token = mode.set(ON)
    try:
        result = func(*starts)
    finally:
        mode.reset(token)
    outputs = _outputs(result, "vjp")
    outer = mode.get().grad and any(primal._requires_grad for primal in primals)

    def pull(*gradients: Any) -> tuple[Any, ...]:
        if len(gradients) != len(outputs):
            raise ArgumentError(
                "There is not one gradient for each output.",
                given=f"{len(gradients)} gradients", expected=str(len(outputs)),
            )  # fmt: skip
        pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0]._requires_grad]
        if not pairs:
            return tuple(None for _ in starts)
        create = mode.get().grad and (
            outer or any(isinstance(g, Variable) and g._requires_grad for _, g in pairs)
        )
        return grad(
            [output for output, _ in pairs], starts, [gradient for _, gradient in pairs],
            retain_graph=True, create_graph=create, allow_unused=True,
        )  # fmt: skip

    if outer:
        return result, pull
    plain = [output.detach() for output in outputs]
    return plain[0] if isinstance(result, Variable) else type(result)(plain), pull


def _starts(primals: Sequence[Variable], verb: str) -> list[Variable]:
    starts = []
    for primal in primals:
        if not isinstance(primal, Variable):
            raise ArgumentTypeError(
                f"{verb} takes Variables as primals.", given=type(primal).__name__
            )
        recorded = primal._requires_grad and mode.get().grad
        starts.append(Alias.apply(primal) if recorded else primal._fresh())
    return starts


def _tangent(primal: Variable, tangent: Any) -> Any:
    space = space_of(primal._data)
    return space.conform(tangent, lambda detail: ArgumentTypeError(
        f"The tangent does not belong to its primal: {detail}.", given=describe(primal)
    ))  # fmt: skip


def _outputs(result: Any, verb: str) -> list[Variable]:
    outputs = [result] if isinstance(result, Variable) else result
    if not isinstance(outputs, list | tuple) or not all(
        isinstance(output, Variable) for output in outputs
    ):
        raise ArgumentTypeError(
            f"The callable given to {verb} returned no Variable.", given=type(result).__name__,
            expected="a Variable, or a tuple or list of Variables",
        )  # fmt: skip
    return list(outputs)


class _Push:
    """Tangents on their way from the starts to the outputs, node by node."""

    def __init__(
        self, outputs: Sequence[Variable], starts: Sequence[Variable], given: Sequence[Any]
    ) -> None:
        self.outputs = outputs
        self.tangents: dict[Edge, Any] = {}
        self.sources: set[Node] = set()
        for start, tangent in zip(starts, given, strict=True):
            edge = edge_of(start)
            if edge[0] is not None:
                self.sources.add(edge[0])
                self.tangents[edge] = tangent
        roots = [node for node, _ in map(edge_of, outputs) if node is not None]
        since = min((source.sequence for source in self.sources), default=0)
        self.order = plan(list(dict.fromkeys(roots)), self.sources, since=since).order[::-1]

    def run(self) -> list[Any]:
        """The tangents of the outputs."""
        for node in self.order:
            if node not in self.sources:
                self._push(node)
        changes = []
        for output in self.outputs:
            tangent = self.tangents.get(edge_of(output)) if output._requires_grad else None
            changes.append(space_of(output._data).zero() if tangent is None else tangent)
        return changes

    def _push(self, node: Node) -> None:
        tangents = [self.tangents.get(edge) for edge in node._next]
        if all(tangent is None for tangent in tangents):
            return
        if not isinstance(node, FunctionNode):
            self._store(node, node.push(tangents))
            return
        call = node.jvp_call(tangents)
        if call is None:
            self._store(node, transpose(node, tangents))
            return
        now, (rule, args) = mode.get(), call
        watch = Mode(now.grad, [] if now.grad and not node.definition.trusted else None)
        token = mode.set(watch)
        try:
            awaited = "jvp" in node.definition.asynchronous
            returned = run(rule(*args)) if awaited else rule(*args)
        finally:
            mode.reset(token)
        self._store(node, _settled(node, watch, node.jvp_answer(returned)))

    def _store(self, node: Node, tangents: Sequence[Any]) -> None:
        for number, tangent in enumerate(tangents):
            if tangent is not None:
                self.tangents[(node, number)] = tangent


def _settled(node: FunctionNode, watch: Mode, answers: list[Any]) -> list[Any]:
    """The tangents; tied to a refusal where the rule has read what has no history."""
    seen = [] if watch.watch is None else [*watch.watch, *left_behind(node)]
    if not seen:
        return answers
    read = [each for each in seen if isinstance(each, Variable)]
    error = UnsupportedError(
        f"The jvp of {node.title()} reads data as plain data, so the derivative of its tangent is "
        "not known.",
        mend="Compute with the Variables themselves.",
    )
    inputs = [at_edge(0.0, "", edge) for edge in node._next if edge[0] is not None]
    return guard(answers, read if len(read) == len(seen) else inputs, error)
