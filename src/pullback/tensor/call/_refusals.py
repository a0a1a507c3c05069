"""What a forward may not do, refused by name.

- Change an argument in place that is not declared: torch counts the changes.
- Where items of a batch run one after the other, keep another value for each: one context serves
  them all.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import pytree, version_of
from pullback.tensor.call._definition import Definition
from pullback.tensor.values._places import same
from pullback.tensor.values._structure import Template, unflatten

__all__ = ["record", "refuse_altered", "refuse_another", "refuse_mutation", "refuse_written"]


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


def record(call: Any) -> dict[str, Any]:
    """What one context has to hold for all items of a batch."""
    return {
        **_on_ctx(call.attributes or {}),
        **_on_ctx(call.slots),
        "the tensors that it saves": (call.saved_for_backward, call.saved_for_forward),
        "what it declares": (
            call.materialize,
            call.dirty,
            call.non_differentiable,
            call.output_grad_dtypes,
        ),
        "the structure of its output": (call.single, call.result[0], repr(call.result[1])),
    }


def refuse_another(call: Any, before: dict[str, Any]) -> None:
    """Refuse another value on the context for each item: one context serves them all."""
    after = record(call)
    _refuse_difference(call, before, after, before.keys() | after.keys())


def refuse_altered(call: Any, context: Any) -> None:
    """Refuse a context on which forward puts another value when it runs again for an item.

    As ``id(x)``, under which it keeps something elsewhere: what is there is of another item.
    """
    before = _on_ctx(call.attributes or {})
    _refuse_difference(call, before, _on_ctx(context.__dict__), before)


def _on_ctx(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a context, by what an author writes for them."""
    return {f"ctx.{name}": value for name, value in values.items()}


def _refuse_difference(
    call: Any, before: dict[str, Any], after: dict[str, Any], names: Iterable[str]
) -> None:
    for name in names:
        if not same(before.get(name), after.get(name)):
            raise UnsupportedError(
                f"{call.definition.name} batches item by item, and keeps another value on its "
                "context for each item.",
                given=name,
                mend="Keep a tensor, or apply it to each item, without vmap.",
            )
