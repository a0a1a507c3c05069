"""Look at a subject once before the clauses run: precision, what is differentiated, randomness."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import torch

from pullback.conformance.comparison._values import is_freed, same_bits
from pullback.conformance.inputs._arguments import Arguments, is_composed, is_continuous
from pullback.conformance.inputs._held import own_generators
from pullback.conformance.inputs._structure import keep
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._vectors import KINDS
from pullback.conformance.probing._fresh import Fresh
from pullback.conformance.probing._nodes import returned
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.probing._resize import part_of
from pullback.conformance.probing._unwritten import run_filled, unwritten
from pullback.conformance.process._failure import Fault, classify, describe, raised
from pullback.conformance.process._forked import Copy
from pullback.conformance.process._guard import guarded, reseed
from pullback.conformance.process._limits import patience_for
from pullback.errors import ArgumentError, PullbackError
from pullback.internal._operator import registered_rules
from pullback.report import Verdict

__all__ = ["prepare", "unprepared"]

_FINE = torch.finfo(torch.float64).eps
_COMPILES = 3  # times as long as the first calls may a later one take


def prepare(
    subject: Subject, arguments: Arguments, seed: int, *, fresh: bool = False,
    copy: Copy | None = None,
) -> Probe:  # fmt: skip
    """Make the probe the clauses share.

    In float64 where the function computes in float64, with the inputs and outputs that are
    differentiated. The intent is not yet inferred. A fresh one keeps a copy of this process from
    before the first call, made here unless it was made before.

    Raises:
        ArgumentError: the inputs do not fit the function's signature.
    """
    began = time.process_time()
    probe = unprepared(subject, arguments, seed)
    with guarded():
        probe = replace(probe, fresh=Fresh.of(probe, copy)) if fresh else probe
        found = _settled(probe)
        if not isinstance(found, Arguments):
            return _refused(probe, found)
        probe = part_of(probe.at(found, same=True), _runs)
        try:
            return _look(probe, began)
        except (Exception, SystemExit) as error:
            # Looking made other calls too: that it fails again is said of what does.
            again = raised(lambda: probe.run(probe.leaves()))
            if again is not None:
                return _once_only(probe, describe(again))
            said = f"Looking at its calls fails: {describe(error)}"
            return replace(probe, fault=Fault(said, Verdict.SKIPPED))


def unprepared(subject: Subject, arguments: Arguments, seed: int) -> Probe:
    """The probe of a subject that has not been called yet."""
    if not subject.structured:
        flat = [k for k in arguments.differentiable if not arguments.nested(k)]
        arguments = arguments.with_differentiable(flat)
    return Probe(subject, arguments, arguments, seed=seed)


def _refused(probe: Probe, error: BaseException) -> Probe:
    """The probe of a forward that fails by its own code; inputs that do not fit are the caller's.

    Raises:
        ArgumentError: the inputs do not fit.
    """
    subject, inputs, said = probe.subject, probe.inputs, describe(error)
    called = subject.target if subject.function is None else subject.function.forward
    own = (getattr(called, "__module__", None) or "").partition(".")[0]
    # Where they fit, a tensor among them, a failure is the code's own.
    fits = inputs.values and subject.misfit(inputs.args, inputs.kwargs) == ""
    if isinstance(error, PullbackError) or own in ("torch", "pullback") or not fits:
        raise ArgumentError(
            f"{subject.name} cannot be called with these inputs.", given=said,
            expected="inputs that the function accepts",
            mend="Pass the inputs that you would pass to apply().",
        ) from error  # fmt: skip
    if probe.fresh is not None and probe.fresh.first is not None:
        return _once_only(probe, said)
    hint = "Make a plain call work first, or pass other inputs."
    said = f"Plain forward does not run: {said}"
    return replace(probe, fault=Fault(said, Verdict.CRASHES, hint, ("print(outs())",), "forward"))


def _once_only(probe: Probe, said: str) -> Probe:
    said = f"A second call with the same arguments fails: {said}"
    hint = "Keep what changes from call to call in the arguments, or out of forward."
    return replace(probe, fault=Fault(said, Verdict.CRASHES, hint))


def _look(probe: Probe, began: float) -> Probe:
    arguments = probe.inputs
    started = time.process_time()
    probe.run(probe.leaves())
    took, leaves = time.process_time() - started, probe.leaves()
    carrying = replace(probe, outputs=_carrying(probe.run(leaves)))
    # Whether ``.backward()`` works where `torch.autograd.grad` is refused.
    refuses = _fault(carrying) is not None and _fault(replace(carrying, accumulates=True)) is None
    # All have run once. What took long until then compiles, and will for arguments of other kinds.
    patience = max(patience_for(took), _COMPILES * (time.process_time() - began))
    probe = replace(probe, patience=patience)
    probe = replace(probe, frees=any(map(is_freed, leaves)), accumulates=refuses)
    probe = replace(probe, inputs=_widen(probe))
    if not arguments.declared:
        kept = _answered(probe)
        probe = replace(
            probe,
            inputs=probe.inputs.with_differentiable(kept),
            original=arguments.with_differentiable(kept),
        )
    every = probe.run(probe.leaves())
    outputs = tuple(k for k, y in enumerate(every) if y.requires_grad and is_continuous(y))
    probe = replace(probe, outputs=outputs)
    probe = _put_back(replace(probe, fault=_fault(probe), random=_is_random(probe)))
    probe = replace(probe, kin=_kin(probe))
    return replace(probe, rough=_is_rough(probe), grain=_grain(probe))


def _answered(probe: Probe) -> list[int]:
    """The inputs that the backward answers with a gradient; a ``None`` declares a constant.

    Only asked where the caller did not choose by ``requires_grad``. An answer to any way of asking
    counts: all inputs at once, each alone, and laid out otherwise; a ``None`` that comes and
    goes with these declares nothing. Nor is one whose gradient fails however it is asked for, as
    that of another shape does, a constant: it is for the clauses to report.
    """
    every = list(probe.inputs.differentiable)
    found, failed, none = set[int](), set[int](), set[int]()
    points = probe.inputs.points()
    turned = [x.mT.contiguous().mT if x.ndim >= 2 else x.clone() for x in points]
    ways = [(points, set(every)), (turned, set(every)), *((points, {k}) for k in every)]
    for values, wanted in ways:
        leaves = [
            x.detach().clone(memory_format=torch.preserve_format).requires_grad_(k in wanted)
            for k, x in zip(every, values, strict=True)
        ]
        answers = _asked(probe, leaves)
        found |= {k for k in wanted if (answers or {}).get(k) is not None}
        none |= {k for k in wanted if answers is not None and answers.get(k) is None}
        failed |= wanted if answers is None and len(wanted) == 1 else set()
        if len(found) == len(every):
            break
    # A backward that answers for no input at all declares no constants: it has lost its gradient.
    return sorted(found | (failed - none)) or every


def _asked(probe: Probe, leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor | None] | None:
    """What one backward answers for each input; ``None`` where it fails in what nobody foresaw.

    Or where the author's backward answers, and torch takes no such gradient.
    """
    answers: dict[int, torch.Tensor | None] = {}
    try:
        outputs = [y for y in probe.run(leaves) if y.requires_grad and is_continuous(y)]
    except (Exception, SystemExit):  # refused
        return answers
    try:
        found = probe.answers(leaves, probe.cotangents(outputs), outputs)
    except (Exception, SystemExit) as error:
        refuses = classify(error) is Verdict.LACKING and raised(lambda: [*returned(outputs)])
        return answers if refuses else None
    return dict(zip(probe.inputs.differentiable, found, strict=True))


def _settled(probe: Probe) -> Arguments | BaseException:
    """Arguments that the function takes: copies that are no leaves, if it takes none; else why not.

    One that changes an input in place is refused a leaf, by torch and so with a RuntimeError.
    """
    given = probe.inputs
    other = given.with_differentiable(given.differentiable, detached=True)
    error = raised(lambda: probe.run(probe.leaves()))
    if isinstance(error, RuntimeError):
        given, there = other, probe.at(other, same=True)
        error = raised(lambda: there.run(there.leaves()))
    return given if error is None else error


def _widen(probe: Probe) -> Arguments:
    """The arguments in float64, unless the function refuses or computes in less.

    A module among them is of the precision of what it is given.
    """
    arguments = probe.inputs
    wide = arguments.cast(torch.float64)
    # What is orthogonal or adds up to one but for the rounding of float32 is so in float64.
    pairs = zip(arguments.values, wide.values, strict=True)
    restored = [(value, keep(given, value)) for given, value in pairs]
    wide = wide.with_values([value if kept is None else kept for value, kept in restored])
    if _runs(probe.at(wide, same=True), _FINE):
        return wide
    with suppress(Exception):  # a module that cannot be copied
        whole = wide.with_modules(torch.float64)
        if whole is not None and _runs(probe.at(whole, same=True), _FINE):
            return whole
    return arguments  # the precision that it was given is the one to check


def _runs(probe: Probe, least: float = 1.0) -> bool:
    """Whether forward and backward run, and forward computes in no less than some precision."""
    try:
        outputs = probe.run(probe.leaves())
        if any(torch.finfo(y.dtype).eps > least for y in outputs if is_continuous(y)):
            return False
        replace(probe, outputs=_carrying(outputs)).backward(
            probe.inputs.points(), [torch.ones_like(y) for y in outputs if y.requires_grad]
        )
    except (Exception, SystemExit):
        return False
    return True


def _carrying(outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(k for k, y in enumerate(outputs) if y.requires_grad)


def _fault(probe: Probe) -> Fault | None:
    """What plain backward raises, or that it answers with no numbers; ``None`` where it runs."""
    try:
        leaves = probe.leaves()
        outputs = probe.evaluate(leaves)
        gradients = probe.pull(leaves, probe.cotangents(outputs), outputs)
    except (Exception, SystemExit) as error:
        return _not_backward(probe, error)
    for path, gradient in zip(probe.inputs.names(), gradients, strict=True):
        if is_composed(gradient):
            kind = type(gradient).__name__
            return Fault(
                f"The gradient of {path} is a {kind}, which has no numbers of its own.",
                Verdict.LACKING, "Check a function that makes a plain gradient of it.",
            )  # fmt: skip
    return None


def _not_backward(probe: Probe, error: BaseException) -> Fault:
    """The fault of a plain backward that raises."""
    misfits = isinstance(error, (RuntimeError, TypeError, ValueError, IndexError, AttributeError))
    if isinstance(error, SystemExit):
        error = RuntimeError(f"SystemExit: {error}")
    said, op = f"Plain backward does not run: {describe(error)}", probe.subject.operator
    if isinstance(error, NotImplementedError):
        hint = "Write backward, or declare the outputs non-differentiable."
        return Fault(said, Verdict.LACKING, hint, fails="backward")
    if op is not None and registered_rules(op).kind == "none":
        hint = "Register a gradient: torch.library.register_autograd."
        return Fault(said, Verdict.LACKING, hint, fails="backward")
    script = ("print(torch.autograd.grad(outs(), xs, [torch.ones_like(y) for y in outs()], "
              "allow_unused=True))")  # fmt: skip
    hint = "Make loss.backward() work first; then the other clauses can run."
    return Fault(said, Verdict.CRASHES, hint, (script,), "backward", misfits)


def _kin(probe: Probe) -> str:
    """The freest way to move beside the inputs that forward does not refuse.

    A forward that validates its values (a distribution, a rotation) refuses most neighbours.
    """
    points = probe.inputs.points()
    for kind in KINDS:
        trial = replace(probe, kin=kind)
        step = trial.direction("kin")
        moved = [trial.point(2), trial.point(3)]
        for reach in (2.0**-6, -(2.0**-6), 2.0**-20):
            moved.append(trial.moved(points, step, reach))
        with torch.no_grad():  # whatever is raised, the point cannot be tried
            runs = (partial(trial.run, [x.clone() for x in found]) for found in moved)
            if all(raised(run) is None for run in runs):
                return kind
    return "none"


def _is_random(probe: Probe) -> bool:
    """Whether two runs differ when the global generators go on between them."""
    reseed(probe.seed)
    first = probe.run(probe.leaves(), seeded=False)
    second = probe.run(probe.leaves(), seeded=False)
    return not all(same_bits(a, b) for a, b in zip(first, second, strict=False))


def _put_back(probe: Probe) -> Probe:
    """The probe with the function's own generators, where two runs differ by them."""
    place = unwritten(run_filled(probe.answer), probe.answer)
    if place is not None:
        count = len(probe.run(probe.leaves()))
        return replace(probe, erratic=True, unwritten=probe.place(place, count))
    if not _differs(probe):
        return probe
    own = own_generators(probe.subject.target)
    rewound = [replace(given, generators=(*given.generators, *own))
               for given in (probe.inputs, probe.original)]  # fmt: skip
    there = replace(probe, inputs=rewound[0], original=rewound[1], private=True)
    if own and not _differs(there):
        return there
    return replace(probe, erratic=True)


