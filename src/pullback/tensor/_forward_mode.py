"""Forward mode, derived from a backward that is linear in the cotangent.

A backward computes ``J' w`` for a cotangent ``w``. It is linear in ``w``, so it is its own
derivative, and transposing it gives ``J v``: with ``b(w) = J' w``, the vector-Jacobian product of
``b`` with a tangent ``v`` is ``J v``. It is the transpose of the rule *as written*, which is what
a surrogate gradient asks for too. The linearity is checked where values are at hand, by
``<w, J v> = <b(w), v>``.

Source: Radul et al., "You Only Linearize Once" (2022), read in the other direction; the double
transposition is J. Townsend, "A new trick for calculating Jacobian vector products" (2017).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import set_forward_mode
from pullback.tensor._audit import compare_tangent, is_auditing
from pullback.tensor._autocast import scope
from pullback.tensor._call import Call, Meta, zeros
from pullback.tensor._compare import length
from pullback.tensor._context import Context
from pullback.tensor._derived import Derivation, derive
from pullback.tensor._leniency import complete_inner
from pullback.tensor._levels import concrete, is_freed, out_of_place, primal, vjp
from pullback.tensor._pair import fill_in, forward_again, gradient_again
from pullback.tensor._preserve import preserved
from pullback.tensor._retrace import MEND, Retrace, named
from pullback.tensor._rounding import coarsest, smallest
from pullback.tensor._structure import children, match, unflatten, without_values

__all__ = ["push"]

Tangents = Sequence[torch.Tensor | None]
_PURPOSE = "Forward mode"
_MEND = "Write jvp(ctx, *tangents), or write backward in torch operations."


def push(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[torch.Tensor | None]:
    """The tangents of the outputs for tangents of the inputs, as a node of their own."""
    if call.dirty:
        return _push_in_place(call, saved, tangents)
    if call.definition.jvp is None and call.definition.gradient == "nonlinear":
        raise UnsupportedError(
            f"Forward mode of {call.definition.name} is refused: its backward is declared "
            "nonlinear, so it has no transpose.",
            mend="Write jvp(ctx, *tangents).",
        )
    flowing = [i for i in range(call.count) if i not in call.non_differentiable]
    if not flowing or all(tangent is None for tangent in tangents):
        return [None] * call.count
    if any(map(is_freed, saved.values())):
        raise UnsupportedError(
            f"Forward mode of {call.definition.name} is refused: forward frees the memory of an "
            "input.",
            mend="Write jvp(ctx, *tangents), or keep the memory.",
        )
    with set_forward_mode(True), torch.set_grad_enabled(call.grad_enabled):
        primals = {place: primal(tensor) for place, tensor in saved.items()}
        return _derive(call, primals, tangents)


def _derive(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[Any]:
    count = len(call.inputs)
    definition = call.definition
    live = [i for i, tangent in enumerate(tangents) if tangent is not None]
    kept = [place for place in saved if place >= count]
    rule = _push_by_transposing if definition.jvp is None else _push_by_rule

    def compute(sources: Any, state: Any) -> list[Any]:
        strict = definition.jvp is not None or not compare_tangent(
            call, again, _pulling(live), sources
        )
        inside = dict(enumerate(sources[:count])) | dict(zip(kept, state, strict=True))
        given = _spread(sources[count:], live, count)
        with scope(call.autocast):
            return rule(call, inside, given, strict=strict)

    def again(call: Call, sources: Any) -> list[Any]:
        given = _spread(sources[count:], live, count)
        return _again(call, sources, given)

    sources = [*(saved[i] for i in range(count)), *(tangents[i] for i in live)]
    refusal = call.once_refusal if definition.once else None
    derivation = Derivation(call, "The derivative of a tangent", compute, again, refusal)
    return derive(derivation, sources, [saved[place] for place in kept])


def _pulling(live: Sequence[int]) -> Callable[..., list[Any]]:
    def pull(call: Call, sources: Any, cotangents: Any) -> list[Any]:
        """The author's pair at some cotangents: the gradients of the inputs with a tangent."""
        count = len(call.inputs)
        needs = [i in live for i in range(count)]
        given = fill_in(call, cotangents, [zeros(meta) for meta in call.outputs])
        gradients = gradient_again(call, _PURPOSE, sources[:count], given, needs)
        retrace = Retrace(call.definition.name, _PURPOSE, _MEND)
        return [_fit(gradients[i], call.inputs[i], retrace) for i in live]

    return pull


def _spread(tensors: Tangents, places: Sequence[int], count: int) -> list[Any]:
    spread: list[Any] = [None] * count
    for place, tensor in zip(places, tensors, strict=True):
        spread[place] = tensor
    return spread


