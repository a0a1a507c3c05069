"""Tell of a derivative that is wrong: entry by entry where it can be, else along a direction.

A directional derivative tells that a backward is wrong. Which entries are, and how, is told by
moving one entry at a time; of a large input some entries, spread out and at both ends.
"""

import math
import time
from contextlib import suppress
from dataclasses import replace

import torch

from pullback.conformance.cause._around import (
    Around,
    at_hand,
    chosen_places,
    neutral,
    step_of,
    unread_cotangent,
)
from pullback.conformance.cause._judged import stretched
from pullback.conformance.cause._repair import EDIT, Right, right_edit
from pullback.conformance.cause._rule import Rule
from pullback.conformance.cause._trials import tried
from pullback.conformance.cause._within import alone
from pullback.conformance.comparison._changes import Pair, ratio_of
from pullback.conformance.comparison._explain import EXACT, FACTS, RULES, Difference, explain
from pullback.conformance.comparison._values import window
from pullback.conformance.evidence._derivative import Trial, judge
from pullback.conformance.inputs._arguments import Arguments, is_uniform
from pullback.conformance.inputs._structure import unlike
from pullback.conformance.probing._probe import Probe
from pullback.conformance.probing._resize import larger
from pullback.report import Finding

__all__ = ["along_a_line", "edit_of", "wrong_derivative"]

_NEAR = 3
_SECONDS = 1.5  # of work that moving entries may take; the others are not moved then
_WITNESSED = 1e-3
_ROUNDING = 1e-5
_OF_A_SIZE = (float, math.sqrt, lambda n: n - 1, lambda n: n / (n - 1))
_APART = {torch.float64: 1e-4, torch.float32: 3e-2}


def wrong_derivative(
    probe: Probe, trial: Trial, only: int | None = None, *, detail: str, place: str, hint: str = ""
) -> Finding:
    """The finding that backward is not the derivative of forward.

    Arguments:
        probe: the subject with its inputs.
        trial: the comparison that has shown it.
        only: the position of the input, or ``None`` to look at each.
        detail: what was seen.
        place: what is concerned, where no single input is found.
        hint: how to mend it, after the edit that is found.
    """
    with suppress(Exception):  # what cannot be told entry by entry is wrong all the same
        found = None if probe.brief else _wrong_entries(probe, only, detail, hint)
        if found is not None:
            return found
    there = replace(probe, inputs=probe.inputs.with_points(trial.points))
    return there.broken(
        f"{detail} The directional derivative by backward is another.",
        expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} (finite differences)",
        got=f"{trial.value:.8g} (backward)",
        place=place,
        hint=hint,
        given={"w": trial.weights, "v": trial.step},
        repro=along_a_line(),
    )


def along_a_line(*, sides: bool = False) -> list[str]:
    """Lines of a script: the derivative of the outputs times ``w`` along ``v``, in both ways.

    By one central difference, or by one to each side, beside the inputs.
    """
    central, each = "(moved(h) - moved(-h)) / 2", "moved(h) - moved(0), moved(0) - moved(-h)"
    return [
        "h, ys, got = 1e-6, outs(), [None] * len(xs)",
        "if ys[0].requires_grad: got = torch.autograd.grad(ys, xs, w, allow_unused=True)",
        "got = [torch.zeros_like(x) if g is None else g for x, g in zip(xs, got)]",
        "def moved(h):",
        "    with torch.no_grad():",
        "        for x, d in zip(xs, v): x += h * d",
        "        found = sum((a.conj() * y).sum().real.item() for a, y in zip(w, outs()))",
        "        for x, d in zip(xs, v): x -= h * d",
        "    return found",
        "print('inputs            ', xs)" if sides else "",
        f"print('finite differences', *[d / h for d in ({each if sides else central + ','})])",
        "print('backward          ', "
        "sum((g.conj() * d).sum().real.item() for g, d in zip(got, v)))",
    ]


