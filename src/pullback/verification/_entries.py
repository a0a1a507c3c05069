"""One tensor of a kernel beside the truth, entry by entry: see `_error` for how far it may be."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pullback.report import Verdict

__all__ = ["FACTOR", "Result", "compare_entries", "compare_whole", "widened"]

FACTOR = 8.0
_MOST = 0.125  # of the number itself, that adding up many may add to the error
_SIDED = 32  # entries of which the sides are looked at
_COTANGENT = 4.0  # few standard normal numbers are larger
_AROUND = 0.05  # of the typical movement: an entry that did not move by chance


@dataclass(frozen=True)
class Result:
    """What a comparison, or a test of a promise, says."""

    verdict: Verdict  # skipped where the reference refuses the arguments, crashes where the kernel
    detail: str = ""
    expected: str = ""  # the number, dtype or shape
    got: str = ""
    kernel: float = 0.0  # its largest error, in units in the last place
    reference: float = 0.0  # that of the reference in the kernel's dtype
    history: bool = True  # whether the kernel can be differentiated
    wrong: Sequence[int] = ()  # some of the entries that are wrong, in the flat tensor

    @property
    def fault(self) -> str:
        """What is wrong, or an empty text."""
        return self.detail if self.verdict is Verdict.BROKEN else ""


def compare_whole(name: str, true: torch.Tensor, got: torch.Tensor, free: torch.Tensor) -> Result:
    """Whole numbers and truth values: each is the reference's, but for those that are free."""
    wrong = ((got.to(true.dtype) != true) & ~free).flatten().nonzero().flatten().tolist()
    if not wrong:
        return Result(Verdict.HOLDS)
    k = wrong[0]
    others = f", and at {len(wrong) - 1} others" if wrong[1:] else ""
    counted = f"{name} is wrong at {_place(k, true.shape)}{others}"
    return Result(
        Verdict.BROKEN, counted, _number(true.flatten()[k]), _number(got.flatten()[k]), wrong=wrong
    )


def compare_entries(
    name: str, true: torch.Tensor, got: torch.Tensor, own: torch.Tensor, *,
    own_error: torch.Tensor, moved: Callable[[], Sequence[torch.Tensor]], dtype: torch.dtype,
    length: int, typical: float, told: bool, point: torch.Tensor | None,
) -> Result:  # fmt: skip
    """One tensor of a kernel beside the truth, entry by entry; what moves is asked for if need be.

    A kernel is as exact as its reference as a rule, and then what rounding does is nobody's matter.
    """
    # An output of another dtype than the inputs is rounded to it by whoever computes it.
    limits = max(map(torch.finfo, (dtype, own.dtype)), key=lambda found: found.eps)
    true, got, own, own_error = map(widened, (true, got, own, own_error))
    judged = true.isfinite() & own.isfinite()  # an overflow of the reference judges nobody
    if point is not None:  # where the input is not a number there is no derivative
        judged = judged & ~point.isnan()
    error = torch.where(judged, (got - true).abs(), 0.0)
    error = torch.where(error.isnan(), math.inf, error)
    if told:
        infinite = true.isinf() & (own == true) & (got != true)
        hidden = infinite | (true.isnan() & own.isnan() & ~got.isnan())
        error = torch.where(hidden, math.inf, error)
    own_error = torch.where(judged & own_error.isfinite(), own_error, 0.0)
    allowed = FACTOR * own_error.max() + 4 * limits.tiny
    if bool(error.max() > allowed):
        least = max(typical, _COTANGENT) if typical and not true.any() else typical
        size = true.abs().nan_to_num().clamp(min=least)
        # In half precision the root alone would allow a long sum to be anything, zero included.
        summed = max(1.0, min(math.sqrt(length), _MOST / (FACTOR * limits.eps)))
        rounding = summed * (limits.eps * size + _movement(true, judged, moved()))
        allowed = torch.maximum(allowed, FACTOR * rounding + 4 * limits.tiny)
    unit = limits.eps * true.abs().clamp(min=limits.tiny)
    unit = torch.where(unit.isfinite(), unit, 1.0)
    return _worst(name, true, got, excess=error / allowed, error=error / unit, own=own_error / unit)


def _movement(
    true: torch.Tensor, judged: torch.Tensor, moved: Sequence[torch.Tensor]
) -> torch.Tensor:
    """How far each entry moves at the most."""
    delta = torch.zeros_like(true, dtype=torch.float64)
    for other in map(widened, moved):
        delta = torch.maximum(delta, torch.where(judged, (other - true).abs(), 0.0))
    delta = torch.where(delta.isfinite(), delta, 0.0)
    return delta + _AROUND * delta.square().mean().sqrt()


def widened(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _worst(
    name: str, true: torch.Tensor, got: torch.Tensor, *, excess: torch.Tensor, error: torch.Tensor,
    own: torch.Tensor,
) -> Result:  # fmt: skip
    """Where the error is larger than allowed, the entry where it is so most."""
    most = {"kernel": float(error.max()), "reference": float(own.max())}
    k = int(excess.argmax())
    if float(excess.flatten()[k]) <= 1:
        return Result(Verdict.HOLDS, **most)
    expected, found = true.flatten()[k], got.flatten()[k]
    said = (
        f"off by {float(error.flatten()[k]):.3g} units in the last place, where the reference "
        f"itself is off by {float(own.flatten()[k]):.3g} there, and by {most['reference']:.3g} at "
        "most"
    )
    if not expected.isfinite():
        said = "it hides what is not finite"
    elif not found.isfinite():
        said = "it is not finite"
    elif not expected:
        said = f"off by {float(found.abs()):.3g} from zero"
    wrong = (excess.flatten() > 1).nonzero().flatten().tolist()
    step = len(wrong) // _SIDED + 1
    return Result(
        Verdict.BROKEN, f"{name} is wrong at {_place(k, true.shape)}: {said}", _number(expected),
        _number(found), **most, wrong=[k, *wrong[::step]],
    )  # fmt: skip


def _place(entry: int, shape: torch.Size) -> str:
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(entry), shape))
    return f"entry {index}" if index else "its one entry"


def _number(value: torch.Tensor) -> str:
    rounded = value.is_floating_point() or value.is_complex()
    return f"{value.item():.8g}" if rounded else str(value.item())
