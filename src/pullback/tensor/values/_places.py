"""`Places`: where the tensors that forward saved come from.

A saved tensor is an input, an output or a residual, and is kept as its place among them, so that
each level of nested transforms can fill in its own tensor. Places stand for tensors also inside
the lists, tuples and dicts that an author sets on the context. Whatever is kept elsewhere stays
where it is: it serves first order, and no derivative relies on it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import FakeTensor, FunctionalTensor, forward_level, pytree
from pullback.tensor.values._levels import same_view
from pullback.tensor.values._structure import is_data, is_plain, may_hold

__all__ = [
    "Place",
    "Places",
    "are_plain",
    "fill",
    "refuse_layouts",
    "refuse_values",
    "same",
    "views_of",
]

# Where a saved tensor is among the tensors of a call. One that forward computed with gradients
# switched on has a graph of its own, which the engine could not return: it is kept as it is.
Place = int | torch.Tensor | None


class _Slot:
    """Stands in an attribute of the context for the tensor at a place."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class Places:
    """The tensors of a call while forward runs: where a saved tensor comes from."""

    __slots__ = ("_inputs", "_known", "residuals", "used")

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self.residuals: list[torch.Tensor] = []
        self.used: set[int] = set()
        # An input that is returned counts as the input, so inputs come first.
        self._known = [*inputs, *outputs]
        self._inputs = len(inputs)

    def place(self, tensor: torch.Tensor | None) -> Place:
        if tensor is None:
            return None
        for place, known in enumerate(self._known):
            if known is tensor:
                self.used.add(place)
                return place
        if tensor.requires_grad:
            return tensor
        place = self._new(tensor)
        self.used.add(place)
        return place

    def _new(self, tensor: torch.Tensor) -> int:
        for i in range(self._inputs):
            if same_view(tensor, self._known[i]):
                return i
        # A new object: the engine returns it, and autograd writes on what is returned.
        residual = tensor.detach()
        if residual.layout is torch.strided and 0 in residual.stride() and residual.numel() > 1:
            residual = residual.contiguous()  # forward mode writes a tangent of the same layout
        self.residuals.append(residual)
        self._known.append(tensor)
        return len(self._known) - 1

    def kept(self) -> list[torch.Tensor]:
        """The tensors that forward kept beside its inputs and outputs, as it made them."""
        return self._known[len(self._known) - len(self.residuals) :]

    def strip(self, value: Any) -> Any:
        """Replace the tensors in an attribute by their places."""
        if isinstance(value, torch.Tensor):
            # What else hangs on it would be lost; on one without values hangs what torch traces by.
            if vars(value) and not isinstance(value, (FakeTensor, FunctionalTensor)):
                return value
            place = self.place(value)
            return _Slot(place) if isinstance(place, int) else place
        if not may_hold(value):
            return value
        leaves, spec = pytree.tree_flatten(value)
        stripped = [self.strip(leaf) for leaf in leaves]
        if all(new is old for new, old in zip(stripped, leaves, strict=True)):
            return value
        return pytree.tree_unflatten(stripped, spec)

    def strip_each(self, attributes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those attributes that hold no tensors, and the others with places instead."""
        plain: dict[str, Any] = {}
        slots: dict[str, Any] = {}
        for name, value in attributes.items():
            stripped = self.strip(value)
            (plain if stripped is value else slots)[name] = stripped
        return plain, slots

    def dirty_place(self, tensor: torch.Tensor, name: str) -> int:
        """Where an input that was changed in place is; it is not saved for that."""
        for place, known in enumerate(self._known[: self._inputs]):
            if known is tensor:
                return place
        raise DefinitionError(
            f"The forward of {name} marks a tensor as dirty that is not an input.",
            expected="ctx.mark_dirty names inputs that forward changed in place and returns",
        )


def refuse_layouts(name: str, residuals: Sequence[torch.Tensor]) -> None:
    """Refuse sparse residuals where torch cannot carry them; compiled, it may end the process."""
    for residual in residuals:
        coordinates = residual.layout is torch.sparse_coo and forward_level() < 0
        if residual.layout is not torch.strided and not coordinates:
            raise UnsupportedError(
                f"{name} keeps a sparse tensor for backward, which torch carries through no "
                "forward mode and, but for coordinates, no other transform or compiled code.",
                given=str(residual.layout),
                mend="Save its values and its indices.",
            )


def are_plain(value: Any, given: Sequence[Any]) -> bool:
    """Whether what `Places.strip` left has inputs, outputs and plain values in it, and no more."""
    leaves = pytree.tree_leaves(value)
    return all(isinstance(leaf, _Slot) or is_plain(leaf, given) for leaf in leaves)


def fill(value: Any, saved: dict[int, Any]) -> Any:
    """Put the tensors of one level into what `Places.strip` left."""
    if isinstance(value, _Slot):
        return saved[value.place]
    return pytree.tree_map(
        lambda leaf: saved[leaf.place] if isinstance(leaf, _Slot) else leaf, value
    )


def same(one: Any, other: Any) -> bool:
    """Whether what two runs kept is the same: the same places, and equal data."""
    ones, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    return spec == other_spec and all(map(_same_leaf, ones, others))


def _same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, _Slot) and isinstance(other, _Slot):
        return one.place == other.place
    return one is other or (type(one) is type(other) and is_data(one) and one == other)


def views_of(outputs: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs, as torch wants them: an input that is returned is a view of it.

    So is an output that is returned twice: torch would send all cotangents to the last place.
    """
    every = {*map(id, inputs), *map(id, outputs)}
    if len(every) == len(inputs) + len(outputs):
        return outputs
    given = set(map(id, inputs))
    views = []
    for tensor in outputs:
        views.append(tensor.view_as(tensor) if id(tensor) in given else tensor)
        given.add(id(tensor))
    return views


def refuse_values(call: Any, attributes: dict[str, Any], why: str, purpose: str) -> None:
    """Refuse values on a context that forward may have computed outside of torch.

    Whole numbers and flags change in steps. What has a digit may spell a number.
    """
    for name, value in attributes.items():
        if not (isinstance(value, torch.Tensor) or is_plain(value, call.plain_arguments)):
            raise UnsupportedError(
                f"{purpose} of {call.definition.name} cannot be derived: {why}, and keeps a value "
                "on the context.",
                given=f"ctx.{name}",
                mend="Compute it in torch operations, or pass it as an argument.",
            )
