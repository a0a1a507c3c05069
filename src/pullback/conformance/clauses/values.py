"""The clause `values`."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._clause import clause
from pullback.conformance._control import already, is_foreign
from pullback.conformance._derivative import try_derivative
from pullback.conformance._directions import spread
from pullback.conformance._ends import at_the_ends
from pullback.conformance._limits import NoEnd
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._screen import Run, agrees
from pullback.conformance._settled import is_told
from pullback.conformance._spans import has_basis, spans
from pullback.conformance._special import one_sided, specials
from pullback.conformance._structure import keep_step, outside, ties_matrices
from pullback.conformance._vectors import flatten
from pullback.report import Finding, Verdict

__all__ = ["values"]

_ENTRIES = 3  # looked at one by one, in each input


@clause(
    "values",
    promise="Right at special values, or non-finite where the truth is.",
    why="Zeros come from padding and dropout, ties from quantised data, empty masks from short "
    "sentences, large numbers from float16. One NaN in one gradient ends a training run, and a "
    "wrong number there is found by nobody.",
    breach="at zeros, negative zeros, ties, constant and masked inputs, large and small numbers in "
    "each precision: against finite differences where there is a limit, against the one-sided "
    "ones at a kink (anything between the two is right), against float64 at the ends of a "
    "range, and as a gradient that is not finite where the slope is.",
    mend="Write the quotient so that it has its limit (`torch.where` on the input of the quotient, "
    "not on its result), count ties, and compute in a wider dtype.",
)
def values(probe: Probe) -> Finding:
    """Put special values into the arguments, and compare with what forward does there."""
    right: list[str] = []
    untidy: list[Finding] = []
    ended = ""
    try:
        for name, finding in _look(probe):
            if finding is None:
                right.append(name)
            elif finding.verdict is not Verdict.UNTIDY:
                return finding
            else:
                untidy.append(finding)
    except NoEnd:  # nor will others end, and each takes as long
        ended = " Nothing more was tried: a call does not end there."
    if untidy:
        return untidy[0]
    if not right:
        return probe.skipped(f"The function is not defined at any special value.{ended}")
    names = list(dict.fromkeys(name.removesuffix(" in every input") for name in right))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return probe.holds(f"Nothing is wrong at {', '.join(names[:8])}{more}.{ended}")


def _look(probe: Probe) -> Iterator[tuple[str, Finding | None]]:
    """Each special value that the function takes, and what is wrong there."""
    for name, inputs in specials(probe.inputs):
        other = replace(probe, inputs=inputs)
        try:
            run = Run.of(other)
        except NoEnd:
            raise
        except Exception:  # noqa: S112 - loud, so not silently wrong
            continue
        if not _finite(run.outputs) or not _has_limit(other, run):
            continue
        if has_basis(run.outputs):  # which may turn from one point to the next
            other = spans(other)
            run = Run.of(other)
        finding = _judge(other, run, name)
        if finding is None or finding.verdict is Verdict.UNTIDY:
            yield name, finding
        elif not is_foreign(probe, _controls(probe, inputs)):
            yield name, already(probe, "at ordinary values") or finding
    yield from at_the_ends(probe)


def _controls(probe: Probe, inputs: Arguments) -> Iterator[Arguments]:
    """Ordinary numbers where special values lie that leave the range of those given.

    A logarithm is no function of negative numbers, whatever a clamp makes of them.
    """
    pairs = zip(inputs.values, probe.inputs.values, strict=True)
    left = [outside(given, made) for made, given in pairs]
    if any(left):
        drawn = probe.generator("outside")
        values = [
            spread(value, drawn) * (2 * value.abs().max()) if beyond else value
            for value, beyond in zip(probe.inputs.values, left, strict=True)
        ]
        yield probe.inputs.with_values(values)


def _finite(parts: Tensors) -> bool:
    return all(bool(part.isfinite().all()) for part in parts)


def _has_limit(probe: Probe, run: Run) -> bool:
    """Whether outputs at infinity are those large inputs lead to, as where an entry is masked."""
    points = probe.inputs.points()
    if _finite(points):
        return True
    far = [x.nan_to_num(posinf=1e15, neginf=-1e15) for x in points]
    found = [
        torch.cat([y.abs().reshape(-1) for y in parts])
        for parts in (
            [a - b for a, b in zip(probe.output_values(far), run.outputs, strict=True)],
            run.outputs,
        )
    ]
    return bool(found[0].max() <= 1e-6 * found[1].max()) if found[1].numel() else True


def _judge(probe: Probe, run: Run, name: str) -> Finding | None:
    """A finding where backward is wrong at the probe's own inputs."""
    if not _finite(run.gradients):
        return _judge_missing(probe, run, name)
    if probe.intent != "exact":
        return None
    kink = False
    for within, step in _steps(probe):
        if agrees(probe, run, step):
            continue
        kink = True
        trial = try_derivative(probe, 0, step=step)
        value, slope = trial.value, trial.estimate.value
        size = max(abs(value), abs(slope))
        sound = trial.match == "mismatch" and _counts(run, step, size)
        if sound and is_told(probe, step, within=within, gap=abs(value - slope) / size):
            expected = f"{slope:.8g} +- {trial.estimate.error:.1g} (finite differences)"
            return _broken(probe, name, expected, value)
    return _judge_entries(probe, run, name) if kink else None


