"""`double`: the second derivative is right, or refused."""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._changes import CLOSE
from pullback.conformance._clause import clause
from pullback.conformance._derivative import Trial, ask_second, decide, try_second
from pullback.conformance._failure import classify, describe, raised
from pullback.conformance._nodes import is_once, lacks_rule
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._rule import Rule
from pullback.conformance._steps import motions
from pullback.conformance._vectors import inner
from pullback.conformance.clauses._hints import COMPLETE
from pullback.report import Finding, Verdict

__all__ = ["double"]

_SEVERAL = 4


@clause(
    promise="The second derivative is right, or refused.",
    why="Hessians, gradient penalties, meta-learning and Laplace approximations "
    "differentiate the gradient. They get a wrong number here, without a warning, "
    "although the first derivative is right. What forward computed and saved is a "
    "constant there.",
    breach="as autodiff of `<B(x, g), u>` off from finite differences of the Function's own "
    "backward, by inputs and by cotangents.",
    mend="Write backward with differentiable operations of saved inputs and outputs; "
    "compute intermediates there again, or let `pullback.Function` differentiate "
    "residuals; otherwise `once_differentiable`.",
)
def double(probe: Probe) -> Finding:
    """Compare autodiff of <B(g), u> with finite differences of B, by inputs and by cotangent."""
    if is_once(probe.functions()):
        return probe.lacking(
            "Backward is marked once_differentiable; `once` says how loudly.", COMPLETE
        )
    count = len(probe.inputs.differentiable)
    refused = raised(lambda: ask_second(probe))
    if refused is not None:
        if classify(refused) is not Verdict.LACKING and not _lacks_rule(probe):
            raise refused
        return probe.lacking(f"It says {describe(refused)}", COMPLETE)
    settled = 0
    for only in range(count + len(probe.outputs)):
        if only >= count and probe.intent == "nonlinear" and _is_stepped(probe, only):
            continue
        trial = decide(lambda number, only=only: try_second(probe, number, only))
        if trial.is_wrong:
            return _broken(probe, trial, only, count)
        settled += trial.is_told
    if not settled:
        return probe.skipped(
            "Finite differences of backward do not settle (kinks, noise or rounding)."
        )
    return probe.holds("The derivative of backward agrees with finite differences of backward.")


def _lacks_rule(probe: Probe) -> bool:
    """Whether backward has an operation of torch's that torch does not differentiate again."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    return lacks_rule(probe.pull(leaves, probe.cotangents(outputs), outputs, create_graph=True))


def _is_stepped(probe: Probe, only: int) -> bool:
    """Whether backward moves with a cotangent by jumps alone, as one that rounds it does.

    Its derivative is zero where it has one, and what autograd answers is straight-through, as for
    torch's own casts: there is nothing to compare it with.
    """
    points = probe.inputs.points()
    cotangents = probe.cotangents(probe.output_values(), "stepped")

    def backward(*moved: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            return probe.backward(moved[: len(points)], moved[len(points) :])

    sources = [t.detach().clone().requires_grad_() for t in (*points, *cotangents)]
    found = motions(
        replace(
            probe, subject=replace(probe.subject, call=backward),
            inputs=Arguments.of(sources, None), outputs=tuple(range(len(points))),
        ),
        only,
    )  # fmt: skip
    return any(motion.is_stepped for motion in found) and not any(m.moves for m in found)


def _constant(probe: Probe, trial: Trial) -> str:
    """Which of what forward computed autograd misses: their terms alone add up to the gap.

    The derivative of backward is a sum of terms, one for each tensor that it reads.
    """
    count, h = len(trial.points), 2.0**-17
    free = [lambda gradient: gradient] * count
    rule, up, down = (
        Rule(probe, [x + side * v for x, v in zip(trial.points, trial.step[:count], strict=True)],
             trial.cotangents, free)
        for side in (0, h, -h)
    )  # fmt: skip
    if not (rule.is_had() and up.is_had() and down.is_had()):
        return ""
    terms: dict[str, float] = {}
    for name in rule.left:
        with suppress(Exception):  # one that cannot be read by itself
            one, other = (rule.call(None, {name: side.left[name]}) for side in (up, down))
            pairs = zip(trial.weights, one or [], other or [], strict=True)
            terms[name] = sum(inner(u, a - b) for u, a, b in pairs) / (2 * h)
    gap, told = trial.estimate.value - trial.value, [name for name, term in terms.items() if term]
    for some in (s for n in range(1, _SEVERAL + 1) for s in combinations(told, n)):
        # Many sums are tried: none may be right by chance.
        if abs(sum(terms[name] for name in some) - gap) <= CLOSE ** min(len(some), 2) * abs(gap):
            are, them = ("is a constant", "it") if len(some) == 1 else ("are constants", "them")
            named = " and ".join(filter(None, [", ".join(some[:-1]), some[-1]]))
            return f" To autograd, {named} {are}: forward computed {them}."
    return ""


def _broken(probe: Probe, trial: Trial, only: int, count: int) -> Finding:
    place = probe.path(only) if only < count else f"the cotangent of output {only - count}"
    source = f"xs[{only}]" if only < count else f"w[{only - count}]"
    what = "is NaN" if math.isnan(trial.value) else "does not change as backward itself does"
    constant = _constant(probe, trial)
    there = replace(probe, inputs=probe.inputs.with_points(trial.points))
    return there.broken(
        "The second derivative is silently wrong: backward, differentiated by autograd with "
        f"respect to {place}, {what}.{constant}",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} "
        "(finite differences of backward)",
        got=f"{trial.value:.8g} (backward of backward)",
        place=place,
        hint="Write backward with differentiable operations of what save_for_backward saved; what "
        "forward computed is a constant to backward: compute it there again, or make it an output "
        "(pullback.Function differentiates residuals). Otherwise decorate it with "
        "once_differentiable.",
        given={"w": trial.cotangents, "u": trial.weights, "v": trial.step[only]},
        repro=[
            "w, h = [g.requires_grad_() for g in w], 1e-6",
            "def B(g=False): r = torch.autograd.grad(outs(), xs, w, create_graph=g, "
            "allow_unused=True); return [x * 0 if b is None else b.clone() for b, x in zip(r, xs)]",
            f"x = {source}",
            "penalty = sum((c.conj() * b).real.sum() for c, b in zip(u, B(True)))",
            "got = torch.autograd.grad(penalty + 0 * x.abs().sum(), x)[0]  # beside another term",
            "x.data += h * v; plus = B(); x.data -= 2 * h * v; print('finite differences', sum("
            "(c.conj() * (p - m)).real.sum().item() for c, p, m in zip(u, plus, B())) / (2 * h))",
            "print('double backward   ', (got.conj() * v).real.sum().item())",
        ],
    )
