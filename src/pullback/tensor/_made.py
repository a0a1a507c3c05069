"""What a forward that is not differentiated computes of its inputs, and what is constant in it."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.tensor._call import differentiable
from pullback.tensor._operations import is_of_torch, name_of, tensors_in
from pullback.tensor._retrace import LEAVING

__all__ = ["Made"]


class Made(TorchFunctionMode):
    """Watches torch functions while it is active.

    Attributes:
        tensors: the floating tensors that were made of floating tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self._constants: dict[int, torch.Tensor] = {}  # by id, kept so that the ids stay theirs
        self._left = False

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether torch functions made a tensor of no other tensor, and all is known of that.

        Where anything leaves torch, a number that comes back may have been computed of an input.
        """
        return not self._left and id(tensor) in self._constants

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = tensors_in(*args, *(kwargs or {}).values()), tensors_in(result)
        known = set(map(id, given))
        if any(differentiable(leaf.dtype) for leaf in given):
            fresh = (leaf for leaf in made if id(leaf) not in known)
            self.tensors += [leaf for leaf in fresh if differentiable(leaf.dtype)]
        if all(leaf in self._constants for leaf in known):
            self._constants.update((id(leaf), leaf) for leaf in made)
            return result
        name = name_of(func)
        foreign = not (name.endswith("__get__") or is_of_torch(func))
        self._left = self._left or func in LEAVING or foreign
        written = [args[0]] if name == "__setitem__" else [*made, (kwargs or {}).get("out")]
        if any(id(leaf) in self._constants for leaf in written):
            self._constants.clear()  # it may be a view of any of them
        return result