def _counts(run: Run, step: Tensors, slope: float) -> bool:
    """Whether a slope is more than rounding in operations of order one leaves of zero."""
    sizes = [sum(float(t.abs().square().nansum()) for t in part) for part in (run.cotangents, step)]
    return max(1e-11 * math.sqrt(sizes[0] * sizes[1]), 1e-120) < slope < 1e120


def _steps(probe: Probe) -> Iterator[tuple[bool, Tensors]]:
    """Directions, and whether each keeps zeros zero and equal entries equal.

    Among points that have the same zeros and ties a function of the ordinary kind is smooth, and
    whatever is chosen for its gradient at a kink has to fit that (J. Bolte, E. Pauwels,
    "Conservative set valued fields, automatic differentiation, stochastic gradient methods and
    deep learning", Mathematical Programming 188, 2021). In other directions it may have a kink.
    """
    points = probe.inputs.points()
    flat = torch.cat([torch.view_as_real(x).reshape(-1) if x.is_complex() else x.reshape(-1)
                      for x in (p.detach().cpu() for p in points)]).double()  # fmt: skip
    found, groups = torch.unique(flat, return_inverse=True)
    drawn = torch.randn(len(found), dtype=torch.float64, generator=probe.generator("values"))
    moves = torch.where(found.isfinite(), drawn * found.abs(), 0)[groups]
    yield True, _kept(probe, _split(moves, points))
    step = probe.direction("values")
    ends = [torch.where(x.isfinite(), v, 0) for x, v in zip(points, step, strict=True)]
    yield False, _kept(probe, ends)


def _kept(probe: Probe, step: Tensors) -> Tensors:
    """The step with the structure of what was given: zeros have every one, and need none."""
    return [keep_step(x, v) for x, v in zip(probe.original.points(), step, strict=True)]


def _split(flat: torch.Tensor, points: Tensors) -> Tensors:
    parts, start = [], 0
    for x in points:
        count = x.numel() * (2 if x.is_complex() else 1)
        part = flat[start : start + count]
        part = torch.view_as_complex(part.reshape(-1, 2)) if x.is_complex() else part
        parts.append(part.reshape(x.shape).to(x))
        start += count
    return parts