def _wrong_entries(probe: Probe, only: int | None, detail: str, hint: str) -> Finding | None:
    """The finding for the first input that has wrong entries, and how they are wrong.

    ``None`` where no single entry can be moved, or none is wrong (the points tried by others are
    random, at a kink for example).
    """
    if probe.kin != "any":
        return None
    inputs = range(len(probe.inputs.differentiable)) if only is None else [only]
    until = time.process_time() + _SECONDS
    for number in (0, 2):
        at = Around.of(probe, probe.point(number), until)
        for k in inputs:
            found = _wrong(at, k)
            if found is not None:
                expected, got, said, mend = found
                how = f"{mend} {hint}".strip()
                return _told(at, k, expected, got, said, detail=detail, hint=how)
    return None


def _told(
    at: Around, only: int, expected: torch.Tensor, got: torch.Tensor | None, said: str, *,
    detail: str, hint: str,
) -> Finding:  # fmt: skip
    there = replace(at.probe, inputs=at.probe.inputs.with_points(at.points))
    shown = window(expected, got)
    sizes = {k: step_of(at.probe, at.points[only], k) for k in shown}
    move, entry, ties = "x.view(-1)[i] += h", "got.reshape(-1)[i].item()", {}
    for k in shown:
        unit = at.unit(only, k).reshape(-1)
        ties[k] = {int(n): unit[n].item() for n in unit.nonzero().reshape(-1)}
    if any(len(tied) > 1 for tied in ties.values()):  # a symmetric matrix, for example
        move = "for k, c in ties[i].items(): x.view(-1)[k] += c * h"
        entry = "sum(c * got.reshape(-1)[k].item() for k, c in ties[i].items())"
        said = f"{said} Entries that a structure ties move together, and are told as one.".strip()
    if got is None and not hint.startswith(EDIT):
        hint = "Return its gradient at its place: backward returns None there."
    of_complex = expected.is_complex()
    slope = "complex(slope(i, h), slope(i, 1j * h))" if of_complex else "slope(i, h)"
    return there.broken(
        detail, expected=expected, got=got, said=said,
        place=there.path(only), hint=hint, given={"w": at.weights},
        repro=[
            f"got = torch.autograd.grad(outs(), xs, w, allow_unused=True)[{only}]",
            f"x = xs[{only}]; steps = {sizes}",
            f"ties = {ties}" if "ties" in move else "",
            "def at(i, h):",
            "    with torch.no_grad():",
            "        kept = x.clone()",
            f"        {move}",
            "        found = [y.clone() for y in outs()]; x.copy_(kept)",
            "    return found",
            "def slope(i, h):",
            "    sides = zip(w, at(i, h), at(i, -h))",
            "    both = sum((a.conj() * (y - z)).sum().real.item() for a, y, z in sides)",
            "    return both / (2 * abs(h))",
            f"print('finite differences', [{slope} for i, h in steps.items()])",
            f"print('backward          ', got if got is None else [{entry} for i in steps])",
        ],
    )  # fmt: skip


def _wrong(at: Around, only: int) -> tuple[torch.Tensor, torch.Tensor | None, str, str] | None:
    """A gradient by differences (NaN where not moved), by backward, how they differ, the mend."""
    probe, points, point = at.probe, at.points, at.points[only]
    places = chosen_places(point.numel())
    if not places:
        return None
    lone = at.lone_place(only)
    around = range(max(lone - _NEAR, 0), min(lone + _NEAR + 1, point.numel()))
    expected, known = at.gradient(only, [*around, *places])
    handed = [w.clone() for w in at.weights]
    got = probe.answers(probe.leaves(points), handed)[only]
    got = None if got is None else at.steps[only](got.detach())
    answered = torch.zeros_like(point) if got is None else got
    if not known.any() or answered.shape != point.shape:
        return None
    tolerance = _APART[torch.float32 if probe.is_coarse else torch.float64]

    def is_near(term: torch.Tensor | float = 0.0) -> bool:
        gap = ((answered + term).cpu() - expected.cpu())[known].abs()
        return bool((gap <= tolerance * expected.cpu()[known].abs().max()).all())

    if is_near():
        return None
    expected, known = _filled(at, only, expected, got, known)
    difference = _difference(at, only, expected, got, known)
    pair = Pair.of(difference)
    ratio = 0.0 if pair is None else ratio_of(expected[known].cpu(), answered[known].cpu())
    if pair is not None and ratio and pair.equal(pair.got / ratio):
        difference = replace(difference, sizes=_witnessed(at, only, difference, ratio))
    sharp = difference.sharp
    finite = answered if bool(answered.isfinite().all()) else torch.zeros_like(answered)
    mend = _mend(at, only, replace(sharp, got=finite))
    unread, how = unread_cotangent(probe.subject.function, probe.outputs, difference.parts, is_near)
    if unread and not mend.mend:
        return expected, got, unread, how
    said = explain(sharp, EXACT) or (explain(sharp, FACTS) if mend.said else "")
    if not (said or mend.said):
        neglected = tried(at.probe, lambda: _neglected(at, only, answered), "")
        said = f"{neglected} {explain(difference, RULES)}"
    return expected, got, f"{mend.said} {said}".strip(), mend.mend


