"""The clause `forward`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._around import at_hand, slopes_along
from pullback.conformance.cause._repair import right_edit
from pullback.conformance.cause._rule import Rule
from pullback.conformance.cause._trials import tried
from pullback.conformance.clauses._hints import DERIVE, OPERATOR
from pullback.conformance.comparison._changes import Pair
from pullback.conformance.comparison._explain import EXACT, explain
from pullback.conformance.comparison._values import CANCELLED
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._evidence import Estimate, slopes
from pullback.conformance.evidence._transforms import push
from pullback.conformance.inputs._vectors import filled, flatten, products
from pullback.conformance.script._repro import Given

__all__ = ["forward"]

_SEPARATELY = 8
_SECONDS = 1.5  # of work that looking for an edit may take
_WRONG = "The tangent is not the transpose of backward"


@clause(
    promise="Forward mode exists and is the transpose of backward; a tangent is never "
    "silently None.",
    why="Forward mode computes directional derivatives and Jacobian-vector products. When "
    "it disagrees with backward, one of the two is wrong; when a tangent is dropped, "
    "the result is too small without a sign.",
    breach="as `<w, Jv>` off from `<J'w, v>`.",
    mend="Correct `jvp`, or leave it out and let `pullback.Function` derive it from backward.",
)
def forward(probe: Probe) -> Finding:
    """Compare <w, Jv> with <J'w, v>; a tangent that is silently None counts as zero."""
    count = len(probe.inputs.differentiable)
    said = "<w, Jv> = <J'w, v>: the tangent is the transpose of backward."
    moved = 0.0  # of all that was pushed: what cancels leaves roundings of numbers so large
    alone = [(0, k) for k in range(min(count, _SEPARATELY))] if count > 1 else []
    for number, only in ((0, None), (2, None), *alone):
        points = probe.point(number)
        step = probe.direction(f"forward {number}", only)
        # One input with a tangent and the others without: torch hands over None for these.
        given = [v if only in (None, k) else None for k, v in enumerate(step)]
        try:
            outputs, tangents = push(probe, points, given)
        except Exception as error:  # judged by its type
            return probe.failed(error, "Forward mode refuses", DERIVE, rule="jvp")
        weights = probe.cotangents(outputs, number)
        got, magnitude = products(weights, filled(outputs, tangents))
        expected, scale = products(probe.backward(points, weights), step)
        if probe.intent == "nonlinear":
            if not judge(probe).is_told:
                return probe.skipped(
                    "A nonlinear backward has no transpose, and forward a kink here."
                )
            expected = _measured(probe, step, points, weights).value
        eps, moved = torch.finfo(probe.dtype).eps, max(moved, magnitude, scale)
        tolerance = max(max(magnitude, scale) * eps**0.6, CANCELLED * eps * moved)
        if abs(got - expected) <= tolerance:
            continue
        missing = any(t is None for t in tangents)
        if missing and probe.subject.operator is not None:
            return probe.lacking("The tangent is None, without an error.", OPERATOR)
        asked = probe.intent == "exact" and not missing
        if asked and _settles(_measured(probe, step, points, weights), got, expected, tolerance):
            said = "The tangent is the derivative of forward, and backward is another."
            continue
        there = replace(probe, inputs=probe.inputs.with_points(points))
        what = "A tangent is silently None" if missing else _WRONG
        how = "" if missing else f" {_said(probe, points, given)}".rstrip()
        detail = f"{what}: <w, Jv> is not <J'w, v>.{how}"
        return _broken(there, expected, got, detail, {"vs": step, "ws": weights})
    return probe.holds(said)


def _settles(measured: Estimate, got: float, expected: float, tolerance: float) -> bool:
    """Whether it is the tangent that finite differences agree with, and backward is another."""
    near = tolerance + 8 * measured.error
    return abs(got - measured.value) <= near < abs(got - expected)


def _measured(probe: Probe, step: Tensors, points: Tensors, weights: Tensors) -> Estimate:
    """<w, Jv> by finite differences."""
    with torch.no_grad():
        along = slopes(probe.along(probe.output_values, step, points))
    return along.weigh(flatten(weights))


def _broken(probe: Probe, expected: float, got: float, detail: str, given: Given) -> Finding:
    return probe.broken(
        detail,
        expected=f"{expected:.8g} (<J'w, v>, by backward)",
        got=f"{got:.8g} (<w, Jv>, by forward mode)",
        hint=f"Correct jvp, or leave it out. {DERIVE}",
        given=given,
        repro=[
            "import torch.autograd.forward_ad as fwd",
            "gs = torch.autograd.grad(outs(), xs, ws, allow_unused=True)",
            "with fwd.dual_level():",
            "    new = [fwd.make_dual(x.detach(), v) if v.any() else x.detach() "
            "for x, v in zip(xs, vs)]; args = tree_map(lambda a: next((n for x, n in zip(xs, new) "
            "if x is a), a), args)",
            "    ts = [fwd.unpack_dual(y).tangent for y in outs()]",
            "print('backward', sum((g.conj() * v).sum().real.item() for g, v in zip(gs, vs) "
            "if g is not None))",
            "print('forward ', sum((w.conj() * t).sum().real.item() for w, t in zip(ws, ts) "
            "if t is not None))",
        ],
    )


def _said(probe: Probe, points: Tensors, step: Sequence[torch.Tensor | None]) -> str:
    """One sentence on the tangent that is not the derivative of forward, by finite differences.

    An empty text where each is right, or nothing is recognised; a step of ``None`` is no tangent.
    """
    if probe.intent != "exact":
        return ""
    outputs, tangents = push(probe, points, step)
    whole = [x * 0 if v is None else v for x, v in zip(points, step, strict=True)]
    alone = [[v if j == k else v * 0 for j, v in enumerate(whole)] for k in range(len(whole))]
    names = [f"the tangent of {name}" for name in probe.inputs.names()]
    moving = [k for k, v in enumerate(step) if v is not None]
    hand = at_hand(probe, points, outputs, {names[k]: whole[k] for k in moving})
    jvp = Rule(probe, points, [*step], [lambda t: t] * len(outputs), "jvp")
    expected = slopes_along(probe, points, whole, outputs)
    terms = {
        names[k]: slopes_along(probe, points, alone[k], outputs) for k in moving[: len(step) - 1]
    }
    for k, got in enumerate(filled(outputs, tangents)):
        parts = {name: term[k] for name, term in terms.items()}
        difference = replace(hand, expected=expected[k], got=got, parts=parts).sharp
        pair = Pair.of(difference)
        if pair is None or pair.equal(pair.got):
            continue
        said = explain(difference, EXACT)
        until = time.process_time() + _SECONDS
        if said:
            return f"Of Jv: {said[0].lower()}{said[1:]}"

        def is_right(j: int, tangent: torch.Tensor) -> bool:
            other = Pair.of(replace(hand, expected=expected[j], got=tangent))
            return other is not None and other.equal(other.got)

        edit = partial(right_edit, [jvp], k, difference, is_right, until)
        return str(tried(probe, lambda edit=edit: edit().said, ""))
    return ""