def _differs(probe: Probe) -> bool:
    """Whether a second run with the same seed gives other numbers, beyond rounding."""
    first, second = probe.answer(), probe.answer()
    return len(first) != len(second) or probe.differ(second, first, looser=1e4) is not None


def _is_rough(probe: Probe) -> bool:
    """Whether float64 outputs hold nothing but float32 numbers, at points that do not.

    Nor do constants then: what is chosen of them, a row of a codebook, is not computed at all.
    """
    moving = {*probe.inputs.differentiable, *probe.inputs.owned}
    finer = [
        v if k in moving or not v.is_floating_point() or _is_coarse(v) else v * (1 + 2.0**-30)
        for k, v in enumerate(probe.inputs.values)
    ]
    there = replace(probe, inputs=probe.inputs.with_values(finer))

    def outputs(number: int) -> tuple[Tensors, Tensors]:
        points = there.point(number)
        return points, there.output_values(points)

    return _are_single(probe, outputs)


def _grain(probe: Probe) -> float:
    """The precision of the coarsest gradient, where it is less than its input's; else 0.

    It is that of what backward returns, and float32 where a gradient holds nothing else, although
    its cotangents do.
    """
    if probe.fault is not None:
        return 0.0

    @cache
    def answers(number: int) -> tuple[Tensors, Tensors]:
        points = probe.point(number)
        cotangents = probe.cotangents(probe.output_values(points))
        return cotangents, probe.backward(points, cotangents)

    def one(k: int) -> Callable[[int], tuple[Tensors, Tensors]]:
        return lambda number: (answers(number)[0], [answers(number)[1][k]])

    single = any(_are_single(probe, one(k)) for k in range(len(probe.inputs.differentiable)))
    return max(torch.finfo(torch.float32).eps if single else 0.0, _returned(probe))


