"""`dtype`: every precision gives the same gradient, as exactly as it can, in its own dtype."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, Verdict, clause
from pullback.conformance.comparison._values import CANCELLED, close, largest
from pullback.conformance.evidence._screen import RIGHT, Run, Sweep, own_gradients
from pullback.conformance.evidence._special import beside_wide
from pullback.conformance.inputs._vectors import are_finite, coarsest
from pullback.conformance.probing._nodes import returned
from pullback.conformance.process._failure import attempt

__all__ = ["dtype"]

_LEVELS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NUDGES = 8
_ANOTHER = 0.25  # of the largest entry
_OTHER = "Another default dtype of torch gives other numbers: a constant or a buffer is made in it."
_DEFAULT = (
    "Give every constructor a dtype (torch.zeros(n, dtype=x.dtype), x.new_zeros(n), "
    "torch.zeros_like(x))."
)


@clause(
    why="Mixed precision, bfloat16 training and complex models use other dtypes than the "
    "one it was written with. A gradient of the wrong dtype or far off rounding "
    "spoils them. A float64 from numpy doubles memory and is cast silently.",
    breach="against the gradient of the rounded inputs computed wide, beyond what rounding "
    "inputs explains. A precision that forward refuses is `lacking`; a gradient in another "
    "dtype that autograd casts is `untidy`.",
    mend="Compute in the input's dtype (or wider), and return gradients in it.",
)
def dtype(probe: Probe) -> Iterator[Finding | None]:
    """Sweep the precisions and compare each gradient with the one of the rounded inputs."""
    if probe.draws:
        yield probe.skipped("It draws random numbers, which differ from precision to precision.")
    finding, sweep = _of_another_default(probe), Sweep[str]()
    if finding is not None and finding.verdict is Verdict.UNTIDY:
        sweep.untidy.append(finding)
    else:
        yield finding
    whole = any(x.is_complex() for x in probe.inputs.points())  # there is no half of it
    levels = [level for level in _LEVELS if not whole or torch.finfo(level).bits >= 32]
    yield sweep.over(zip(map(_name, levels), levels, strict=True), partial(_taken, probe),
                     partial(_judge, probe))  # fmt: skip
    yield from sweep.untidy
    refused = [f"{n} {s.removeprefix('refused ')}" for n, s in sweep.said.items() if s != RIGHT]
    if refused:
        said = f"Forward refuses {'; '.join(refused)}. Gradients agree in the others."
        yield probe.lacking(said)
    yield probe.holds("Gradients agree across precisions and have their input's dtype.")


def _taken(probe: Probe, level: torch.dtype) -> Probe:
    """The probe in a precision, where forward takes it."""
    low = probe.at(probe.inputs.cast(level))
    low.evaluate(low.leaves())
    return low


def _judge(probe: Probe, name: str, level: torch.dtype, low: Probe) -> Finding | str:
    try:
        return _compare(probe, low, level) or RIGHT
    except Exception as error:  # judged by its type
        return probe.failed(error, f"Forward takes {name}, backward fails", transform=False)


def _of_another_default(probe: Probe) -> Finding | None:
    """Another default dtype gives other numbers: then it decides where the input's dtype should."""
    default, run = torch.get_default_dtype(), Run.of(probe)
    another = torch.float64 if default != torch.float64 else torch.float32
    try:
        torch.set_default_dtype(another)
        got = Run.of(probe, run.cotangents)
    except Exception:  # loud, and no number is wrong
        return None
    finally:
        torch.set_default_dtype(default)
    for k, (one, other) in enumerate(zip(got.every, run.every, strict=True)):
        if one.dtype != other.dtype or close(one, other, looser=1e2, least=0.0):
            continue
        place = k - len(run.outputs)
        where = probe.path(place) if place >= 0 else f"output {k}"
        single = close(one, other, looser=1e2, least=torch.finfo(torch.float32).eps)
        if single and not (probe.rough or probe.grain):  # one constant of seven digits among others
            return probe.untidy(_OTHER, expected=one, got=other, place=where, hint=_DEFAULT)
        return probe.broken(
            _OTHER, expected=one, got=other, hint=_DEFAULT, place=where,
            given={"w": run.cotangents},
            repro=[
                f"for default in ({default}, {another}):",
                "    torch.set_default_dtype(default)",
                "    g = torch.autograd.grad(outs(), xs, w, allow_unused=True)",
                "    print(default, outs(), g)",
            ],
        )  # fmt: skip
    return None


def _name(level: torch.dtype) -> str:
    return str(level).removeprefix("torch.")


def _rounding(level: torch.dtype) -> float:
    return torch.finfo(level).eps


