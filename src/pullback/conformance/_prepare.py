"""Look at a subject once before the clauses run: precision, what is differentiated, randomness."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._failure import describe
from pullback.conformance._guard import guarded, reseed
from pullback.conformance._probe import Probe, same_bits
from pullback.conformance._subject import Subject
from pullback.errors import ArgumentError

__all__ = ["prepare"]


def prepare(subject: Subject, arguments: Arguments, seed: int) -> Probe:
    """Make the probe the clauses share.

    Arguments:
        subject: what is checked.
        arguments: its inputs as they were given.
        seed: the seed of every random choice.

    Returns:
        A probe in float64 where the function computes in float64, with the inputs and outputs
        that are differentiated; the intent is not yet inferred.

    Raises:
        ArgumentError: the function cannot be called with these inputs.
    """
    if not subject.structured:
        flat = [k for k in arguments.differentiable if not arguments.nested(k)]
        arguments = arguments.with_differentiable(flat)
    with guarded():
        arguments = _settle(subject, arguments, seed)
        probe = Probe(subject, _widen(subject, arguments, seed), arguments, seed=seed)
        if not arguments.declared:
            kept = _answered(probe)
            probe = replace(
                probe,
                inputs=probe.inputs.with_differentiable(kept),
                original=arguments.with_differentiable(kept),
            )
        every = probe.run(probe.leaves())
        outputs = tuple(k for k, y in enumerate(every) if y.requires_grad and is_continuous(y))
        probe = replace(probe, outputs=outputs, random=_is_random(probe))
        return replace(probe, rough=_is_rough(probe))


def _settle(subject: Subject, arguments: Arguments, seed: int) -> Arguments:
    """Arguments the function takes: copies that are not leaves if it changes one in place."""
    try:
        Probe(subject, arguments, arguments, seed=seed).run(_leaves(arguments))
    except RuntimeError as error:
        if "leaf" not in str(error) or "place" not in str(error):
            raise _misfit(subject, error) from error
        arguments = arguments.with_differentiable(arguments.differentiable, detached=True)
        try:
            Probe(subject, arguments, arguments, seed=seed).run(_leaves(arguments))
        except (Exception, SystemExit) as again:
            raise _misfit(subject, again) from again
    except (Exception, SystemExit) as error:
        raise _misfit(subject, error) from error
    return arguments


def _misfit(subject: Subject, error: BaseException) -> ArgumentError:
    return ArgumentError(
        f"{subject.name} cannot be called with these inputs.",
        given=describe(error),
        expected="inputs that the function accepts",
        mend="Pass the inputs that you would pass to apply().",
    )


def _leaves(arguments: Arguments) -> list[torch.Tensor]:
    return [point.clone().requires_grad_() for point in arguments.points()]


def _widen(subject: Subject, arguments: Arguments, seed: int) -> Arguments:
    """The arguments in float64, unless the function refuses or computes in less."""
    wide = arguments.cast(torch.float64)
    try:
        outputs = Probe(subject, wide, wide, seed=seed).run(_leaves(wide))
        floating = [y for y in outputs if is_continuous(y)]
        if any(torch.finfo(y.dtype).eps > torch.finfo(torch.float64).eps for y in floating):
            return arguments
        Probe(subject, wide, wide, seed=seed, outputs=_carrying(outputs)).backward(
            wide.points(), [torch.ones_like(y) for y in outputs if y.requires_grad]
        )
    except (
        Exception,
        SystemExit,
    ):  # any refusal: then the precision it was given is the one to check
        return arguments
    return wide


def _carrying(outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(k for k, y in enumerate(outputs) if y.requires_grad)


def _answered(probe: Probe) -> list[int]:
    """The inputs that the backward answers with a gradient; a ``None`` declares a constant.

    Only asked where the caller did not choose by ``requires_grad``.
    """
    leaves = probe.leaves()
    outputs = [y for y in probe.run(leaves) if y.requires_grad and is_continuous(y)]
    if not outputs or not leaves:
        return list(probe.inputs.differentiable)
    try:
        gradients = torch.autograd.grad(
            outputs, leaves, probe.cotangents(outputs), allow_unused=True
        )
    except (Exception, SystemExit):  # a backward that fails is for the clauses to report
        return list(probe.inputs.differentiable)
    pairs = zip(probe.inputs.differentiable, gradients, strict=True)
    kept = [k for k, gradient in pairs if gradient is not None]
    # A backward that answers for no input at all declares no constants: it has lost its gradient.
    return kept or list(probe.inputs.differentiable)


def _is_random(probe: Probe) -> bool:
    """Whether two runs differ when the global generators go on between them."""
    reseed(probe.seed)
    first = probe.run(probe.leaves(), seeded=False)
    second = probe.run(probe.leaves(), seeded=False)
    return not all(same_bits(a, b) for a, b in zip(first, second, strict=False))


def _is_rough(probe: Probe) -> bool:
    """Whether float64 outputs hold nothing but float32 numbers, at a point that does not."""
    points = probe.point(2)
    if not probe.outputs or all(_fits(x) for x in points):
        return False
    try:
        outputs = probe.evaluate(probe.leaves(points))
    except Exception:  # not defined beside the point
        return False
    found = [y.detach() for y in outputs]
    # A few bits alone are not what float32 leaves: steps have them, as rounding or a sign.
    return all(_fits(y) for y in found) and not all(_is_coarse(y) for y in found)


def _fits(tensor: torch.Tensor) -> bool:
    low = torch.complex64 if tensor.is_complex() else torch.float32
    return same_bits(tensor, tensor.to(low).to(tensor.dtype))


def _is_coarse(tensor: torch.Tensor) -> bool:
    """Whether every number has a mantissa of at most sixteen bits."""
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    mantissa = parts.double().frexp().mantissa * 2**16
    return bool((mantissa == mantissa.round()).all())
