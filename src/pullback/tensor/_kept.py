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
from pullback.internal.torch import version_of
from pullback.tensor._definition import Definition

__all__ = ["Kept", "aside", "forget", "reclaim"]

# A place among the saved tensors, or a reference and the version of the tensor then.
Kept = list[int | tuple[Any, int]]


def aside(
    definition: Definition,
    tensors: Sequence[torch.Tensor],
    saved: Sequence[Any] | None,
    *,
    refused: bool = False,
    weak: bool = False,
) -> Kept:
    """Where each input is among the saved tensors; the others are kept aside.

    Where a second derivative is ``refused`` anyway, a later change is no error.
    """
    known = saved or ()
    kept: Kept = []
    for tensor in tensors:
        for place, other in enumerate(known):
            if other is tensor:
                kept.append(place)
                break
        else:
            version = -1 if refused else version_of(tensor)
            strong = not weak and definition.keep_inputs
            kept.append((tensor if strong else TensorWeakRef(tensor), version))
    return kept


def forget(kept: Kept) -> None:
    """Let inputs go that were kept aside, as backward lets saved tensors go."""
    for place, entry in enumerate(kept):
        if isinstance(entry, tuple) and isinstance(entry[0], torch.Tensor):
            kept[place] = (TensorWeakRef(entry[0]), entry[1])


def reclaim(definition: Definition, kept: Kept, saved: Sequence[Any]) -> dict[int, torch.Tensor]:
    """All inputs, by their place.

    Raises:
        UnsupportedError: one of them is gone, or was changed.
    """
    found = {}
    for place, entry in enumerate(kept):
        if isinstance(entry, int):
            found[place] = saved[entry]
            continue
        reference, version = entry
        tensor = reference if isinstance(reference, torch.Tensor) else reference()
        if tensor is None:
            raise UnsupportedError(
                f"A gradient of {definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one that it did not save is gone.",
                given=f"input tensor {place}",
                mend="Keep a reference to the input, or declare keep_inputs = True: "
                "complete(F, keep_inputs=True).",
            )
        if version >= 0 and version_of(tensor) != version:
            raise UnsupportedError(
                f"A gradient of {definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one was changed in place since.",
                given=f"input tensor {place}",
                mend="Change a copy, or compute the gradient before.",
            )
        found[place] = tensor
    return found
