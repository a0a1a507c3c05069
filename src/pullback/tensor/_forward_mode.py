"""Forward mode, derived from a backward that is linear in the cotangent.

A backward computes ``J' w`` for a cotangent ``w``. It is linear in ``w``, so it is its own
derivative, and transposing it gives ``J v``: with ``b(w) = J' w``, the vector-Jacobian product of
``b`` with a tangent ``v`` is ``J v``. It is the transpose of the rule *as written*, which is what
a surrogate gradient asks for too. The linearity is checked where values are at hand, by
``<w, J v> = <b(w), v>``.

Source: Radul et al., "You Only Linearize Once" (2022), read in the other direction; the double
transposition is J. Townsend, "A new trick for calculating Jacobian vector products" (2017).
"""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import set_forward_mode
from pullback.tensor._autocast import scope
from pullback.tensor._call import Call, Meta
from pullback.tensor._levels import concrete, out_of_place, primal, vjp
from pullback.tensor._residuals import push_residuals
from pullback.tensor._retrace import Retrace
from pullback.tensor._structure import children, match, unflatten, without_values

__all__ = ["push"]

Tangents = Sequence[torch.Tensor | None]

_MEND = "Write jvp(ctx, *tangents), or write backward in torch operations."


def push(call: Call, saved: dict[int, Any], tangents: Tangents) -> tuple[Any, ...]:
    """The tangents of the outputs and of the residuals for tangents of the inputs."""
    if call.dirty:
        raise UnsupportedError(
            f"Forward mode of {call.definition.name} is refused: it changes an input in place.",
            mend="Compute out of place where a tangent is wanted.",
        )
    # torch runs jvp with forward gradients switched off, which makes nested forward mode
    # silently zero. They are on here, so this level's own tangents are taken off first.
    with set_forward_mode(True):
        primals = {
            place: None if tensor is None else primal(tensor) for place, tensor in saved.items()
        }
        with torch.set_grad_enabled(call.grad_enabled), scope(call.autocast):
            if call.definition.jvp is not None:
                outputs = _push_by_rule(call, primals, tangents)
            else:
                outputs = _push_by_transposing(call, primals, tangents)
            return (*outputs, *push_residuals(call, primals, tangents))


def _push_by_rule(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[Any]:
    """Run the author's jvp."""
    definition = call.definition
    given = [
        _zeros(meta) if tangent is None and call.materialize else tangent
        for tangent, meta in zip(tangents, call.inputs, strict=True)
    ]
    needs = [tangent is not None for tangent in tangents]
    context = call.context(saved, needs, forward_mode=True)
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


def _push_by_transposing(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[Any]:
    """Transpose the author's backward."""
    definition = call.definition
    if definition.gradient == "nonlinear":
        raise UnsupportedError(
            f"Forward mode of {definition.name} is refused: its backward is declared nonlinear, "
            "so it has no transpose.",
            mend="Write jvp(ctx, *tangents).",
        )
    live = [i for i, tangent in enumerate(tangents) if tangent is not None]
    outputs = [i for i in range(call.count) if i not in call.non_differentiable]
    result: list[Any] = [None] * call.count
    if not live or not outputs:
        return result
    needs = [i in live for i in range(len(tangents))]

    def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        every: list[torch.Tensor | None] = [None] * call.count
        for i, cotangent in zip(outputs, cotangents, strict=True):
            every[i] = cotangent
        with Retrace(definition.name, "Forward mode", _MEND, cotangents) as retrace:
            gradients = call.pull(saved, every, needs, transposing=True)
        return tuple(_fit(gradients[i], call.inputs[i], retrace) for i in live)

    probes = [_probe(call.outputs[i]) for i in outputs]
    given = tuple(tangents[i] for i in live)

    def transpose(wrap: Any) -> tuple[Any, Any]:
        pulled, transposed = vjp(wrap(pull), *probes)
        return pulled, transposed(given)

    gradients, pushed = out_of_place(transpose)
    _confirm(definition.name, probes, pushed, gradients, given)
    if definition.gradient is None:  # nothing is declared: look from another side too
        opposite = [-probe for probe in probes]
        _confirm(definition.name, opposite, pushed, pull(*opposite), given)
    for i, tangent in zip(outputs, pushed, strict=True):
        result[i] = tangent
    return result


def _zeros(meta: Meta) -> torch.Tensor | None:
    shape, dtype, device = meta
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    return torch.zeros(shape, dtype=dtype, device=device)


def _probe(meta: Meta) -> torch.Tensor:
    """A fixed cotangent with large and small entries and no symmetry.

    The linear map is transposed at this point; one that is not linear shows itself there.
    """
    shape, dtype, device = meta
    wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    count = torch.arange(shape.numel(), device=device, dtype=wide)
    return (torch.cos(count + 1) * 10.0 ** (2 - count % 5)).reshape(shape).to(dtype)


def _fit(
    gradient: torch.Tensor | None,
    meta: Meta,
    retrace: Retrace,
) -> torch.Tensor:
    """Give a gradient the shape and dtype of its input, as autograd does."""
    shape, dtype, device = meta
    if gradient is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    if retrace.hides(gradient):
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
) -> None:
    """Check ``<w, J v> = <b(w), v>``, which holds if and only if backward is linear here."""
    left, left_scale = _inner(probes, pushed)
    right, right_scale = _inner(gradients, tangents)
    difference, scale = concrete(left - right), concrete(left_scale + right_scale)
    if difference is None or scale is None or difference.shape != scale.shape:
        return
    dtypes = [tensor.dtype for tensor in (*pushed, *gradients)]
    tolerance = 256 * max(torch.finfo(dtype).eps for dtype in dtypes)
    if (difference.abs() > tolerance * scale).any():
        raise UnsupportedError(
            f"Forward mode of {name} cannot be derived: its backward is not linear in the "
            "cotangent, or autograd sees only a part of it.",
            given=f"<w, Jv> and <J'w, v> differ by {difference.abs().max():.3g}",
            mend="Write jvp(ctx, *tangents); declare gradient = 'nonlinear' if that is meant.",
        )


def _inner(first: Sequence[Any], second: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    total, scale = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for a, b in zip(first, second, strict=True):
        product = (torch.conj(a.detach()) * b.detach()).real.to(torch.float64)
        total = total.to(product.device) + product.sum()
        scale = scale.to(product.device) + product.abs().sum()
    return total, scale