def _returned(probe: Probe) -> float:
    """The precision of the coarsest gradient that a backward returns and autograd casts; else 0."""
    found = [0.0]
    with suppress(Exception):  # the clause `form` tells what cannot be asked
        outputs = probe.evaluate(probe.leaves())  # held: a node lives as long as what it made
        for _, _, entry, value in returned(outputs):
            if value is not None:
                eps, own = (torch.finfo(t.dtype).eps for t in (value, entry))
                found.append(eps if eps > own else 0.0)
    return max(found)


def _are_single(probe: Probe, made: Callable[[int], tuple[Tensors, Tensors]]) -> bool:
    """Whether float32 numbers are made of others, at the first point that tells.

    A few bits alone are not what float32 leaves: steps have them, as rounding or a sign. One
    float32 number of some hundred has so few by chance, but not at every point.
    """
    if not probe.outputs:
        return False
    for number in range(2, 6):
        try:
            given, found = made(number)
        except Exception:  # not defined beside the point
            return False
        if all(map(_fits, given)) or not all(map(_fits, found)):
            return False
        if not all(map(_is_coarse, found)):
            return True
    return False


def _fits(tensor: torch.Tensor) -> bool:
    low = torch.complex64 if tensor.is_complex() else torch.float32
    return same_bits(tensor, tensor.to(low).to(tensor.dtype))


def _is_coarse(tensor: torch.Tensor) -> bool:
    """Whether every number has a mantissa of at most sixteen bits."""
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    mantissa = parts.double().frexp().mantissa * 2**16
    return bool((mantissa == mantissa.round()).all())