def _judge_entries(probe: Probe, run: Run, name: str) -> Finding | None:
    """Single entries of the inputs against one-sided differences of the output they move most."""
    for k, given in enumerate(probe.original.points()):  # zeros have every structure
        for index in _places(given):
            limits = _limits(probe, k, index)
            if limits is None:
                continue
            output, entry, pairs = limits
            found = [limit for limit, _ in pairs]
            cotangents = [y.new_zeros(y.shape) for y in run.outputs]
            cotangents[output].view(-1)[entry] = 1.0
            slope = Run.of(probe, cotangents).gradients[k].reshape(-1)[index]
            low, high = min(found), max(found)
            tolerance = max(1e-3, 4 * probe.grain) * max(abs(low), abs(high)) + 1e-9
            tolerance += max(rounding for _, rounding in pairs)
            if not low - tolerance <= float(slope.real) <= high + tolerance:
                expected = f"{found[0]:.6g}" if len(found) == 1 else f"{low:.6g} to {high:.6g}"
                side = "from the one side where it is defined" if len(found) == 1 else "one-sided"
                return _broken(
                    probe, name, f"{expected} (differences, {side})", float(slope.real), k
                )
    return None


def _places(x: torch.Tensor) -> list[int]:
    """Entries that move by themselves: not those of a symmetric or triangular matrix."""
    count = x.numel()
    if not count or x.is_complex() or ties_matrices(x):
        return []
    return sorted({0, count // 2, count - 1})[:_ENTRIES]


def _limits(probe: Probe, k: int, index: int) -> tuple[int, int, list[tuple[float, float]]] | None:
    """The output that one entry moves most, and its one-sided derivatives with their rounding."""
    points = probe.inputs.points()
    x = points[k].reshape(-1)[index]
    if not bool(x.isfinite()):
        return None
    size = float(x.abs()) or 1.0

    def moved(t: float) -> Tensors:
        changed = [p.clone(memory_format=torch.contiguous_format) for p in points]
        changed[k].view(-1)[index] += t
        with torch.no_grad():
            return probe.evaluate(changed)

    base = moved(0.0)
    found: list[tuple[float, float]] = []
    chosen: tuple[int, int] | None = None
    for side in (1.0, -1.0):
        try:
            ahead = moved(side * size / 64)
            gaps = [(a - b).abs().reshape(-1) for a, b in zip(ahead, base, strict=True)]
            if not _finite(gaps):
                continue
            closer = moved(side * size / 64 * 1e-4)
            jumps = [
                float((a - b).abs().max()) for a, b in zip(closer, base, strict=True) if a.numel()
            ]
            if max(jumps) > 0.1 * max(float(gap.max()) for gap in gaps if gap.numel()) > 0:
                return None  # an output jumps here
            chosen = chosen or _largest(gaps)
            output, entry = chosen

            def at(t: float, output: int = output, entry: int = entry) -> float:
                return float(moved(t)[output].reshape(-1)[entry].real)

            limit = one_sided(at, side, size / 64, at_zero=not x)
        except Exception:  # noqa: S112 - not defined on this side
            continue
        if limit is None:
            return None  # no limit on a side where it is defined
        found.append(limit)
    return None if chosen is None or not found else (*chosen, found)


def _largest(gaps: Tensors) -> tuple[int, int]:
    tops = [float(gap.max()) if gap.numel() else -1.0 for gap in gaps]
    output = tops.index(max(tops))
    return output, int(gaps[output].argmax())


def _judge_missing(probe: Probe, run: Run, name: str) -> Finding | None:
    """A gradient that is not finite, where the slope is, by differences or by its neighbours."""
    if probe.intent == "exact" and not _is_continuous(probe, run):
        return None
    for k, gradient in enumerate(run.gradients):
        places = (~gradient.isfinite()).reshape(-1).nonzero().reshape(-1)
        places = [
            int(i) for i in places if bool(probe.inputs.points()[k].reshape(-1)[i].isfinite())
        ]
        for index in places[:_ENTRIES]:
            got = gradient.reshape(-1)[index]
            if probe.intent == "exact":
                limits = _limits(probe, k, index)
                if limits is not None:
                    found = [limit for limit, _ in limits[2]]
                    noise = 1e-9 + 1e-3 * max(map(abs, found)) + sum(r for _, r in limits[2])
                    expected = " to ".join(f"{limit:.6g}" for limit in sorted(set(found)))
                    if max(found) - min(found) > noise or _is_kink(probe, run):
                        return _untidy(probe, name, expected, float(got.real), k)
                    return _broken(probe, name, f"{expected} (differences)", float(got.real), k)
                continue
            beside = _beside(probe, run, k, index)
            if beside is not None:
                return _broken(probe, name, f"{beside:.6g} (beside it)", float(got.real), k)
    return None


def _is_kink(probe: Probe, run: Run) -> bool:
    """Whether forward has no derivative here: its slopes differ from side to side."""
    points, step = probe.inputs.points(), _kept(probe, probe.direction("kink"))

    def bend(t: float) -> torch.Tensor:
        """How far the slopes from both sides are apart, at each entry of the outputs."""
        up, down = (
            flatten(probe.evaluate([x + s * v for x, v in zip(points, step, strict=True)]))
            for s in (t, -t)
        )
        return (up + down - 2 * flatten(run.outputs)).abs() / t

    with torch.no_grad():
        try:
            found = torch.stack([bend(10.0**-k) for k in (4, 5, 6, 7)])
        except Exception:  # not defined on one side
            return False
    # That of a smooth function shrinks with the step.
    return bool((found.amin(0) > 0.5 * found.amax(0)).logical_and(found.amax(0) > 1e-6).any())


def _is_continuous(probe: Probe, run: Run) -> bool:
    """Whether every output changes little where the inputs do, as bases of zero matrices do not."""
    points = probe.inputs.points()
    step = [torch.where(x.isfinite(), v, 0)
            for x, v in zip(points, probe.direction("continuous"), strict=True)]  # fmt: skip

    def change(t: float) -> float:
        with torch.no_grad():
            moved = probe.evaluate([x + t * v for x, v in zip(points, step, strict=True)])
        return max(float((a - b).abs().max()) for a, b in zip(moved, run.outputs, strict=True)
                   if b.numel())  # fmt: skip

    for side in (1.0, -1.0):
        try:
            near, far = change(side * 1e-7), change(side / 64)
        except Exception:  # noqa: S112 - not defined on this side
            continue
        if math.isfinite(near) and math.isfinite(far) and near > 0.1 * far > 0:
            return False
    return True


def _beside(probe: Probe, run: Run, k: int, index: int) -> float | None:
    """The gradient of an entry close by, if it is the same on both sides."""
    found = []
    for side in (1.0, -1.0):
        points = [p.clone() for p in probe.inputs.points()]
        size = float(points[k].abs().max()) or 1.0
        points[k] = points[k] + side * 1e-6 * size
        found.append(float(probe.backward(points, run.cotangents)[k].reshape(-1)[index].real))
    one, other = found
    if not (math.isfinite(one) and math.isfinite(other)):
        return None
    return one if abs(one - other) <= 1e-3 * max(abs(one), abs(other)) else None


_HINT = (
    "Give the quotient its limit before dividing, and let tied entries share the gradient. Where "
    "the gradient is bounded or lifted there on purpose, declare it as a surrogate."
)
_REPRO = [
    "print('inputs  ', xs)",
    "ys = outs(); print('outputs ', ys)",
    "print('gradient', torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], "
    "allow_unused=True))",
]


def _untidy(probe: Probe, name: str, expected: str, got: float, k: int) -> Finding:
    return probe.untidy(
        f"The gradient is not finite at a kink of forward, at {name}: anything between its "
        "one-sided slopes is right there.",
        expected=f"{expected} (differences, one-sided)", got=f"{got:.8g} (backward)",
        place=probe.path(k), hint=_HINT,
    )  # fmt: skip


def _broken(probe: Probe, name: str, expected: str, got: float, k: int | None = None) -> Finding:
    return probe.broken(
        f"The gradient is wrong at {name}." if math.isfinite(got)
        else f"The gradient is not finite at {name}, where the slope is.",
        expected=expected, got=f"{got:.8g} (backward)",
        place=name.rpartition(" in ")[2] if k is None else probe.path(k), hint=_HINT, repro=_REPRO,
    )  # fmt: skip
