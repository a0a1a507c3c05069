"""The jvp of a Function that has none: the transpose of its backward, where that is linear.

Backward is B(c) = J^T c. Recorded for a cotangent c that is a leaf, <B(c), t> is a number whose
gradient with respect to c is J t, for all outputs at once. That holds if B is linear in c, and the
record shows whether it is: each operation on what comes from c is linear in it, and B(0) = 0. No
point is tried and nothing is remembered, so the answer is the same whatever was run before.

What is kept from the record (c read as plain data, detached, used without recording) is seen
either by the watch or by the one number <B(1), t> = <1, J t>, with which the transpose must agree.

Source: linearise and transpose, Radul et al. 2022, "You only linearize once", arXiv:2204.10923.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from pullback.errors import UnsupportedError
from pullback.tape._engine import Pass
from pullback.tape._function_node import FunctionNode
from pullback.tape._mode import OFF, Mode, mode, running
from pullback.tape._node import AccumulateGrad, GradientEdge, Node, edge_of
from pullback.tape._numbers import NUMBER
from pullback.tape._plan import Plan, plan
from pullback.tape._registry import Space
from pullback.tape._second_order import settle
from pullback.tape._variable import Variable, wrap

__all__ = ["transpose"]


def transpose(node: FunctionNode, tangents: Sequence[Any]) -> list[Any]:
    """The tangents of the outputs of a node, from its backward alone.

    Raises:
        UnsupportedError: its backward is not linear, or that cannot be seen.
    """
    _refuse_by_kind(node)
    carries = [output.space is not None and output.differentiable for output in node.outputs]
    spaces = [output.space if carry else None
              for output, carry in zip(node.outputs, carries, strict=True)]  # fmt: skip
    if not all(space is None or _is_numeric(space) for space in spaces):
        raise _refusal(node, "an output is no number, nor a list or mapping of them")
    wanted = mode.get().grad
    watch = Mode(True, None if node.definition.trusted else [])
    zero = _cotangents(spaces, 0.0)
    edges = [GradientEdge(*edge_of(leaf)) for leaf in zero if leaf is not None]  # type: ignore[bad-argument-type]
    starts = {edge.node for edge in edges}
    sent = _pull(node, zero, tangents, watch)
    if any(_record([each], starts).order for each in watch.watch or ()):
        raise _refusal(node, "its backward reads its gradient as plain data")
    record = _record(sent, starts)
    _check_linear(node, sent, record)
    pushed: list[Any] = [None] * len(edges)
    if record.order:
        pairing = GradientEdge(*edge_of(_pair(node, sent, tangents, watch)))  # type: ignore[bad-argument-type]
        back = Pass([(pairing, wrap(1.0))], edges, create_graph=wanted, since=_oldest(starts))
        back.run()
        back.commit(retain_graph=True)
        pushed = [back.captured.get(edge) for edge in edges]
    if not node.definition.trusted:
        _check_value(node, spaces, tangents, pushed)
    made = iter([
        space.zero() if each is None else each
        for space, each in zip([s for s in spaces if s is not None], pushed, strict=True)
    ])  # fmt: skip
    results = [next(made) if carry else None for carry in carries]
    return settle(node, "derived jvp", watch.watch if wanted else None, results)


def _refuse_by_kind(node: FunctionNode) -> None:
    definition = node.definition
    texts = any(o.space is not None and o.space.name == "text" for o in node.outputs)
    why = (
        "there is no forward mode of texts" if texts
        else "its backward is not linear" if definition.gradient == "nonlinear"
        else "its backward is awaited" if "backward" in definition.asynchronous
        else "its backward is once_differentiable, so no record shows whether it is linear"
        if definition.once else ""
    )  # fmt: skip
    if why:
        raise _refusal(node, why)


def _refusal(node: FunctionNode, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{node.title()} has no jvp, and none can be derived: {why}.",
        expected="a backward that is seen to be linear in the gradient",
        mend="Define jvp on the Function; or write backward in operations on Variables.",
    )


def _is_numeric(space: Space) -> bool:
    slots = getattr(space, "slots", None)
    if space is NUMBER or not space.differentiable:
        return True
    return slots is not None and all(map(_is_numeric, slots))


def _cotangents(spaces: Sequence[Space | None], value: float) -> list[Variable | None]:
    """A leaf for each output that carries a gradient, the same number everywhere in it."""
    leaves: list[Variable | None] = []
    for space in spaces:
        leaf = None if space is None else wrap(_filled(space, repeat(value)))
        if leaf is not None:
            leaf._requires_grad = True
        leaves.append(leaf)
    return leaves


def _filled(space: Any, numbers: Iterator[float]) -> Any:
    if space is NUMBER:
        return next(numbers)
    if not space.differentiable:
        return space.zero()
    return space.build([_filled(slot, numbers) for slot in space.slots])


def _pull(
    node: FunctionNode, cotangents: Sequence[Any], tangents: Sequence[Any], how: Mode
) -> Sequence[Any]:
    needed = [tangent is not None for tangent in tangents]
    rule, args = node.backward_call(cotangents, needed)
    with running(how):
        return node.backward_answer(rule(*args), cotangents, needed)


def _pair(node: FunctionNode, sent: Sequence[Any], tangents: Sequence[Any], how: Mode) -> Variable:
    """<B(c), t>."""
    total = wrap(0.0)
    with running(Mode(how.grad)):
        for space, gradient, tangent in zip(node.spaces, sent, tangents, strict=True):
            if gradient is not None and tangent is not None:
                total = total + space.inner(gradient, tangent)
    return total


def _oldest(starts: set[Node]) -> int:
    return min(node.sequence for node in starts)


def _record(values: Sequence[Any], starts: set[Node]) -> Plan:
    """The operations between the cotangents and some values; none is older than a cotangent."""
    edges = [edge_of(each) for each in values if isinstance(each, Variable)]
    roots = [root for root, _ in edges if root is not None and root.sequence >= _oldest(starts)]
    return plan(list(dict.fromkeys(roots)), starts, since=_oldest(starts))


def _check_linear(node: FunctionNode, sent: Sequence[Any], record: Plan) -> None:
    """Each operation between the cotangents and what backward sends is linear in what it gets."""
    for each in record.order:
        if type(each) is AccumulateGrad:
            continue
        kind = each.linear
        depends = [n for n, (before, _) in enumerate(each._next) if before in record.index]
        linear = (
            kind == "jointly" or (kind == "each" and len(depends) == 1)
            or (kind == "first" and depends == [0])
        )  # fmt: skip
        if not linear:
            raise _refusal(node, f"its backward is not linear, or not seen to be: {each.title()}")
    for gradient in sent:
        if gradient is not None and any(n != 0 and n == n for n in _numbers(gradient._data)):  # noqa: PLR0124  # not NaN
            raise _refusal(node, "its backward is not linear: it sends something for nothing")


def _numbers(data: Any) -> Iterator[float]:
    if isinstance(data, list | tuple | dict):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _numbers(each)
    elif isinstance(data, int | float):
        yield data


def _check_value(
    node: FunctionNode, spaces: Sequence[Any], tangents: Sequence[Any], pushed: Sequence[Any]
) -> None:
    """<B(1), t> = <1, J t>: what is hidden from the record would be missing on the right."""
    plain = [None if tangent is None else tangent.detach() for tangent in tangents]
    sent = _pull(node, _cotangents(spaces, 1.0), plain, OFF)
    there = float(_pair(node, sent, plain, OFF)._data)
    parts = [n for each in pushed if each is not None for n in _numbers(each._data)]
    here, scale = sum(parts), max(1.0, abs(there), sum(map(abs, parts)))
    if abs(here - there) > 1e-9 * scale:
        raise _refusal(node, "its backward is not linear, or keeps its gradient from the record")
