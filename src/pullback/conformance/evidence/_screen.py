"""One run, a sweep over varied arguments, and what comes before an accusation.

A sweep is the shape of every clause that varies the arguments: what makes others, how they are run,
what judges a run, and what is said at the end. One central difference is enough for most of them.
A Function that is wrong at ordinary numbers, at the given size or with the given dimensions has
another fault, which another clause tells; and one that is wrong wherever arguments were made like
those that accuse it takes arguments of a kind that nobody named.

Finite differences of bfloat16 and float16 do not settle: a step that rounding does not hide is as
large as what moves. Where forward is made of operations of torch, autograd has its derivative in
the same precision, and a Function of few digits is held to that.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch

from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._evidence import agreement
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._vectors import (
    are_finite,
    filled,
    flatten,
    products,
    unflatten,
    wide,
)
from pullback.conformance.probing._mends import by_autograd
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._failure import attempt, describe, raised
from pullback.conformance.process._forked import ProcessDied, forked
from pullback.conformance.process._limits import NoEnd
from pullback.report import Finding, Verdict

__all__ = [
    "APART", "RIGHT", "Run", "Sweep", "agrees", "already", "died", "every_output", "hides_slopes",
    "is_foreign", "is_right", "is_wrong", "own_gradients", "unlike_own",
]  # fmt: skip

RIGHT = "right"
APART = 1e-3
"""The relative error that is told at other arguments than those given.

A solver that ends at a tolerance is right to its square root or so, by how well the arguments are
conditioned; a fault at a size or a value is gross.
"""

_SEVERAL = 3  # entries whose gradients have no factor in common by chance

_Name = TypeVar("_Name")
_Made = TypeVar("_Made")
_Ran = TypeVar("_Ran")


@dataclass(frozen=True)
class Run:
    """A forward and a backward at the probe's own inputs."""

    outputs: Tensors  # those that are differentiated, without history
    cotangents: Tensors  # what backward was given
    answered: Sequence[torch.Tensor | None]  # what it answered
    gradients: Tensors  # the same, with zeros for ``None``

    @classmethod
    def of(
        cls, probe: Probe, cotangents: Tensors | None = None, leaves: Tensors | None = None, *,
        wanted: Tensors | None = None, around: AbstractContextManager[object] | None = None,
    ) -> "Run":  # fmt: skip
        """Run forward and backward.

        Arguments:
            probe: the subject with its inputs.
            cotangents: for backward; random ones if ``None``.
            leaves: the inputs, handed over as they lie in memory; the probe's if ``None``.
            wanted: what the inputs were made of, whose gradients are asked for; themselves if
                ``None``.
            around: a context of forward alone.
        """
        handed = probe.leaves() if leaves is None else leaves
        with around or nullcontext():
            outputs = probe.evaluate(handed)
        given = probe.cotangents(outputs) if cotangents is None else cotangents
        given = [g.to(y.dtype) for g, y in zip(given, outputs, strict=True)]
        # Backward may write into what it was given, and into what forward gave.
        found, kept = ([t.detach().clone() for t in tensors] for tensors in (outputs, given))
        asked = handed if wanted is None else wanted
        answered = probe.answers(asked, given, outputs)
        return cls(found, kept, answered, [g.detach() for g in filled(asked, answered)])

    @classmethod
    def laid(cls, probe: Probe, points: Tensors, cotangents: Tensors) -> "Run":
        """Run forward and backward at tensors that are handed over as they lie in memory."""
        handed, given = ([_own(t) for t in tensors] for tensors in (points, cotangents))
        return cls.of(probe, given, [x.detach().requires_grad_() for x in handed])

    @property
    def every(self) -> Tensors:
        """The outputs, then the gradients."""
        return [*self.outputs, *self.gradients]


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, where it lies as that would: the code may write into it, and others are handed it."""
    plain = tensor.is_contiguous() and tensor.storage_offset() == 0
    return tensor.clone() if plain else tensor


@dataclass
class Sweep(Generic[_Name]):
    """Variations of the arguments, one after the other, until one is wrong."""

    # in seconds of the process, after which nothing more is tried: a check stays fast
    end: float = math.inf
    # what was learnt of each variation, `RIGHT` or why it is not told
    said: dict[_Name, str] = field(default_factory=dict)
    untidy: list[Finding] = field(default_factory=list)  # no reason to end
    ended: str = ""  # why nothing more was tried

    @property
    def right(self) -> list[_Name]:
        """The variations that are right."""
        return [name for name, said in self.said.items() if said == RIGHT]

    def over(
        self, variations: Iterable[tuple[_Name, _Made]], run: Callable[[_Made], _Ran],
        judge: Callable[[_Name, _Made, _Ran], Finding | str],
    ) -> Finding | None:  # fmt: skip
        """The first finding that is more than untidy.

        What a run raises is loud, so nothing is silently wrong there. What judges a run gives a
        finding, or what is said of it; an empty text where nothing is.
        """
        try:
            for name, made in () if self.ended else variations:
                if time.process_time() > self.end:
                    self.ended = "calls are slow"
                    break
                try:
                    ran = run(made)
                except Exception as error:
                    self.said[name] = f"refused ({describe(error, 80)})"
                    if isinstance(error, NoEnd):
                        raise
                    continue
                found = judge(name, made, ran)
                if isinstance(found, str):
                    self.said.update({name: found} if found else {})
                elif found.verdict is not Verdict.UNTIDY:
                    return found
                else:
                    self.untidy.append(found)
        except NoEnd:  # nor will others end, and each takes as long
            self.ended = "a call does not end"
        return None


def every_output(probe: Probe) -> Tensors:
    """The outputs of a fresh run, those that are not differentiated too."""
    return [y.detach() for y in probe.run(probe.leaves())]


def agrees(probe: Probe, run: Run, step: Tensors, *, every: bool = False) -> bool:
    """Whether one central difference agrees with backward; what does not needs a closer look.

    Outputs whose two one-sided differences are far apart, as at a kink, get no cotangent; when
    none is left, or one is where every one is asked for, nothing agrees.
    """
    eps = 2.0**-23 if torch.finfo(probe.dtype).eps > 2.0**-52 else 2.0**-52
    h = 2.0**-6 if eps > 2.0**-52 else 2.0**-10
    line, base = probe.line(step), flatten(run.outputs).double()
    try:
        up, down = (line(t).double() for t in (h, -h))
    except Exception:  # not defined beside the point
        return False
    if up.shape != base.shape or down.shape != base.shape:
        return False
    smooth = (up + down - 2 * base).abs() <= 0.05 * (up - down).abs()
    weights = flatten(run.cotangents).double() * smooth
    if not weights.any() or (every and not smooth.all()):
        return False
    gradients = run.gradients
    if not smooth.all():
        given = unflatten(weights, run.cotangents)
        gradients = probe.backward(probe.inputs.points(), given)
    value, magnitude = products(gradients, step)
    terms = weights * (up - down) / (2 * h)
    tolerance = agreement(eps, probe.grain) * max(magnitude, float(terms.abs().sum()))
    return abs(value - float(terms.sum())) <= tolerance


def is_wrong(probe: Probe) -> bool:
    """Whether backward is wrong where it is asked, of all inputs at once or of one alone."""
    count = len(probe.inputs.differentiable)
    choices = (None, *range(min(count, 8))) if count > 1 else (None,)
    return any(judge(probe, only).is_wrong for only in choices)


def is_right(probe: Probe) -> bool:
    """Whether finite differences tell that backward is right, of all inputs at once."""
    return judge(probe).match == "match"


def is_foreign(probe: Probe, controls: Iterable[Arguments]) -> bool:
    """Whether arguments that are made as those in question are outside of the domain anyway.

    What is refused tells nothing: integers may point to what is not there.
    """
    for inputs in controls:
        try:
            if is_wrong(probe.at(inputs)):
                return True
        except NoEnd:
            raise
        except Exception:  # noqa: S112 - a refusal
            continue
    return False


def already(probe: Probe, where: str) -> Finding | None:
    """One cause gives one finding: what is wrong as it was given is `derivative`'s."""
    if probe.intent != "exact" or not is_wrong(probe):
        return None
    return probe.skipped(f"The derivative is wrong {where} already.")