def _compare(probe: Probe, low: Probe, level: torch.dtype) -> Finding | None:
    wrong = ""
    with suppress(Exception):  # it is asked with ones, which are no cotangent of what is sparse
        raw = returned(low.evaluate(low.leaves()))  # of a run of its own: some backward runs once
        others = ((entry.dtype, getattr(value, "dtype", entry.dtype)) for _, _, entry, value in raw)
        wrong = next((_name(found) for wanted, found in others if found != wanted), "")
    run = Run.of(low)
    wide = probe.dtype if probe.dtype in (torch.float32, torch.float64) else torch.float32
    high = probe.at(low.inputs.cast(wide))
    expected = _reference(high, run.cotangents, run.outputs)
    if expected is None:
        return None
    place = _beyond(low, high, run, expected, max(level, wide, key=_rounding))
    if place is None and wrong:
        coarse = _rounding(getattr(torch, wrong)) > _rounding(level)
        lost = f" The digits that {wrong} does not have are lost." * coarse
        return probe.untidy(
            f"With {_name(level)} inputs backward returns {wrong}; autograd casts it.{lost}",
            expected=_name(level), got=wrong,
        )  # fmt: skip
    if place is None:
        return None
    return low.broken(
        f"The gradient in {_name(level)} is further from the one in {_name(wide)} than rounding.",
        expected=expected[place], got=run.gradients[place], place=probe.path(place),
        given={"w": run.cotangents}, repro=beside_wide(wide),
    )  # fmt: skip


def _reference(
    high: Probe, cotangents: Tensors, lower: Sequence[torch.Tensor] = ()
) -> Tensors | None:
    """The gradient at rounded inputs and cotangents, computed wide.

    ``None`` if outputs have another shape there, are others than those in lower precision, as an
    eigenvector of the other sign is, or forward takes nothing wider.
    """
    leaves = high.leaves()
    outputs = attempt(lambda: high.evaluate(leaves), None)
    if outputs is None or [y.shape for y in outputs] != [g.shape for g in cotangents]:
        return None
    if any(map(_is_another, lower, outputs)):
        return None
    given = [g.to(y.dtype, copy=True) for g, y in zip(cotangents, outputs, strict=True)]
    return [g.detach() for g in high.pull(leaves, given, outputs)]


def _is_another(low: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether an output is off by more than any rounding is."""
    size = wide.detach().abs().max() if wide.numel() else 0.0
    gap = (low.detach().to(wide.dtype) - wide.detach()).abs()
    return bool((gap > _ANOTHER * size).any()) and bool(wide.isfinite().all())


def _beyond(
    low: Probe, high: Probe, run: Run, expected: Tensors, coarser: torch.dtype
) -> int | None:  # fmt: skip
    """The first gradient off by more than rounding, which includes that of the inputs."""
    got = run.gradients
    eps = max(_rounding(coarser), coarsest(got))
    limit = min(torch.finfo(g.dtype).max for g in got)
    shaken: list[Tensors] = []
    cancelled = CANCELLED * eps * largest(expected)
    for k, (one, true) in enumerate(zip(got, expected, strict=True)):
        if one.numel() == 0 or not true.isfinite().all():
            continue
        size = float(true.abs().max())
        if size > limit / 16:
            continue  # such a number does not fit
        if not one.isfinite().all():
            # An intermediate may have overflowed where float16 ends; elsewhere it is a mistake.
            if limit > 1e30:
                return k
            continue
        off = float((one.to(true.dtype) - true).abs().max()) - 30 * eps * size - 1e-6 * limit**-0.5
        if off <= cancelled:
            continue
        if not shaken:
            # What autograd has of forward in the same precision has as many digits as what cancels
            # leaves: a batch of two that is scaled to one variance has few, rows of one number to
            # length one none.
            own = own_gradients(low, low.inputs.points(), run.cotangents)
            shaken = _shaken(high, run.cotangents, eps)
            shaken += [own] if own is not None and are_finite(own) else []
        if off > 30 * max((float((other[k] - true).abs().max()) for other in shaken), default=0.0):
            return k
    return None


def _shaken(high: Probe, cotangents: Tensors, eps: float) -> list[Tensors]:
    """Gradients at inputs that rounding may have moved: where steps are, it moves them far."""
    found = []
    for number in range(_NUDGES):
        step = replace(high, free=True).direction(f"eps {number}")  # rounding keeps no structure
        nudged = [x + eps * v for x, v in zip(high.inputs.points(), step, strict=True)]
        with suppress(Exception):  # refused there
            found.append(_reference(high.at(high.inputs.with_points(nudged)), cotangents))
    return [gradients for gradients in found if gradients is not None]
