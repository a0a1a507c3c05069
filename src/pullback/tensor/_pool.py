"""`Pool`: where the tensors that forward saved come from.

A saved tensor is an input, an output or a residual, and is kept as its place among them, so that
each level of nested transforms can fill in its own tensor. Places stand for tensors also inside
what an author sets on the context: lists, tuples, dicts, and objects that hold tensors.
"""

import copy
import types
from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError
from pullback.internal.torch import pytree
from pullback.tensor._levels import same_view
from pullback.tensor._structure import is_data

__all__ = ["Place", "Pool", "fill"]

# Where a saved tensor is in the pool. A tensor that forward computed with gradients switched on
# has a graph of its own, which the engine could not return: it is kept as it is.
Place = int | torch.Tensor | None

# How deep objects on the context are searched for tensors.
_DEPTH = 4


class _Slot:
    """Stands in an attribute of the context for the tensor at a place of the pool."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class _Copy:
    """Stands for an object that holds tensors: a shallow copy with other fields."""

    __slots__ = ("fields", "original")

    def __init__(self, original: Any, fields: dict[str, Any]) -> None:
        self.original = original
        self.fields = fields


class Pool:
    """The tensors of a call while forward runs: where a saved tensor comes from."""

    __slots__ = (
        "_inputs",
        "_known",
        "_search",
        "own_graph",
        "residual_saves",
        "residuals",
        "saves",
        "used",
    )

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        search_objects: bool,
    ) -> None:
        self._search = search_objects
        self.own_graph = False  # forward has saved tensors with a graph that it made itself
        self.residuals: list[torch.Tensor] = []
        self.residual_saves: list[int] = []
        self.saves: list[torch.Tensor] = []
        self.used: set[int] = set()
        # An input that is returned counts as the input, so inputs come first.
        self._known = [*inputs, *outputs]
        self._inputs = len(inputs)

    def place(self, tensor: torch.Tensor | None) -> Place:
        if tensor is None:
            return None
        self.saves.append(tensor)
        for place, known in enumerate(self._known):
            if known is tensor:
                self.used.add(place)
                return place
        if tensor.requires_grad:
            self.own_graph |= not isinstance(tensor, torch.nn.Parameter)
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
        if 0 in residual.stride() and residual.numel() > 1:
            residual = residual.contiguous()  # forward mode writes a tangent of the same layout
        self.residuals.append(residual)
        self.residual_saves.append(len(self.saves) - 1)
        self._known.append(tensor)
        return len(self._known) - 1

    def strip(self, value: Any, depth: int = 0) -> Any:
        """Replace the tensors in an attribute by their places."""
        if isinstance(value, torch.Tensor):
            place = self.place(value)
            return _Slot(place) if isinstance(place, int) else place
        if is_data(value):
            return value
        if isinstance(value, (list, tuple, dict)):
            leaves, spec = pytree.tree_flatten(value)
            stripped = [self.strip(leaf, depth) for leaf in leaves]
            if all(new is old for new, old in zip(stripped, leaves, strict=True)):
                return value
            return pytree.tree_unflatten(stripped, spec)
        if self._search and depth < _DEPTH and _has_fields(value):
            # Below transforms an object would bring in tensors of another level.
            fields = {name: self.strip(old, depth + 1) for name, old in vars(value).items()}
            changed = {name: new for name, new in fields.items() if new is not vars(value)[name]}
            return _Copy(value, changed) if changed else value
        return value

    def input_place(self, tensor: torch.Tensor, name: str) -> int:
        place = self.place(tensor)
        if not isinstance(place, int) or place >= self._inputs:
            raise DefinitionError(
                f"The forward of {name} marks a tensor as dirty that is not an input.",
                expected="ctx.mark_dirty names inputs that forward changed in place and returns",
            )
        return place


def fill(value: Any, saved: dict[int, Any]) -> Any:
    """Put the tensors of one level into what `Pool.strip` left."""
    if isinstance(value, _Slot):
        return saved[value.place]
    if isinstance(value, _Copy):
        filled = copy.copy(value.original)
        for name, field in value.fields.items():
            object.__setattr__(filled, name, fill(field, saved))
        return filled
    if isinstance(value, (list, tuple, dict)) and any(
        isinstance(leaf, (_Slot, _Copy)) for leaf in pytree.tree_leaves(value)
    ):
        return pytree.tree_map(lambda leaf: fill(leaf, saved), value)
    return value


def _has_fields(value: Any) -> bool:
    opaque = (type, types.FunctionType, types.MethodType, types.ModuleType, torch.nn.Module)
    return not isinstance(value, opaque) and hasattr(value, "__dict__")