def _mend(at: Around, only: int, difference: Difference) -> Right:
    """The edit that is right wherever it is looked, if any; else one that is right here alone."""
    found = _edit_where_nothing_hides(at, only)
    if not found.mend:
        here = _edit(at, only, difference)
        found = here if here.mend or not found.said else found
    if found.said and not found.mend:  # what is right here alone is told apart elsewhere
        far = stretched(at.probe.inputs.with_points(at.points))
        other = Right() if far is None else edit_of(at.probe.at(far), only)
        found = other if other.mend else found
    return found


def _filled(
    at: Around, only: int, expected: torch.Tensor, got: torch.Tensor | None, known: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same gradient, with all entries that a report shows: among new ones may be a larger."""
    while lacking := [k for k in window(expected, got) if not known.view(-1)[k]]:
        more, found = replace(at, until=math.inf).gradient(only, lacking)
        expected, known = torch.where(found, more, expected), known | found
        if time.process_time() > at.until + _SECONDS or not found.any():
            break
    return expected, known


def _edit_where_nothing_hides(at: Around, only: int) -> Right:
    """The edit that is found where other numbers stand for those that are all zero, or all one.

    Beside these a conjugate, a factor or a term is lost unseen, and much is right by chance.
    """
    inputs = at.probe.inputs.with_points(at.points)
    shown = {
        k: unlike(v, at.probe.generator(f"hides {k}"))
        for k, v in enumerate(inputs.values) if is_uniform(v) and k not in inputs.owned
    }  # fmt: skip
    with suppress(Exception):  # refused there
        there = at.probe.at(inputs.with_some(shown))
        return edit_of(there, only) if shown and judge(there, only).is_wrong else Right()
    return Right()


def _edit(at: Around, only: int, difference: Difference, name: str = "") -> Right:
    return Right(*tried(at.probe, lambda: tuple(_edit_here(at, only, difference, name)), Right()))


def _edit_here(at: Around, only: int, difference: Difference, name: str) -> Right:
    at = replace(at, until=time.process_time() + 4 * _SECONDS)
    inputs = at.probe.inputs.with_points(at.points)
    rules = [
        Rule(at.probe, at.points, at.weights, at.steps, does, name) for does in ("back", "fill")
    ]
    with suppress(Exception):  # another rule may raise, or answer, whatever there is
        found = right_edit(rules, only, difference, lambda k, t: _is_of(at, k, t, inputs), at.until)
        return found if found.said or name else _edit_within(at.probe)
    return Right()


def _edit_within(probe: Probe) -> Right:
    """The edit of a Function that a callable applies, or which one is wrong by itself."""
    told = Right()
    for there in alone(probe):
        name = there.subject.name.rpartition(":")[2]
        for k in range(len(there.inputs.differentiable)):
            if judge(there, k).is_wrong:
                found = edit_of(there, k, name)
                if found.said:
                    return found
                told = told if told.said else Right(f"{name} is wrong by itself: check it alone.")
    return told


def edit_of(probe: Probe, only: int = 0, name: str = "") -> Right:
    """The edit after which a backward that fails, or is not linear, is right.

    Arguments:
        probe: the subject with its inputs.
        only: the input whose gradient is looked at.
        name: that of the Function, where a callable around it is looked at.
    """
    try:
        at = Around.of(probe, probe.point(0), time.process_time() + _SECONDS)
        expected, known = at.gradient(only, chosen_places(at.points[only].numel()))
        got = torch.zeros_like(expected)
        with suppress(Exception):
            got = probe.backward(at.points, [w.clone() for w in at.weights])[only]
        return _edit(at, only, Difference(expected, got, known, close=at.close).sharp, name)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:  # the checked code may raise anything
        return Right()


def _witnessed(at: Around, only: int, difference: Difference, ratio: float) -> dict[str, int]:
    """The sizes that a factor may come from: those that go on to explain it when all sizes change.

    That got is 3 x expected, and some dimension has 3 entries, is a coincidence until another size
    has shown otherwise.
    """
    probe = at.probe.at(at.probe.inputs.with_points(at.points))
    with suppress(Exception):  # refused at that size
        there = probe.at(larger(probe.inputs, at.probe.generator("witness")) or probe.inputs)
        trial = judge(there, only)
        change = trial.value / trial.estimate.value / ratio
        points = there.inputs.points()
        sizes = at_hand(there, points, there.output_values(points), {}).sizes
        # By their order: some names say how many entries there are.
        pairs = zip(difference.sizes.items(), sizes.values(), strict=True)
        return {
            name: size
            for (name, size), other in pairs
            if size > 2 and trial.is_wrong and any(
                abs(change ** by - of(other) / of(size)) < _WITNESSED
                for by in (1, -1) for of in _OF_A_SIZE
            )
        }  # fmt: skip
    return {}


def _neglected(at: Around, only: int, answered: torch.Tensor) -> str:
    """One sentence that names an argument, and the value at which backward is right without it."""
    inputs, until = at.probe.inputs.with_points(at.points), time.process_time() + _SECONDS
    if _is_of(at, only, answered, inputs):  # too close to be told by this
        return ""
    for path, value, other in neutral(inputs):
        if time.process_time() > until:  # a number may be that of all steps
            break
        if path != inputs.names()[only] and _is_of(at, only, answered, other):
            return f"Backward is right for a forward with {path} = {value}: it leaves that out."
    return ""


def _is_of(at: Around, only: int, gradient: torch.Tensor, inputs: Arguments) -> bool:
    """Whether a gradient is that of forward at other arguments, along two directions."""
    probe, points = at.probe.at(inputs), inputs.points()
    try:
        there = replace(at, probe=probe, points=points, base=probe.output_values(points))
        for label in ("one", "other"):
            step = probe.direction(label, only)[only]
            found = there.slope(only, step)
            terms = (gradient.conj() * step).real.double()
            apart = _APART[torch.float32 if probe.is_coarse else torch.float64]
            # Where all is zero, what rounding leaves of differences is.
            least = sum(
                float((w * y).abs().sum()) for w, y in zip(at.weights, at.base, strict=True)
            )
            close = apart * max(float(terms.square().sum().sqrt()), _ROUNDING * least)
            if found is None or not abs(found - float(terms.sum())) <= close:
                return False
    except Exception:  # outside of the domain of forward
        return False
    return True


def _difference(
    at: Around, only: int, expected: torch.Tensor, got: torch.Tensor | None, known: torch.Tensor
) -> Difference:
    """What may explain the difference: gradients of others, terms, and what is at hand."""
    names = at.probe.inputs.names()
    others, parts = {}, {}
    wide = at.with_constants()
    for k, (name, point) in enumerate(zip(wide.probe.inputs.names(), wide.points, strict=True)):
        own = name == names[only] or point.shape != expected.shape
        other = None if own else wide.whole(k)
        if other is not None:
            others[f"the gradient of {name}"] = other
    for k in range(len(at.weights) if len(at.weights) > 1 else 0):
        alone = [w if j == k else w * 0 for j, w in enumerate(at.weights)]
        part = at.whole(only, alone)
        if part is not None:
            parts[f"output {k}"] = part
    point, alone = at.points[only], at.weights[0]
    if len(at.weights) == 1 and alone.shape == point.shape and not point.is_complex():
        for pushed in at.pushed(only, alone.to(point.dtype)) or ():
            others["the derivative times the cotangent, where its transpose is asked for"] = pushed
    cotangents = {f"the cotangent of output {k}": w for k, w in enumerate(at.weights)}
    found = at_hand(at.probe, at.points, at.base, cotangents)
    return replace(
        found, expected=expected, got=got, known=known, others=others, parts=parts | cotangents
    )