def _again(call: Call, sources: Any, tangents: Tangents) -> list[Any]:
    """The tangents by running forward again, where autograd sees all of it."""
    definition = call.definition
    flags: dict[int, bool] = {}
    inputs = sources[: len(call.inputs)]
    purpose, through = "The derivative of a tangent", call.follows == "operations"
    retrace = Retrace(definition.name, purpose, MEND, sources, flags, through=through)
    with preserved(definition), complete_inner(), scope(call.autocast):
        context, _ = forward_again(call, inputs, retrace)
        needs = [tangent is not None for tangent in tangents]
        Context.declared(context).needs = needs
        if definition.jvp is not None:
            with retrace:
                return _tangents(call, context, tangents)

        def pull(every: Tangents, mode: Retrace) -> list[torch.Tensor | None]:
            mode.flags = flags
            with retrace if retrace.level else mode:
                return call.backward(definition.transposable, context, every)

        return _transpose(call, pull, tangents, strict=False, confirm=False)


def _push_by_rule(
    call: Call, saved: dict[int, Any], tangents: Tangents, *, strict: bool = True
) -> list[Any]:
    """Run the author's jvp."""
    needs = [tangent is not None for tangent in tangents]
    return _tangents(call, call.context(saved, needs, forward_mode=True), tangents)


