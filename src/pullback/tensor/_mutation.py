"""What a Function changes in place: counted by torch, refused where it is not declared."""

from collections.abc import Sequence

import torch

from pullback.errors import DefinitionError
from pullback.internal.torch import pytree
from pullback.tensor._definition import Definition
from pullback.tensor._structure import Template, unflatten

__all__ = ["refuse_mutation", "version_of", "versions_of"]


def version_of(tensor: torch.Tensor | None) -> int:
    """How often a tensor was changed in place; -1 where there is none, and in inference mode."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    """How often each tensor was changed in place."""
    return [version_of(tensor) for tensor in tensors]


def refuse_mutation(
    definition: Definition,
    template: Template,
    tensors: Sequence[torch.Tensor],
    versions: list[int],
    dirty: Sequence[torch.Tensor],
) -> None:
    """Refuse a change of an input in place that is not declared.

    Arguments:
        definition: the Function.
        template: the structure of its arguments.
        tensors: their tensors.
        versions: how often each had been changed before forward ran.
        dirty: those that forward has marked.

    Raises:
        DefinitionError: forward changed another one.
    """
    allowed = set(map(id, dirty))
    values = unflatten(template, tensors)
    for position in definition.mutates:
        if position < len(values):
            allowed.update(id(leaf) for leaf in pytree.tree_leaves(values[position]))
    for index, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
        if version_of(tensor) != version and id(tensor) not in allowed:
            raise DefinitionError(
                f"The forward of {definition.name} changes an input in place and does not "
                "declare it.",
                given=f"input tensor {index} of shape {tuple(tensor.shape)}",
                mend="Compute out of place, call ctx.mark_dirty and return the input, or "
                "name a buffer in the class attribute mutates.",
            )
