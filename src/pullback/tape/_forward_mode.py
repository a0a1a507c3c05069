"""`jvp` and `vjp`: the derivative of a callable, pushed forward or pulled back.

Forward mode runs the callable once, recorded from fresh inputs, and then pushes the tangents
through that record. Each call has inputs of its own, so nested calls cannot confuse their
tangents; and the rules it runs are operations on Variables, so its results can be differentiated
again, in either mode.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape import _layout
from pullback.tape._function import Function
from pullback.tape._mode import OFF, ON, mode, running
from pullback.tape._node import Edge, edge_of
from pullback.tape._plan import plan
from pullback.tape._registry import OPERATIONS, space_of
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
    with running(ON):
        result = func(*starts)
    outputs = _outputs(result, "jvp")
    with running(ON if outer else OFF):
        changes = _pushed(outputs, starts, given)
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
    with running(ON):
        result = func(*starts)
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


def _pushed(
    outputs: Sequence[Variable], starts: Sequence[Variable], given: Sequence[Any]
) -> list[Any]:
    """The tangents of the outputs, pushed from the starts through the record, node by node."""
    tangents: dict[Edge, Any] = dict(zip(map(edge_of, starts), given, strict=True))
    sources = {node for node, _ in tangents if node is not None}
    roots = dict.fromkeys(node for node, _ in map(edge_of, outputs) if node is not None)
    since = min((source.sequence for source in sources), default=0)
    for node in reversed(plan(list(roots), sources, since=since).order):
        arriving = [tangents.get(edge) for edge in node._next]
        if node in sources or all(tangent is None for tangent in arriving):
            continue
        leaving = node.push(arriving)
        if leaving is None:
            leaving = transpose(node, arriving)  # type: ignore[bad-argument-type]
        for number, tangent in enumerate(leaving):
            tangents[(node, number)] = tangent
    changes = [tangents.get(edge_of(output)) for output in outputs]
    return [
        space_of(output._data).zero() if change is None else change
        for output, change in zip(outputs, changes, strict=True)
    ]
