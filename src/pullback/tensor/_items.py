"""What one context holds for all items of a batch that run one after the other."""

from collections.abc import Iterable, Mapping
from typing import Any

from pullback.errors import UnsupportedError
from pullback.tensor._places import same

__all__ = ["record", "refuse_altered", "refuse_another"]


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
