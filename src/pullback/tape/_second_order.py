"""Right or refused past first order.

A recorded rule is differentiated as it is written. What it reads as plain data (``.data``, a
number on ``ctx``, an intermediate that forward saved) has no history, so a derivative through it
would be silently zero. Two defences stand against that. A rule that runs while it is recorded is
watched: what it read so is known. And a rule of numbers is audited: the derivative of what it
recorded is compared with finite differences of the rule itself, forward run again included. A
rule that read plain data must pass the audit where it stands; any other once a signature. What
does not pass still gives its gradient, tied to a node that refuses to be differentiated.
"""

import random
from collections.abc import Sequence
from typing import Any

from pullback.errors import UnsupportedError
from pullback.tape import _layout
from pullback.tape._apply import Application
from pullback.tape._context import Hidden, at_edge
from pullback.tape._feedback import Feedback
from pullback.tape._function import Function
from pullback.tape._function_node import FunctionNode
from pullback.tape._mode import OFF, ON, Mode, mode
from pullback.tape._registry import OPERATIONS, Space
from pullback.tape._spaces import NUMBER
from pullback.tape._variable import Variable, wrap
from pullback.tape._verbs import grad

__all__ = ["guard"]

STEP = 1e-4


class Refusal(Function):
    """A gradient as it is, tied to what it depends on without a history."""

    _trusted = True

    @staticmethod
    def forward(ctx: Any, error: UnsupportedError, gradient: Any, depends: list[Any]) -> Any:
        ctx.error = error
        return gradient

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        if ctx.needs_input_grad[2]:
            raise ctx.error
        return None, g, None

    @staticmethod
    def jvp(ctx: Any, error: Any, tangent: Any, depends: Any) -> Any:
        if ctx.needs_input_grad[2]:
            raise ctx.error
        return tangent


def guard(
    gradients: Sequence[Any],
    depends: Sequence[Variable],
    error: UnsupportedError,
    passed_on: Sequence[Any] = (),
) -> list[Any]:
    """The gradients, tied to what they depend on by a node that refuses derivatives."""
    causes = [variable for variable in depends if variable._requires_grad]
    if not causes:
        return list(gradients)

    def tie(gradient: Any) -> Any:
        if gradient is None or any(gradient is each for each in passed_on):
            return gradient
        if isinstance(gradient, Feedback):
            return Feedback([tie(note) for note in gradient.notes], gradient.role)
        tied = Refusal.apply(error, gradient, causes)
        if gradient.origin is not None:
            tied._more().origin = gradient.origin
        return tied

    notes = [note for each in passed_on if isinstance(each, Feedback) for note in each.notes]
    passed_on = [*passed_on, *notes]
    return [tie(gradient) for gradient in gradients]


def _settle(node: FunctionNode, watch: Mode, received: Sequence[Any], sent: list[Any]) -> list[Any]:
    """Let pass what is right past first order; tie the rest to a refusal."""
    definition = node.definition
    inputs = [at_edge(0.0, "", edge) for edge in node._next if edge[0] is not None]
    cotangents = [each for each in received if each is not None]
    if definition.once:
        error = UnsupportedError(
            f"{node.title()} is declared once_differentiable and was differentiated twice.",
            mend="Write its backward in operations on Variables, and drop the decorator.",
        )
        return guard(sent, [*inputs, *cotangents], error)
    read = watch.watch or []
    if not read:
        if _passes_once(node, received):
            return sent
        error = UnsupportedError(
            f"The derivative of {node.title()}'s backward is not what finite differences of it "
            "say: something reaches it that the tape does not see.",
            mend="Give backward what it needs through save_for_backward, inputs and outputs.",
        )
        return guard(sent, [*inputs, *cotangents], error)
    if _audit(node, received, shifted=False) is True:
        return sent
    hidden = [each for each in read if isinstance(each, Hidden)]
    what = hidden[0].what if hidden else "the data of a Variable"
    error = UnsupportedError(
        f"The backward of {node.title()} reads {what} as plain data, so its own derivative "
        "through that is not known.",
        mend="Compute with the Variables themselves; save inputs and outputs, not intermediates.",
    )
    depends = [each for each in read if isinstance(each, Variable)]
    return guard(sent, [*depends, *(inputs if hidden else ())], error, received)


def _passes_once(node: FunctionNode, received: Sequence[Any]) -> bool:
    audited = node.definition.audited
    key = (node.spaces, tuple(output.space for output in node.outputs), _flags(node))
    if key not in audited:
        audited[key] = all(
            _audit(node, received, shifted) is not False for shifted in (False, True)
        )
    return audited[key]


def _flags(node: FunctionNode) -> tuple[bool, ...]:
    return tuple(edge[0] is not None for edge in node._next)


def _audit(node: FunctionNode, received: Sequence[Any], shifted: bool) -> bool | None:
    """Whether the recorded derivative of a backward is that of finite differences.

    With x the inputs, g the cotangents, B the backward with forward run again, and random w, u:
    d/dt <w, B(x + t u, g + t u)> at t = 0, central differences of two steps against reverse mode.

    Arguments:
        node: where the rule was run.
        received: its cotangents there.
        shifted: look at a point beside it.

    Returns:
        None if it cannot be said: the values are no numbers, or not smooth there.
    """
    definition = node.definition
    if node.args is None or definition.concurrent or definition.random or node.context._dirty:
        return None
    outputs = [output.space for output in node.outputs]
    if not all(_numeric(space) for space in (*node.spaces, *outputs)):
        return None
    try:
        return _Audit(node, received, shifted).agrees()
    except Exception:  # the author's code may raise anything away from where it was called
        return None


