"""`jvp` and `vjp`: the derivative of a callable, pushed forward or pulled back.

Forward mode runs the callable once, recorded from fresh inputs, and then pushes the tangents
through that record. Each call has inputs of its own, so nested calls cannot confuse their
tangents; and the rules it runs are operations on Variables, so its results can be differentiated
again, in either mode.

The jvp of a Function that has none is the transpose of its backward, where that is linear.
Backward is B(c) = J^T c. Recorded for a cotangent c that is a leaf, <B(c), t> is a number whose
gradient with respect to c is J t, for all outputs at once. That holds if B is linear in c, and the
record shows whether it is: each operation on what comes from c is linear in it, and B(0) = 0. No
point is tried and nothing is remembered, so the answer is the same whatever was run before.

What is kept from the record (c read as plain data, detached, used without recording, or asked for
a decision) is seen by the watch.

Source: linearise and transpose, Radul et al. 2022, "You only linearize once", arXiv:2204.10923.
"""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._arguments import checked
from pullback.tape import _layout
from pullback.tape._application import Application
from pullback.tape._engine import Pass
from pullback.tape._mode import OFF, ON, Mode, mode, running
from pullback.tape._node import (
    AccumulateGrad,
    Edge,
    GradientEdge,
    Node,
    edge_of,
    get_gradient_edge,
    plan,
)
from pullback.tape._registry import Space, space_of
from pullback.tape._spaces import Alias
from pullback.tape._variable import Variable, describe, wrap
from pullback.tape._verbs import grad

__all__ = ["jvp", "vjp"]


