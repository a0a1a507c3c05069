"""`double`: the second derivative is right, or refused."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, Verdict, clause
from pullback.conformance.cause._rule import Rule
from pullback.conformance.clauses._hints import COMPLETE
from pullback.conformance.comparison._changes import CLOSE
from pullback.conformance.evidence._derivative import (
    Trial,
    ask_second,
    decide,
    try_second,
    wanted_of,
)
from pullback.conformance.evidence._steps import motions
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._vectors import inner
from pullback.conformance.probing._nodes import is_once, is_within, lacks_rule
from pullback.conformance.process._failure import classify, describe, raised

__all__ = ["double"]

_SEVERAL = 4
_REWRITE = (
    "Write backward with differentiable operations of what save_for_backward saved; what forward "
    "computed is a constant to backward: compute it there again, or make it an output "
    "(pullback.Function differentiates residuals). Otherwise decorate it with once_differentiable."
)
_UNCUT = (
    "Leave out of backward what cuts a tensor from its history: `.detach()`, `.data`, "
    "`Variable(...)`, `torch.no_grad()`, numpy, `torch.autograd.grad` without create_graph=True. "
    "Otherwise decorate it with once_differentiable."
)


@clause(
    why="Hessians, gradient penalties, meta-learning and Laplace approximations "
    "differentiate the gradient. They get a wrong number here, without a warning, "
    "although the first derivative is right. What forward computed and saved is a "
    "constant there.",
    breach="as autodiff of `<B(x, g), u>` off from finite differences of the Function's own "
    "backward, by inputs and by cotangents. An output that backward reads moves there as the "
    "author's rule says, as it does for autograd: where that is no derivative, on purpose or by "
    "mistake, another clause says so.",
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
        trial = decide(lambda number, only=only: try_second(probe, number, only), wanted_of(probe))
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


def _cause(probe: Probe, trial: Trial, only: int) -> tuple[str, str]:
    """What autograd does not follow, where that explains the gap, and the mend.

    The derivative of backward is a sum of terms, one for each tensor that it reads. What has a
    history when backward reads it, as an input has that forward saved, is cut from it there; of
    what forward computed there is none.
    """
    if trial.value == 0 and not _has_graph(probe, trial):
        return " No gradient has a history: backward computes all without gradients.", _UNCUT
    count = len(trial.points)
    if only >= count:  # backward reads it of nothing but the cotangent itself
        cut = [f"the cotangent of output {only - count}"] if trial.value == 0 else []
        return (_cut(cut), _UNCUT) if cut else ("", _REWRITE)
    seen: set[str] = set()
    missed = _missed(probe, trial, seen)
    cut = [name for name in missed if name in seen]
    computed = [name for name in missed if name not in seen]
    are, them = ("are constants", "them") if len(computed) > 1 else ("is a constant", "it")
    said = f" To autograd, {_listed(computed)} {are}: forward computed {them}." * bool(computed)
    return said + _cut(cut), _UNCUT if cut and not computed else _REWRITE


def _has_graph(probe: Probe, trial: Trial) -> bool:
    """Whether any gradient is something that autograd differentiates."""
    leaves = probe.leaves(trial.points)
    cotangents = [g.detach().clone().requires_grad_() for g in trial.cotangents]
    return any(g.requires_grad for g in probe.pull(leaves, cotangents, create_graph=True))


def _cut(names: Sequence[str]) -> str:
    whose = "their histories" if len(names) > 1 else "its history"
    return f" Backward cuts {_listed(names)} from {whose}." * bool(names)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _missed(probe: Probe, trial: Trial, seen: set[str]) -> list[str]:
    """What forward left that autograd misses: their terms alone add up to the gap.

    Those that have a history when backward reads them are put into ``seen``.
    """
    count, h = len(trial.points), 2.0**-17
    free = [lambda gradient: gradient] * count
    rule, up, down = (
        Rule(probe, [x + side * v for x, v in zip(trial.points, trial.step[:count], strict=True)],
             trial.cotangents, free)
        for side in (0, h, -h)
    )  # fmt: skip
    if not (rule.is_had() and up.is_had() and down.is_had()):
        return []
    terms: dict[str, float] = {}
    for name in rule.left:
        with suppress(Exception):  # one that cannot be read by itself
            one, other = (rule.call(None, {name: side.left[name]}) for side in (up, down))
            pairs = zip(trial.weights, one or [], other or [], strict=True)
            terms[name] = sum(inner(u, a - b) for u, a, b in pairs) / (2 * h)
    gap, told = trial.estimate.value - trial.value, [name for name, term in terms.items() if term]
    seen |= _with_history(rule)
    for some in (s for n in range(1, _SEVERAL + 1) for s in combinations(told, n)):
        # Many sums are tried: none may be right by chance.
        if abs(sum(terms[name] for name in some) - gap) <= CLOSE ** min(len(some), 2) * abs(gap):
            return list(some)
    return []


def _with_history(rule: Rule) -> set[str]:
    """The names of what forward left that is an input or an output to autograd too.

    A view that forward made asks for a gradient as well, but of nothing that was given.
    """
    left: dict[str, torch.Tensor] = {}

    def read(method: Any, ctx: Any, *given: Any) -> Any:
        saved = {f"ctx.saved_tensors[{k}]": t for k, t in enumerate(ctx.saved_tensors)}
        every = {**saved, **{f"ctx.{name}": value for name, value in vars(ctx).items()}}
        left.update((k, t) for k, t in every.items() if isinstance(t, torch.Tensor))
        return method(ctx, *given)

    there = rule.of({"back": read})
    if there is None:
        return set()
    leaves = there.leaves(rule.points)
    outputs = there.evaluate(leaves)
    with suppress(Exception):  # as any that is told elsewhere
        handed = [g.detach().clone() for g in rule.weights]
        there.pull(leaves, handed, outputs, create_graph=True)
    return {name for name, tensor in left.items() if is_within(tensor, outputs)}


def _broken(probe: Probe, trial: Trial, only: int, count: int) -> Finding:
    place = probe.path(only) if only < count else f"the cotangent of output {only - count}"
    source = f"xs[{only}]" if only < count else f"w[{only - count}]"
    what = "is NaN" if math.isnan(trial.value) else "does not change as backward itself does"
    cause, hint = ("", "") if probe.brief else _cause(probe, trial, only)
    there = replace(probe, inputs=probe.inputs.with_points(trial.points))
    return there.broken(
        "The second derivative is silently wrong: backward, differentiated by autograd with "
        f"respect to {place}, {what}.{cause}",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} "
        "(finite differences of backward)",
        got=f"{trial.value:.8g} (backward of backward)",
        place=place,
        hint=hint,
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
