"""`values`: right at special values, or non-finite where the truth is."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, Verdict, clause
from pullback.conformance.cause._wrong_derivative import along_a_line
from pullback.conformance.evidence._derivative import has_basis, spans
from pullback.conformance.evidence._evidence import agreement
from pullback.conformance.evidence._screen import (
    APART,
    RIGHT,
    Run,
    Sweep,
    agrees,
    already,
    is_foreign,
    own_gradients,
)
from pullback.conformance.evidence._sides import Side, look
from pullback.conformance.evidence._special import (
    REPRO,
    at_an_end,
    at_the_ends,
    controls,
    specials,
)
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._structure import bound_rows, tangent, ties_matrices
from pullback.conformance.inputs._vectors import are_finite, coarsest, flatten, products, unflatten
from pullback.conformance.process._failure import attempt
from pullback.conformance.script._repro import Given

__all__ = ["values"]

# Of work, after which no other value is tried: an iteration may converge slowly there.
_SECONDS = 10.0
_RELATIVE = agreement()
_ENTRIES = 3  # looked at one by one, in each input
# So many points are looked at before an accusation, so close; differences are as much closer.
_BESIDE, _NEAR = 32, 2.0**-10
_MOST = 1e120  # whose square can be told from infinity, as its inverse's from zero
_Way = tuple[bool, Tensors]  # a direction, and whether it keeps zeros zero and equal entries equal


@clause(
    why="Zeros come from padding and dropout, ties from quantised data, empty masks from short "
    "sentences, large numbers from float16. One NaN in one gradient ends a training run, and a "
    "wrong number there is found by nobody.",
    breach="at zeros, negative zeros, ties, constant and masked inputs, large and small numbers in "
    "each precision: against finite differences where there is a limit, against the one-sided "
    "ones at a kink (anything between these, or the slopes close by, is right), against float64 at "
    "the ends of a range, and as a gradient that is not finite where the slope is.",
    mend="Give the quotient its limit before dividing, and let tied entries share the "
    "gradient. Where the gradient is bounded or lifted there on purpose, declare it as a "
    "surrogate.",
)
def values(probe: Probe) -> Iterator[Finding | None]:
    """Put special values into the arguments, and compare with what forward does there."""
    sweep = Sweep[str](time.process_time() + _SECONDS)
    made = specials(probe.inputs)
    yield sweep.over(made, lambda i: Run.of(_there(probe, i)), partial(_at, probe))
    yield sweep.over(at_the_ends(probe), probe.at, partial(at_an_end, probe))
    yield from sweep.untidy
    ended = f" Nothing more was tried: {sweep.ended}." if sweep.ended else ""
    if not sweep.right:
        yield probe.skipped(f"The function is not defined at any special value.{ended}")
    names = list(dict.fromkeys(name.removesuffix(" in every input") for name in sweep.right))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    yield probe.holds(f"Nothing is wrong at {', '.join(names[:8])}{more}.{ended}")


def _there(probe: Probe, inputs: Arguments) -> Probe:
    """The probe at special values, which are told from the numbers that it had."""
    return replace(probe.at(inputs), original=probe.original)


def _at(probe: Probe, name: str, inputs: Arguments, run: Run) -> Finding | str:
    """What is wrong at a special value that the function takes."""
    other = _there(probe, inputs)
    if not are_finite(run.outputs) or not _has_limit(other, run):
        return ""
    if has_basis(run.outputs):  # which may turn from one point to the next
        other = spans(other)
        run = Run.of(other)
    steps = _doubted(other, run)
    if not steps and are_finite(run.gradients):
        return RIGHT
    if (known := already(probe, "at ordinary values")) is not None:
        return known
    finding = _judge(other, run, name, steps)
    if finding is None or finding.verdict is Verdict.UNTIDY:
        return finding or RIGHT
    return "" if is_foreign(probe, controls(probe, inputs)) else finding


def _has_limit(probe: Probe, run: Run) -> bool:
    """Whether outputs at infinity are those large inputs lead to, as where an entry is masked."""
    points = probe.inputs.points()
    if are_finite(points):
        return True
    far = [x.nan_to_num(posinf=1e15, neginf=-1e15) for x in points]
    there, here = flatten(probe.output_values(far)), flatten(run.outputs)
    return not len(here) or bool((there - here).abs().max() <= 1e-6 * here.abs().max())


def _judge(probe: Probe, run: Run, name: str, steps: Sequence[_Way]) -> Finding | None:
    """A finding where backward is wrong at the probe's own inputs."""
    if not are_finite(run.gradients):
        return _judge_missing(probe, run, name)
    ways = [(None, step, partial(_along, within=within)) for within, step in steps]
    ways += [(k, step, partial(_by_entry, k=k)) for k, step in _entries(probe)]
    for k, step, look_along in ways:
        slopes = look_along(probe, run, step=step)
        if slopes is None or (wrong := slopes.wrong(probe, step)) is None:
            continue
        if _is_torchs(probe, run):
            return None
        hull = slopes.beside(probe, step)
        if hull.wrong(probe, step) is not None and not hull.is_of_larger(probe, step, wrong):
            said = f"{slopes} (differences, one-sided)"
            given = {"w": slopes.weights, "v": step}
            return _broken(probe, name, said, wrong, k, repro=along_a_line(sides=True), given=given)
    return None


