"""The author's own pair, forward and then backward, run again where autograd sees it.

    P(x, g) = backward(forward(x), g)

Forward is run on a fresh context, and backward reads that context: whatever forward keeps, in
whatever object, reaches backward with its history, or was refused on the way
(`pullback.tensor._retrace`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.tensor._autocast import scope
from pullback.tensor._call import Call
from pullback.tensor._context import Context
from pullback.tensor._habits import complete_inner
from pullback.tensor._preserve import preserved
from pullback.tensor._random import replaying
from pullback.tensor._retrace import MEND, Retrace
from pullback.tensor._structure import flatten

__all__ = ["forward_again", "gradient_again"]

Tensors = Sequence[torch.Tensor | None]


def gradient_again(
    call: Call, purpose: str, inputs: Sequence[torch.Tensor], cotangents: Tensors, needs: Any
) -> list[torch.Tensor | None]:
    """Run forward and backward on tracked inputs and cotangents."""
    flags: dict[int, bool] = {}
    name = call.definition.name
    retrace = Retrace(name, purpose, MEND, (*inputs, *cotangents), flags)
    with preserved(call.definition), complete_inner(), retrace as mode:
        context, outputs = forward_again(call, inputs, mode)
        given = fill_in(call, cotangents, outputs)
        Context.declared(context).needs = needs
        gradients = call.backward(call.definition.transposable, context, given)
        mode.confirm(gradients, "what backward returns")
        return gradients


def forward_again(
    call: Call, inputs: Sequence[torch.Tensor], mode: Retrace
) -> tuple[Context, list[torch.Tensor]]:
    """Run forward on copies of the inputs; returns its context and its outputs."""
    # Copies, since forward may change them in place.
    copies = [tensor.clone() for tensor in inputs]
    mode.flags.update(zip(map(id, copies), call.needs, strict=True))
    mode.kept = copies
    with replaying(call.generators), scope(call.autocast):
        context, output = call.forward(copies)
    single = not isinstance(output, tuple) or hasattr(output, "_fields")
    _, outputs = flatten((output,) if single else output)
    flowing = any(call.needs)
    mode.flags.update((id(t), flowing) for t in outputs if id(t) not in mode.flags)
    mode.kept = [*copies, *outputs]
    return context, outputs


def fill_in(call: Call, cotangents: Tensors, outputs: Sequence[torch.Tensor]) -> Tensors:
    """Put zeros where a cotangent is undefined, if the author wants them."""
    if not call.materialize:
        return cotangents
    return [
        torch.zeros_like(output)
        if cotangent is None and (output.is_floating_point() or output.is_complex())
        else cotangent
        for cotangent, output in zip(cotangents, outputs, strict=True)
    ]
