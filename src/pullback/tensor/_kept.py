"""Inputs that the author did not save, kept for a second derivative alone.

The second derivative runs forward again, so it needs every input. What the author saved is saved;
the other inputs are kept aside with their version, by a strong or a weak reference as the Function
declares (``keep_inputs``). First order never looks at them: it costs no memory that the author did
not ask for where the reference is weak, and an input that is changed in place afterwards is no
error until a second derivative is asked for.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from pullback.errors import UnsupportedError
from pullback.tensor._call import Call

__all__ = ["keep", "kept"]

Kept = list[tuple[int, Any, int]]


def keep(call: Call, tensors: Sequence[torch.Tensor]) -> Kept:
    """Keep the inputs that are not saved already."""
    strong = call.definition.keep_inputs
    known = call.needed
    return [
        (i, tensor if strong else TensorWeakRef(tensor), tensor._version)
        for i, tensor in enumerate(tensors)
        if i not in known and i not in call.dirty
    ]


def kept(call: Call, aside: Kept, saved: dict[int, Any]) -> dict[int, Any]:
    """The saved tensors and the inputs that were kept aside.

    Raises:
        UnsupportedError: one of them is gone, or was changed.
    """
    found = dict(saved)
    for place, reference, version in aside:
        tensor = reference if isinstance(reference, torch.Tensor) else reference()
        if tensor is None:
            raise UnsupportedError(
                f"A gradient of {call.definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one that it did not save is gone.",
                given=f"input tensor {place}",
                mend="Keep a reference to the input, or declare keep_inputs = True: "
                "complete(F, keep_inputs=True).",
            )
        if tensor._version != version:
            raise UnsupportedError(
                f"A gradient of {call.definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one was changed in place since.",
                given=f"input tensor {place}",
                mend="Change a copy, or compute the gradient before.",
            )
        found[place] = tensor
    return found