@dataclass(frozen=True)
class _Slopes:
    """What the derivative of <weights, outputs> along a step has to lie between."""

    weights: Tensors  # cotangents, zeros at the entries of the outputs that are not looked at
    low: float  # the smaller one-sided derivative, or the only one
    high: float  # the larger one, or the only one
    noise: float  # how far apart equal ones may be

    @classmethod
    def of(cls, weights: torch.Tensor, like: Tensors, sides: Sequence[Side]) -> "_Slopes":
        """Of one real vector of weights, and what was seen on the sides where it is defined."""
        found = [float((weights * one.slope).sum()) for one in sides]
        error = max(float((weights * one.error).norm()) for one in sides)
        noise = 1e-9 + _RELATIVE * max(map(abs, found)) + error
        return cls(unflatten(weights, like), min(found), max(found), noise)

    def __str__(self) -> str:
        more = self.high - self.low > self.noise
        return f"{self.low:.6g}" + f" to {self.high:.6g}" * more

    def beside(self, probe: Probe, step: Tensors) -> "_Slopes":
        """The same with the slopes at points close by: what lies between all of these is right.

        Clarke's generalised gradient is the convex hull of the limits of gradients (F. H. Clarke,
        "Optimization and Nonsmooth Analysis", 1983). Where forward is a difference of maxima, as
        a share of the largest two, it has elements beyond the one-sided slopes.
        """
        found, weights = [self.low, self.high], flatten(self.weights).double()
        finite = [x.abs().nan_to_num(0.0, 0.0, 0.0) for x in probe.inputs.points()]
        pairs = [(float(x.max()), float(v.abs().max()))
                 for x, v in zip(finite, step, strict=True) if v.any()]  # fmt: skip
        h = _NEAR**2 * min(((size or 1.0) / moves for size, moves in pairs), default=1.0)
        for number in range(0 if probe.rough else _BESIDE):
            moved = zip(probe.inputs.points(), _freely(probe, f"beside {number}"), strict=True)
            points = [x + _NEAR * v for x, v in moved]
            line = replace(probe, inputs=probe.inputs.with_points(points)).line(step)
            with suppress(Exception):  # not defined there
                slope = (line(h) - line(-h)).double() / (2 * h)
                found += [float((weights * slope).sum())]
        found = [slope for slope in found if math.isfinite(slope)]
        return replace(self, low=min(found), high=max(found))

    def is_of_larger(self, probe: Probe, step: Tensors, value: float) -> bool:
        """Whether over steps of ordinary sizes beside small numbers forward says the same.

        An iteration that ends at an absolute tolerance gives nothing for small numbers, or one step
        of it, and no difference of such outputs is a slope. Where forward is smooth it has the same
        slope beside them, and larger steps, of 1e-3 and 1e-4 of the numbers that were given, tell
        it in digits that the iteration has.
        """
        trios = zip(probe.inputs.points(), step, probe.original.points(), strict=True)
        sizes = [(_largest(x), _largest(v), _largest(given)) for x, v, given in trios if v.any()]
        if not all(x <= 1e-4 * given for x, _, given in sizes):
            return False
        line, weights = probe.line(step), flatten(self.weights).double()
        near = 0.1 * max(self.low - value, value - self.high)
        reach = min(given / v for _, v, given in sizes)

        def is_that(h: float) -> bool:
            slope = (weights * (line(h) - line(-h)).double()).sum() / (2 * h)
            return abs(float(slope) - value) <= near

        return attempt(lambda: is_that(1e-3 * reach) and is_that(1e-4 * reach), False)

    def wrong(self, probe: Probe, step: Tensors) -> float | None:
        """The derivative along the step by backward, where it does not lie between them."""
        value, _ = products(probe.backward(probe.inputs.points(), self.weights), step)
        noise = max(self.noise, 4 * probe.grain * abs(self.high))
        if self.low - noise <= value <= self.high + noise:
            return None
        # What rounding in operations of order one leaves of zero is no slope.
        sizes = [float(flatten(part).double().norm()) for part in (self.weights, step)]
        least, most = 1e-11 * sizes[0] * sizes[1], max(abs(value), abs(self.low), abs(self.high))
        told = max(self.low - value, value - self.high) > APART * most
        return value if told and max(least, 1 / _MOST) < most < _MOST else None


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _along(probe: Probe, run: Run, step: Tensors, *, within: bool) -> _Slopes | None:
    """By the entries of the outputs that have one slope along a direction."""
    sides = _sides(probe, step, 2.0**-6)
    if len(sides) < 2:
        return None
    weights = flatten(run.cotangents).double() * (sides[0].told & sides[1].told & ~_bend(*sides))
    if not weights.any() or not (within or _is_linear(probe, step, sides[0].slope, weights != 0)):
        return None
    return _Slopes.of(weights, run.cotangents, sides)