def _push_in_place(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[Any]:
    if call.definition.jvp is None:
        raise UnsupportedError(
            f"Forward mode of {call.definition.name} is refused: it changes an input in place.",
            mend="Compute out of place where a tangent is wanted, or write jvp(ctx, *tangents).",
        )
    with torch.set_grad_enabled(call.grad_enabled), scope(call.autocast):
        return _push_by_rule(call, saved, tangents)


def _tangents(call: Call, context: Context, tangents: Tangents) -> list[Any]:
    definition = call.definition
    given = [
        zeros(meta) if tangent is None and call.materialize else tangent
        for tangent, meta in zip(tangents, call.inputs, strict=True)
    ]
    arguments = unflatten(without_values(call.template, None), given)
    result = definition.jvp(context, *arguments)  # type: ignore[misc]
    entries = (result,) if call.single or not isinstance(result, tuple) else result
    holes, spec = call.result
    if len(entries) != len(holes if spec is None else children(spec)):
        raise DefinitionError(
            f"The jvp of {definition.name} returned a wrong number of tangents.",
            given=f"{len(entries)}",
            expected="one for each output of forward",
        )
    outputs = match(call.result, entries, _complain(definition.name))
    for i, tangent in enumerate(outputs):
        if i in call.non_differentiable:
            outputs[i] = None
        elif tangent is None:
            raise DefinitionError(
                f"The jvp of {definition.name} returned None for output {i}, which torch would "
                "take for a zero tangent.",
                mend="Return zeros, or mark the output as non-differentiable.",
            )
    return outputs


def _complain(name: str) -> Any:
    def complain(index: int, detail: str) -> DefinitionError:
        return DefinitionError(
            f"The jvp of {name} returned a tangent of another structure than output {index}.",
            given=detail,
        )

    return complain


def _push_by_transposing(
    call: Call, saved: dict[int, Any], tangents: Tangents, *, strict: bool
) -> list[Any]:
    """Transpose the author's backward, with what forward kept."""
    needs = [tangent is not None for tangent in tangents]
    name = call.definition.name
    flags = {id(saved[i]): need for i, need in enumerate(call.needs) if i in saved}

    def pull(every: Tangents, mode: Retrace) -> list[torch.Tensor | None]:
        mode.flags = flags
        with complete_inner(), mode:
            return call.pull(saved, every, needs, transposing=True)

    with named(name, _PURPOSE, _MEND):
        return _transpose(call, pull, tangents, strict=strict)


def _transpose(
    call: Call,
    backward: Callable[..., Any],
    tangents: Tangents,
    *,
    strict: bool,
    confirm: bool = True,
) -> list[Any]:
    name = call.definition.name
    live = [i for i, tangent in enumerate(tangents) if tangent is not None]
    outputs = [i for i in range(call.count) if i not in call.non_differentiable]
    result: list[Any] = [None] * call.count
    met: set[torch.dtype] = set()

    def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        every: list[torch.Tensor | None] = [None] * call.count
        for i, cotangent in zip(outputs, cotangents, strict=True):
            every[i] = cotangent
        retrace = Retrace(name, _PURPOSE, _MEND, cotangents, strict=strict)
        gradients = retrace.confirm(backward(every, retrace), "what backward returns")
        met.update(retrace.dtypes)
        return tuple(_fit(gradients[i], call.inputs[i], retrace) for i in live)

    probes = [_probe(call.outputs[i]) for i in outputs]
    given = tuple(_as(tangents[i], call.inputs[i]) for i in live)

    def transpose(wrap: Any) -> tuple[Any, Any]:
        pulled, transposed = vjp(wrap(pull), *probes)
        return pulled, transposed(given)

    gradients, pushed = out_of_place(transpose)
    if confirm:
        seen = _confirm(name, probes, pushed, gradients, given, met=met)
        if call.definition.gradient is None:  # nothing is declared: look from another side too
            opposite = [_probe(call.outputs[i], -1.0) for i in outputs]
            _confirm(name, opposite, pushed, pull(*opposite), given, met=met)
            if strict and not seen and is_auditing():
                raise UnsupportedError(
                    f"Forward mode of {name} cannot be derived while it is traced: nothing shows "
                    "that its backward is linear in the cotangent, and it could not be audited.",
                    mend="Declare its gradient: complete(F, gradient='exact') or 'surrogate'.",
                )
    for i, tangent in zip(outputs, pushed, strict=True):
        result[i] = tangent
    return result


def _as(tangent: Any, meta: Meta) -> torch.Tensor:
    return tangent if tangent.dtype is meta[1] else tangent.to(meta[1])


def _probe(meta: Meta, sign: float = 1.0) -> torch.Tensor:
    """A fixed cotangent with large and small entries and no symmetry.

    The linear map is transposed at this point; one that is not linear shows itself there.
    """
    shape, dtype, device = meta
    wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    count = torch.arange(shape.numel(), device=device, dtype=wide)
    return (sign * torch.cos(count + 1) * 10.0 ** (2 - count % 5)).reshape(shape).to(dtype)


def _fit(gradient: torch.Tensor | None, meta: Meta, retrace: Retrace) -> torch.Tensor:
    """Give a gradient the shape and dtype of its input, as autograd does."""
    shape, dtype, device = meta
    if gradient is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    if retrace.level and not retrace.tracks(gradient):
        plain = concrete(gradient)
        if plain is None or bool(plain.any()):
            raise retrace.refuse("backward computes a gradient where autograd cannot see it")
    if gradient.shape != shape:
        gradient = gradient.sum_to_size(shape) if gradient.dim() >= len(shape) else gradient
        gradient = gradient.expand(shape)
    if gradient.dtype is not dtype:
        gradient = gradient.real if not dtype.is_complex and gradient.is_complex() else gradient
        gradient = gradient.to(dtype)
    return gradient


def _confirm(
    name: str,
    probes: Sequence[torch.Tensor],
    pushed: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    tangents: Sequence[Any],
    *,
    met: Iterable[torch.dtype],
) -> bool:
    """Check ``<w, J v> = <b(w), v>``, which holds if and only if backward is linear here.

    To the precision of the coarsest dtype that backward met on its way: relative to what is
    multiplied, and beside it what any factor may lose where numbers are subnormal.

    False where there are no values to look at.
    """
    if any(concrete(tensor) is None for tensor in (*pushed, *gradients)):
        return False
    left, left_scale = _inner(probes, pushed)
    right, right_scale = _inner(gradients, tangents)
    dtypes = [*met, *(tensor.dtype for tensor in (*pushed, *gradients))]
    floor = 8 * smallest(dtypes) * (_size(probes) + _size(tangents))
    allowed = min(256 * coarsest(dtypes), 0.1) * (left_scale + right_scale) + floor
    difference, bound = concrete(left - right), concrete(allowed)
    if difference is None or bound is None or difference.shape != bound.shape:
        return False
    if (difference.abs() > bound).any():
        raise UnsupportedError(
            f"Forward mode of {name} cannot be derived: its backward is not linear in the "
            "cotangent, or autograd sees only a part of it.",
            given=f"<w, Jv> and <J'w, v> differ by {difference.abs().max():.3g}",
            mend="Write jvp(ctx, *tangents); declare gradient = 'nonlinear' if that is meant.",
        )
    return True


def _size(tensors: Sequence[Any]) -> torch.Tensor:
    """The sum of all magnitudes."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        size = tensor.detach().abs().sum(dtype=torch.float64)
        total = total.to(size.device) + size
    return total


def _inner(first: Sequence[Any], second: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The inner product, and the product of the lengths, which bounds what may cancel in it."""
    total = torch.zeros((), dtype=torch.float64)
    for a, b in zip(first, second, strict=True):
        product = (torch.conj(a.detach()) * b.detach()).real.to(torch.float64)
        total = total.to(product.device) + product.sum()
    return total, length(first) * length(second).to(total.device)