@checked
def jvp(
    func: Callable[..., Any], primals: Sequence[Variable], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The value of a callable and how it changes when its inputs change.

    A Function without a jvp has it derived: it is the transpose of backward, if that is seen to be
    linear. There is no forward mode of texts, unless a Function writes a jvp of its own.

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
    alone = next((each for each in (primals, tangents) if isinstance(each, Variable)), None)
    if alone is not None or len(tangents) != len(primals):
        raise ArgumentTypeError(
            "The primals and the tangents are lists, with one entry for each argument.",
            given=f"{len(primals)} primals, {len(tangents)} tangents" if alone is None
            else describe(alone),
            mend="Pass (x,) for one.",
        )  # fmt: skip
    pairs = zip(primals, tangents, strict=True)
    given = [t if t is None else p._conformed(t, "tangent", "primal") for p, t in pairs]
    outer = mode.get().grad and any(
        variable is not None and variable._requires_grad for variable in (*primals, *given)
    )
    starts, result, outputs = _recorded(func, primals, "jvp")
    with running(ON if outer else OFF):
        changes = _pushed(outputs, starts, given)
    return _formed(result, outputs, outer), _formed(result, changes, outer)


@checked
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
    starts, result, outputs = _recorded(func, primals, "vjp")
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

    return _formed(result, outputs, outer), pull


def _recorded(
    func: Callable[..., Any], primals: Sequence[Variable], verb: str
) -> tuple[list[Variable], Any, list[Variable]]:
    """Where the derivative starts, what a callable gave from there, and its outputs."""
    now = mode.get().grad
    starts = [Alias.apply(p) if now and p._requires_grad else p._fresh() for p in primals]
    with running(ON):
        result = func(*starts)
    outputs = list(result) if isinstance(result, list | tuple) else [result]
    if not all(isinstance(output, Variable) for output in outputs):
        raise ArgumentTypeError(
            f"The callable given to {verb} returned no Variable.", given=type(result).__name__,
            expected="a Variable, or a tuple or list of Variables",
        )  # fmt: skip
    return starts, result, outputs


def _formed(result: Any, values: Sequence[Variable], outer: bool) -> Any:
    """Values in the form of a result, with their history where there is one around."""
    values = values if outer else [value.detach() for value in values]
    return values[0] if isinstance(result, Variable) else type(result)(values)


def _pushed(
    outputs: Sequence[Variable], starts: Sequence[Variable], given: Sequence[Any]
) -> list[Any]:
    """The tangents of the outputs, pushed from the starts through the record, node by node."""
    tangents: dict[Edge, Any] = dict(zip(map(edge_of, starts), given, strict=True))
    sources = {node for node, _ in tangents if node is not None}
    roots = dict.fromkeys(node for node, _ in map(edge_of, outputs) if node is not None)
    since = min((source.sequence for source in sources), default=0)
    for node in reversed(plan(list(roots), sources, since=since)):
        arriving = [tangents.get(edge) for edge in node._next]
        if node in sources or all(tangent is None for tangent in arriving):
            continue
        leaving = node.push(arriving)
        if leaving is None:
            leaving = _transposed(node, arriving)
        for number, tangent in enumerate(leaving):
            tangents[(node, number)] = tangent
    changes = [tangents.get(edge_of(output)) for output in outputs]
    return [
        space_of(output._data).zero() if change is None else change
        for output, change in zip(outputs, changes, strict=True)
    ]


def _transposed(node: Node, tangents: Sequence[Any]) -> list[Any]:
    """The tangents of the outputs of a node, from its backward alone; that must be linear."""
    spaces = [output.space if output.differentiable else None for output in node.outputs]
    if isinstance(node, Application):
        _refuse_by_kind(node, spaces)
    zeros = [None if s is None else Variable(s.zero()._data, requires_grad=True) for s in spaces]
    edges = [None if zero is None else get_gradient_edge(zero) for zero in zeros]
    starts = [edge for edge in edges if edge is not None]
    decided: list[Any] = []
    with running(Mode(True, decided)):
        sent = node.pull(zeros, [tangent is not None for tangent in tangents], True, None)
    record = _record(sent, starts)
    if isinstance(node, Application):
        if _record([each[0] for each in decided if isinstance(each, tuple)], starts):
            raise _refusal(node, "its backward is not linear: it decides by its gradient")
        _check_linear(node, sent, record)
    pushed: dict[Any, Any] = {}
    if record:
        pairs = zip(sent, tangents, strict=True)
        with running(ON):  # <B(c), t>
            inner = [
                space_of(tangent._data).inner(gradient, tangent)
                for gradient, tangent in pairs if gradient is not None and tangent is not None
            ]  # fmt: skip
            pairing = get_gradient_edge(functools.reduce(operator.add, inner))
        since = starts[0].node.sequence
        wanted = mode.get().grad
        back = Pass([(pairing, wrap(1.0))], dict.fromkeys(starts), wanted, since=since)
        back.run()
        back.commit(retain_graph=True)
        pushed = back.captured
    return [
        pushed[edge] if edge in pushed else None if space is None else space.zero()
        for edge, space in zip(edges, spaces, strict=True)
    ]


def _refuse_by_kind(node: Application, spaces: Sequence[Space | None]) -> None:
    definition = node.definition
    why = (
        "there is no forward mode of texts" if any(s is not None and s.textual for s in spaces)
        else "its backward is not linear" if definition.gradient == "nonlinear"
        else "its backward is awaited" if inspect.iscoroutinefunction(definition.backward)
        else "its backward is once_differentiable, so no record shows whether it is linear"
        if definition.once else ""
    )  # fmt: skip
    if why:
        raise _refusal(node, why)


def _refusal(node: Application, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{node.title()} has no jvp, and none can be derived: {why}.",
        expected="a backward that is seen to be linear in the gradient",
        mend="Define jvp on the Function; or write backward in operations on Variables.",
    )


def _record(values: Sequence[Any], starts: Sequence[GradientEdge]) -> dict[Node, int]:
    """The operations between the cotangents and some values; none is older than a cotangent."""
    since = starts[0].node.sequence
    edges = [edge_of(each) for each in values if isinstance(each, Variable)]
    roots = [root for root, _ in edges if root is not None and root.sequence >= since]
    return plan(list(dict.fromkeys(roots)), [edge.node for edge in starts], since=since)


def _check_linear(node: Application, sent: Sequence[Any], record: Collection[Node]) -> None:
    """Each operation between the cotangents and what backward sends is linear in what it gets."""
    for each in record:
        if type(each) is AccumulateGrad:
            continue
        kind = getattr(each, "definition", each).linear
        depends = [n for n, (before, _) in enumerate(each._next) if before in record]
        linear = (
            kind == "jointly" or (kind == "each" and len(depends) == 1)
            or (kind == "first" and depends == [0])
        )  # fmt: skip
        if not linear:
            raise _refusal(node, f"its backward is not linear, or not seen to be: {each.title()}")
    for gradient in sent:
        # Zero may have become NaN: an infinite slope times nothing.
        for value in () if gradient is None else _layout.leaves(gradient._data):
            space, part = space_of(value), wrap(value)
            if not space.differentiable or space.textual:
                continue
            square = space.inner(part, part)._data
            if square != 0 and not math.isnan(square):
                raise _refusal(node, "its backward is not linear: it sends something for nothing")