def _bend(up: Side, down: Side) -> torch.Tensor:
    """The entries whose slopes differ from side to side."""
    gap = (up.slope - down.slope).abs()
    return gap > _RELATIVE * torch.maximum(up.slope.abs(), down.slope.abs()) + up.error + down.error


def _by_entry(probe: Probe, run: Run, k: int, step: Tensors) -> _Slopes | None:
    """Of the entry of the outputs that moves most with one entry of an input, which is in doubt."""
    x = float(probe.inputs.points()[k][step[k] != 0].abs())
    if agrees(probe, run, [(x or 1.0) * v for v in step], every=True):
        return None  # three calls in place of forty
    sides = _sides(probe, step, (x or 1.0) / 64, x)
    if not sides or not len(sides[0].change) or any(side.jumps for side in sides):
        return None
    unit = torch.zeros_like(sides[0].change)
    unit[sides[0].change.argmax()] = 1.0
    told = all(bool(side.told[unit != 0]) for side in sides)
    return _Slopes.of(unit, run.cotangents, sides) if told else None


def _sides(probe: Probe, step: Tensors, size: float, reach: float = 1.0) -> list[Side]:
    """What the outputs do along a step, above and below, where they are defined."""
    # A line is shown in float32 at least, and has no more digits than what moves.
    grain = max(probe.grain, coarsest(probe.inputs.points()))
    found = (look(probe.line(step), side, size, reach, grain) for side in (1.0, -1.0))
    return [side for side in found if side is not None]


def _is_linear(probe: Probe, step: Tensors, slope: torch.Tensor, smooth: torch.Tensor) -> bool:
    """Whether slopes along three pairs of steps that make up a step add up to that along it."""
    near = _RELATIVE * float(slope[smooth].abs().max())
    for k in range(3):
        drawn = probe.generator(f"values {k}")
        # Of a complex number another share of each part: r |z| / z is linear along each line.
        how = [torch.complex128 if v.is_complex() else torch.float64 for v in step]
        shares = [
            (3 * torch.rand(v.shape, generator=drawn, device="cpu", dtype=dtype) - 1).to(v)
            for v, dtype in zip(step, how, strict=True)
        ]
        one = [u * v for u, v in zip(shares, step, strict=True)]
        other = [v - p for v, p in zip(step, one, strict=True)]
        lines = [probe.line(part) for part in (one, other)]
        slopes = ((line(1e-4) - line(-1e-4)).double() / 2e-4 for line in lines)
        found = attempt(partial(sum, slopes), None)
        if found is None or not bool(((found - slope)[smooth].abs() <= near).all()):
            return False
    return True


def _doubted(probe: Probe, run: Run) -> list[_Way]:
    """Directions along which there is a kink, or a mistake, one that keeps zeros and ties first.

    Among points that have the same zeros and ties a function of the ordinary kind is smooth, and
    whatever is chosen for its gradient at a kink has to fit that (J. Bolte, E. Pauwels,
    "Conservative set valued fields, automatic differentiation, stochastic gradient methods and
    deep learning", Mathematical Programming 188, 2021). In other directions it may have a kink.
    """
    if probe.intent != "exact" or not are_finite(run.gradients):
        return []
    points = probe.inputs.points()
    found, groups = torch.unique(flatten(points).double(), return_inverse=True)
    drawn = probe.generator("values")
    drawn = torch.randn(len(found), generator=drawn, dtype=torch.float64, device="cpu")
    moves = torch.where(found.isfinite(), drawn.to(found) * found.abs(), 0)[groups]
    ways = ((True, _kept(probe, unflatten(moves, points))), (False, _freely(probe)))
    return [way for way in ways if not agrees(probe, run, way[1])]


