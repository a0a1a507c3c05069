"""What a Function changes in place: counted by torch, refused where it is not declared."""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import pytree, version_of
from pullback.tensor._definition import Definition
from pullback.tensor._places import same
from pullback.tensor._structure import Template, unflatten

__all__ = ["refuse_mutation", "refuse_written"]


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


def refuse_written(
    definition: Definition,
    template: Template,
    tensors: Sequence[torch.Tensor],
    values: tuple[Any, ...],
) -> None:
    """Refuse a list or dict that forward has changed where it was given a copy.

    Arguments:
        definition: the Function.
        template: the structure of its arguments.
        tensors: their tensors.
        values: what forward was given, as it has left it.

    Raises:
        UnsupportedError: nobody would see the change.
    """
    if template[1] is not None and not same(values, unflatten(template, tensors)):
        raise UnsupportedError(
            f"The forward of {definition.name} changes a list or dict among its arguments, of "
            "which it has a copy below a transform or where autocast casts: nobody would see it.",
            mend="Keep it on an object that is no container, or return what is new.",
        )