def died(probe: Probe, doing: str, death: ProcessDied, **told: Any) -> Finding:
    """The finding for the end of a copy of the process, beside one with the arguments as given.

    That ends too where threads have been started that a copy has not, as those of OpenMP by numba.
    """
    if isinstance(raised(lambda: forked(lambda: len(Run.of(probe).every))), ProcessDied):
        return probe.skipped("A copy of the process ends with the arguments as given too.")
    return probe.crashes(f"{doing} {death}", **told)


def hides_slopes(probe: Probe) -> bool:
    """Whether rounding hides what finite differences would show."""
    return torch.finfo(probe.dtype).eps > torch.finfo(torch.float32).eps


def own_gradients(probe: Probe, points: Tensors, cotangents: Tensors) -> Tensors | None:
    """What autograd answers by what forward does; ``None`` where it cannot follow it."""
    subject = by_autograd(probe.subject)
    if subject is None:
        return None
    return attempt(lambda: replace(probe, subject=subject).backward(points, cotangents), None)


def is_multiple_of_own(probe: Probe, only: int) -> bool:
    """Whether backward answers for one input what autograd does, but for a factor.

    That is a factor that was forgotten, and no surrogate: of some entries that differ.
    """
    points = probe.point(0)
    cotangents = probe.spread(probe.output_values(points), "multiple")
    own = own_gradients(probe, points, cotangents)
    if own is None or not are_finite(own):
        return False
    expected, got = wide(own[only]), wide(probe.backward(points, cotangents)[only])
    some = expected != 0
    if len(expected[some].unique()) < _SEVERAL or bool(got[~some].any()):
        return False
    factors = got[some] / expected[some]
    factor = factors.reshape(-1)[0]
    close = agreement(torch.finfo(probe.dtype).eps)
    alike = (factors - factor).abs().max() <= close * factor.abs()
    return bool(alike) and bool((factor - 1).abs() > close) and bool(factor != 0)


def unlike_own(probe: Probe, number: int) -> list[tuple[int, torch.Tensor, torch.Tensor]] | None:
    """The inputs whose gradient is off by more than rounding, with autograd's and their own.

    ``None`` where autograd tells nothing.
    """
    points = probe.point(number)
    cotangents = probe.spread(probe.output_values(points), "own")
    expected = own_gradients(probe, points, cotangents)
    if expected is None or not are_finite(expected):
        return None
    pairs = enumerate(zip(expected, probe.backward(points, cotangents), strict=True))
    tolerance = agreement(torch.finfo(probe.dtype).eps)
    return [
        (k, one, other) for k, (one, other) in pairs
        if not _norm(wide(other) - wide(one)) <= tolerance * _norm(wide(one))
    ]  # fmt: skip


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.abs().square().sum().sqrt())
