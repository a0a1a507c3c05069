"""What comes into being while rules run a second time: told by its storage, below torch functions.

A kernel that torch does not look into returns a tensor that no function of torch made. It looks
like a constant that existed before, but its memory was taken meanwhile, and torch was asked for it.
"""

from typing import Any

import torch

from pullback.internal.torch import TorchDispatchMode, schema_of, storage_of

__all__ = ["Born"]


class Born(TorchDispatchMode):
    """Collects the storages that torch makes while it is active.

    Attributes:
        storages: one number for each. One that existed before keeps its own meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if all(each.alias_info is None for each in schema_of(func).returns):
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    self.storages.add(storage_of(tensor))
        return result