def _freely(probe: Probe, label: str = "values") -> Tensors:
    """A direction in which every finite entry moves."""
    pairs = zip(probe.inputs.points(), probe.direction(label), strict=True)
    return _kept(probe, [torch.where(x.isfinite(), v, 0) for x, v in pairs])


def _kept(probe: Probe, step: Tensors) -> Tensors:
    """The step with the structure of what was given: zeros have every one, and need none."""
    places = zip(probe.inputs.points(), step, probe.original.points(), strict=True)
    return [tangent(x, v, given) for x, v, given in places]


def _entries(probe: Probe) -> Iterator[tuple[int, Tensors]]:
    """A few finite entries that move alone: not those of a matrix or rows of some kind."""
    for k, given in enumerate(probe.original.points()):  # zeros have every structure
        count = given.numel()
        if count and not given.is_complex() and not (ties_matrices(given) or bound_rows(given)):
            for index in sorted({0, count // 2, count - 1})[:_ENTRIES]:
                if bool(probe.inputs.points()[k].reshape(-1)[index].isfinite()):
                    yield k, _unit(probe, k, index)


def _unit(probe: Probe, k: int, index: int) -> Tensors:
    like = [torch.zeros_like(x, memory_format=torch.contiguous_format)
            for x in probe.inputs.points()]  # fmt: skip
    like[k].view(-1)[index] = 1.0
    return like


def _judge_missing(probe: Probe, run: Run, name: str) -> Finding | None:
    """A gradient that is not finite, where the slope is, by differences or by its neighbours."""
    kink = False
    if probe.intent == "exact":
        sides = _sides(probe, _freely(probe), 2.0**-6)
        if any(side.jumps for side in sides):
            return None  # as bases of a matrix of zeros do
        told = [side.told for side in sides]
        kink = len(sides) == 2 and bool((_bend(*sides) & told[0] & told[1]).any())
    points = probe.inputs.points()
    # The slope of what saturates times an infinite input is NaN there for every product.
    own = None if are_finite(points) else own_gradients(probe, points, run.cotangents)
    for k, gradient in enumerate(run.gradients):
        known = points[k].isfinite() & ~gradient.isfinite()
        known &= True if own is None else own[k].isfinite()
        for index in known.reshape(-1).nonzero().reshape(-1)[:_ENTRIES].tolist():
            got = float(gradient.reshape(-1)[index].real)
            if probe.intent != "exact":
                beside = _beside(probe, run, k, index)
                if beside is not None:
                    return _broken(probe, name, f"{beside:.6g} (beside it)", got, k)
                continue
            slopes = _by_entry(probe, run, k, _unit(probe, k, index))
            if slopes is None:
                continue
            if slopes.high - slopes.low > slopes.noise or kink:
                return probe.untidy(
                    f"The gradient is not finite at a kink of forward, at {name}: anything between "
                    "its one-sided slopes is right there.",
                    expected=f"{slopes} (differences, one-sided)", got=f"{got:.8g} (backward)",
                    place=probe.path(k),
                )  # fmt: skip
            return _broken(probe, name, f"{slopes} (differences)", got, k)
    return None


def _is_torchs(probe: Probe, run: Run) -> bool:
    """Whether autograd gives the same gradients: at a kink it chooses one of the limits, too."""
    own = own_gradients(probe, probe.inputs.points(), run.cotangents)
    return own is not None and all(
        torch.allclose(a, b, rtol=1e-6) for a, b in zip(own, run.gradients, strict=True)
    )


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


def _broken(
    probe: Probe, name: str, expected: str, got: float, k: int | None = None,
    *, repro: Sequence[str] = REPRO, given: Given | None = None,
) -> Finding:  # fmt: skip
    return probe.broken(
        f"The gradient is wrong at {name}." if math.isfinite(got)
        else f"The gradient is not finite at {name}, where the slope is.",
        expected=expected, got=f"{got:.8g} (backward)",
        place=name.rpartition(" in ")[2] if k is None else probe.path(k), repro=repro,
        given=given,
    )  # fmt: skip