class _Audit:
    """One comparison; its directions are drawn from a fixed seed."""

    def __init__(self, node: FunctionNode, received: Sequence[Any], shifted: bool) -> None:
        self.node = node
        draw = random.Random(20261121)  # noqa: S311  # directions, not secrets
        inputs = _variables(node)
        x = [_numbers(space, v._data) for space, v in zip(node.spaces, inputs, strict=True)]
        self.spaces = [output.space for output in node.outputs if output.space is not None]
        g = [
            _numbers(space, (space.zero() if each is None else each)._data)
            for space, each in zip(self.spaces, received, strict=True)
        ]
        self.flags = [*_flags(node), *(True for _ in g)]
        self.base = [*x, *g]
        if shifted:
            self.base = [
                [value + flag * draw.gauss(0, 1) for value in part]
                for part, flag in zip(self.base, self.flags, strict=True)
            ]
        self.direction = [
            [flag * draw.gauss(0, 1) for _ in part]
            for part, flag in zip(self.base, self.flags, strict=True)
        ]
        self.weights = [[draw.gauss(0, 1) for _ in part] for part in x]

    def agrees(self) -> bool | None:
        recorded = self._recorded()
        coarse, fine = self._difference(STEP), self._difference(STEP / 2)
        limit = (4 * fine - coarse) / 3  # Richardson: the error of both is of second order
        scale = max(1.0, abs(recorded), abs(limit))
        if not abs(coarse - fine) < 1e-3 * scale:  # no limit here, or no number
            return None
        return abs(recorded - limit) <= 1e-6 * scale + abs(coarse - fine)

    def _difference(self, step: float) -> float:
        ahead, behind = (self._weighted(sign * step) for sign in (1, -1))
        return (ahead - behind) / (2 * step)

    def _weighted(self, step: float) -> float:
        """<w, B> at a distance along the direction, nothing recorded."""
        leaves = self._leaves(step)
        sent = self._rule(leaves, OFF)
        return sum(
            weight * value
            for weights, gradient, space in zip(self.weights, sent, self.node.spaces, strict=True)
            if gradient is not None
            for weight, value in zip(weights, _numbers(space, gradient._data), strict=True)
        )

    def _recorded(self) -> float:
        token = mode.set(ON)
        try:
            leaves = self._leaves(0.0)
            sent = self._rule(leaves, ON)
            total = wrap(0.0)
            for weights, gradient, space in zip(self.weights, sent, self.node.spaces, strict=True):
                if gradient is not None:
                    weight = wrap(_shape(space, iter(weights)))
                    total = total + space.inner(gradient, weight)
            if not total._requires_grad:
                return 0.0
            wanted = [leaf for leaf, flag in zip(leaves, self.flags, strict=True) if flag]
            slopes = iter(grad(total, wanted, allow_unused=True))
        finally:
            mode.reset(token)
        spaces = [*self.node.spaces, *self.spaces]
        result = 0.0
        for along, flag, space in zip(self.direction, self.flags, spaces, strict=True):
            slope = next(slopes) if flag else None
            if slope is not None:
                numbers = _numbers(space, slope._data)
                result += sum(a * b for a, b in zip(along, numbers, strict=True))
        return result

    def _leaves(self, step: float) -> list[Variable]:
        spaces = [*self.node.spaces, *self.spaces]
        leaves = []
        for space, part, along, flag in zip(
            spaces, self.base, self.direction, self.flags, strict=True
        ):
            values = [value + step * change for value, change in zip(part, along, strict=True)]
            leaf = wrap(_shape(space, iter(values)))
            leaf._requires_grad = bool(flag)
            leaves.append(leaf)
        return leaves

    def _rule(self, leaves: list[Variable], now: Mode) -> list[Any]:
        """Run forward again on these inputs, and backward on these cotangents."""
        node, count = self.node, len(self.node.spaces)
        args = _layout.replace(node.layout, node.args or (), leaves[:count])
        token = mode.set(ON)
        try:
            application = Application(node.definition, args)
            made = application.finish(application.forward())
            outputs = made if isinstance(made, tuple) else (made,)
            twin = next(v._node for v in outputs if isinstance(v, Variable) and v._node)
            cotangents = iter(leaves[count:])
            given = [None if each.space is None else next(cotangents) for each in twin.outputs]
            rule, call = twin.backward_call(given, None)
            mode.set(now)
            return twin.backward_answer(rule(*call), given, None)
        finally:
            mode.reset(token)


def _variables(node: FunctionNode) -> list[Variable]:
    return _layout.find(node.args or ())[0]


def _numeric(space: Space | None) -> bool:
    if space is None or space is NUMBER:
        return True
    slots = getattr(space, "slots", None)
    return slots is not None and all(map(_numeric, slots))


def _numbers(space: Space, data: Any) -> list[float]:
    """The numbers in a value, in the order of its slots."""
    if space is NUMBER:
        return [float(data)]
    entries = space.entries(data)  # type: ignore[missing-attribute]
    slots = space.slots  # type: ignore[missing-attribute]
    return [n for slot, entry in zip(slots, entries, strict=True) for n in _numbers(slot, entry)]


def _shape(space: Space, numbers: Any) -> Any:
    """A value of a space made of numbers."""
    if space is NUMBER:
        return next(numbers)
    return space.build([_shape(slot, numbers) for slot in space.slots])  # type: ignore[missing-attribute]


OPERATIONS["settle"] = _settle
