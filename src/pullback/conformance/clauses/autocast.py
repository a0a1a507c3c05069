"""`autocast`: forward under autocast and backward outside give the same, as bfloat16 rounds."""

from contextlib import nullcontext
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._vectors import nudged
from pullback.conformance.process._failure import attempt, describe

__all__ = ["autocast"]

_DRAWS = 6
_CAST = (
    "Cast in forward what backward will combine, or decide the precision: autocast is off in "
    "backward. torch.amp.custom_fwd and custom_bwd do so where forward takes ctx (torch refuses "
    "them beside setup_context); autocast = torch.float32 on a pullback.Function does everywhere."
)


@clause(
    why="Under autocast, forward runs in low precision while backward runs outside of it. "
    "A Function without a policy mixes the two. Matrix products then meet two dtypes.",
    breach="against float32.",
    mend="`custom_fwd` and `custom_bwd` where forward takes ctx, or `autocast = torch.float32` on "
    "`pullback.Function`.",
)
def autocast(probe: Probe) -> Finding:
    """Run forward under autocast and backward outside, and compare with float32."""
    if probe.draws:
        return probe.skipped("It draws random numbers, which differ from precision to precision.")
    low = probe.at(probe.inputs.cast(torch.float32))
    points = low.inputs.points()
    under = partial(torch.autocast, points[0].device.type, dtype=torch.bfloat16)
    for name, context in (("float32", nullcontext()), ("autocast", under())):
        try:
            with context:
                low.output_values()
        except Exception as error:  # loud, before any number
            return probe.lacking(f"Forward refuses {name}: {describe(error)}", _CAST)
    cotangents = low.cotangents(low.output_values())
    expected = Run.of(low, cotangents).every
    try:
        got = Run.of(low, cotangents, around=under()).every
    except Exception as error:  # judged by its type
        doing = "Forward takes autocast, backward outside it fails"
        return probe.failed(error, doing, _CAST, transform=False)
    leaves = low.leaves([x.bfloat16().to(x.dtype) for x in points])
    rounded = Run.of(low, cotangents, leaves).every
    count = len(cotangents)
    for k, (one, true, moved) in enumerate(zip(got, expected, rounded, strict=True)):
        if (k >= count and one.dtype != true.dtype) or not (
            _near(one, true, moved) or _jumps_so(low, cotangents, k, one, true)
        ):
            return low.broken(
                f"{'The gradient' if k >= count else 'The output'} of a forward under autocast is "
                "further off than bfloat16 rounds.",
                expected=true, got=one, hint=_CAST,
                place=probe.path(k - count) if k >= count else f"output {k}",
                given={"w": cotangents},
                repro=[
                    "print('plain   ', outs(), torch.autograd.grad(outs(), xs, w, "
                    "allow_unused=True))",
                    "with torch.autocast('cpu', dtype=torch.bfloat16): ys = outs()",
                    "w = [g.to(y.dtype) for g, y in zip(w, ys)]",
                    "print('autocast', ys, torch.autograd.grad(ys, xs, w, allow_unused=True))",
                ],
            )  # fmt: skip
    return probe.holds("Forward under autocast and backward outside agree with float32.")


def _jumps_so(
    probe: Probe, cotangents: Tensors, k: int, one: torch.Tensor, true: torch.Tensor
) -> bool:
    """Whether float32 moves as far, where its inputs are off by what bfloat16 rounds them.

    Of two codes that are equally near, rounding within forward takes either.
    """
    drawn, eps = probe.generator("autocast"), torch.finfo(torch.bfloat16).eps
    for _ in range(_DRAWS):
        moved = [nudged(x, drawn, eps) for x in probe.inputs.points()]
        found = attempt(lambda m=moved: Run.of(probe, cotangents, probe.leaves(m)).every, None)
        if found is not None and _near(one, true, found[k]):
            return True
    return False


def _near(one: torch.Tensor, true: torch.Tensor, moved: torch.Tensor) -> bool:
    if one.numel() == 0 or not true.isfinite().all():
        return True
    eps = torch.finfo(torch.bfloat16).eps
    allowed = 16 * eps * float(true.abs().max()) + 16 * float((moved - true).abs().max())
    return bool((one.to(true.dtype) - true).abs().max() <= allowed + 1e-30)
