"""The derivative of residuals: forward run again, where autograd can see it.

A residual is computed by forward and saved without being an output. Second order needs its
derivative, and the author has written none. torch takes a residual for a constant and answers
with a silently wrong number; here forward runs again on the saved inputs, when and only when
the derivative is asked for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.tensor._autocast import scope
from pullback.tensor._call import Call
from pullback.tensor._levels import concrete, out_of_place, vjp
from pullback.tensor._refusal import guard
from pullback.tensor._retrace import Retrace

__all__ = ["pull_residuals", "pull_seen_through", "push_residuals"]

_MEND = (
    "Compute the residual with torch operations, or return it as a further output, or declare "
    "backward once_differentiable."
)


def pull_residuals(
    call: Call,
    saved: dict[int, Any],
    cotangents: Sequence[torch.Tensor | None],
    needs: Sequence[bool],
) -> list[torch.Tensor | None]:
    """The gradients of the inputs for cotangents of the residuals, ``None`` where unneeded."""
    live = [i for i in _differentiable_inputs(call) if needs[i]]
    wanted = [i for i in call.differentiable_residuals if cotangents[i] is not None]
    gradients: list[torch.Tensor | None] = [None] * len(call.inputs)
    if not live or not wanted:
        return gradients
    rerun = _rerun(call, saved, live, wanted)
    given = tuple(cotangents[k] for k in wanted)

    def pull(wrap: Any) -> tuple[torch.Tensor, ...]:
        return vjp(wrap(rerun), *(saved[i] for i in live))[1](given)

    for i, gradient in zip(live, out_of_place(pull), strict=True):
        gradients[i] = gradient
    return gradients


def pull_seen_through(
    call: Call,
    saved: dict[int, Any],
    cotangents: Sequence[torch.Tensor | None],
    needs: Sequence[bool],
) -> list[torch.Tensor | None]:
    """Run a third-party backward so that its own derivative is right, or refused when it is used.

    Its author may have declared `once_differentiable` or written ``.data``; the derivative of
    what it computes exists all the same, as far as autograd can see it.
    """
    name = call.definition.name
    sources = [*cotangents, *saved.values()]
    with Retrace(name, "The second derivative", _MEND, sources) as retrace:
        try:
            gradients = call.pull(saved, cotangents, needs, transposing=True)
        except UnsupportedError as error:
            reason = error
        else:
            hidden = [g is not None and retrace.hides(g) for g in gradients]
            if not any(hidden):
                return gradients
            reason = retrace.refuse("backward computes a gradient where autograd cannot see it")
    with torch.no_grad():
        gradients = call.pull(saved, cotangents, needs)
    return guard(gradients, sources, reason)


def push_residuals(
    call: Call, saved: dict[int, Any], tangents: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The tangents of the residuals; ``None`` for those that are not differentiable."""
    wanted = call.differentiable_residuals
    pushed: list[torch.Tensor | None] = [None] * len(call.residuals)
    live = [i for i in _differentiable_inputs(call) if tangents[i] is not None]
    if not wanted or not live or call.definition.once:
        return pushed
    rerun = _rerun(call, saved, live, wanted)
    given = tuple(tangents[i] for i in live)

    # Reverse mode twice: torch.func.jvp inside a jvp cannot be traced by torch.compile.
    def push(wrap: Any) -> tuple[torch.Tensor, ...]:
        values, pull = vjp(wrap(rerun), *(saved[i] for i in live))
        _, transpose = vjp(pull, tuple(torch.zeros_like(value) for value in values))
        return transpose(given)[0]

    results = out_of_place(push)
    for k, tangent in zip(wanted, results, strict=True):
        pushed[k] = tangent
    return pushed


def _differentiable_inputs(call: Call) -> list[int]:
    return [
        i
        for i, (_, dtype, _) in enumerate(call.inputs)
        if dtype.is_floating_point or dtype.is_complex
    ]


def _rerun(
    call: Call, saved: dict[int, Any], live: Sequence[int], wanted: Sequence[int]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Forward as a function of its live inputs that returns the wanted residuals."""
    name = call.definition.name
    if call.dirty:
        raise UnsupportedError(
            f"The second derivative of {name} needs the input that it has changed in place.",
            mend="Compute out of place, or save clones of what backward needs.",
        )
    offset = len(call.inputs) + call.count

    def rerun(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [saved[i] for i in range(len(call.inputs))]
        for i, tensor in zip(live, given, strict=True):
            inputs[i] = tensor
        twin = call.again()
        saves: list[torch.Tensor] = []
        with Retrace(name, "The second derivative", _MEND, given) as retrace:
            with scope(call.autocast):
                twin.run_forward([tensor.view_as(tensor) for tensor in inputs], saves)
            if len(saves) != call.saves:
                raise retrace.refuse("forward did not save the same tensors when it ran again")
            residuals = [saves[call.residual_saves[k]] for k in wanted]
        for k, residual in zip(wanted, residuals, strict=True):
            if retrace.written_outside_torch(residual):
                raise retrace.refuse("a residual is written by code outside torch")
            if residual.requires_grad:
                _compare(residual, saved.get(offset + k), retrace)
        return tuple(residuals)

    return rerun


def _compare(again: torch.Tensor, before: torch.Tensor | None, retrace: Retrace) -> None:
    """Refuse a residual whose value is not the one that forward saved."""
    if before is None:
        return
    first, second = concrete(again), concrete(before)
    if first is None or second is None or first.shape != second.shape:
        return
    scale = max(float(second.abs().max()), 1.0) if second.numel() else 1.0
    tolerance = 64 * torch.finfo(second.dtype).eps * scale
    if not torch.allclose(first, second, rtol=0, atol=tolerance, equal_nan=True):
        raise retrace.refuse("forward gave other values when it ran again")
