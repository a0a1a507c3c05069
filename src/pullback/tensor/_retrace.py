"""Run code written for no-grad mode so that autograd sees through it.

The forward and the backward of a Function run without gradients, and their authors write
``no_grad``, ``.detach()`` and ``.data`` freely: these change no value. To differentiate a
residual, or to transpose a backward, the same code runs again with each of them ignored. What
autograd cannot see through (a trip to numpy, a kernel that writes into an empty tensor) is
refused by name, since its derivative would silently be zero.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.errors import UnsupportedError
from pullback.internal.torch import is_functorch_wrapped_tensor, pytree, set_grad_mode
from pullback.tensor._levels import concrete, requires_grad_somewhere

__all__ = ["Retrace"]

# By id, with a weak reference that tells whether the id still names the same tensor.
_Tensors = dict[int, weakref.ref[torch.Tensor]]

_tensor: Any = torch.Tensor
_GRAD_MODE = {set_grad_mode}
_DETACHING = {_tensor.detach, torch.detach, _tensor.detach_, _tensor.data.__get__}
_UNINITIALISED = {torch.empty, torch.empty_like, torch.empty_strided, _tensor.new_empty}
_OPAQUE = {
    _tensor.numpy: ".numpy()",
    _tensor.__array__: "numpy",
    _tensor.item: ".item()",
    _tensor.tolist: ".tolist()",
    _tensor.__float__: "float()",
    _tensor.__complex__: "complex()",
    _tensor.data_ptr: ".data_ptr()",
}


class Retrace(TorchFunctionMode):
    """While active, gradients flow through all torch code, or the code is refused.

    Arguments:
        name: the name of the Function, for the message.
        purpose: what the code is run again for, for the message.
        mend: how the author can mend a refusal.
        sources: the tensors that results are expected to depend on.
    """

    def __init__(
        self,
        name: str,
        purpose: str,
        mend: str,
        sources: Sequence[torch.Tensor | None] = (),
    ) -> None:
        super().__init__()
        self.name = name
        self.purpose = purpose
        self.mend = mend
        self._uninitialised: _Tensors = {}
        self._derived: _Tensors = {id(s): weakref.ref(s) for s in sources if s is not None}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _GRAD_MODE:
            return None
        if func in _DETACHING:
            return args[0]
        if func in _OPAQUE and _tracked(args[0]):
            raise self.refuse(f"it leaves torch through {_OPAQUE[func]}")
        result = func(*args, **(kwargs or {}))
        if func in _UNINITIALISED:
            self._uninitialised[id(result)] = weakref.ref(result)
        elif args and id(args[0]) in self._uninitialised and _writes(func):
            del self._uninitialised[id(args[0])]
        self._follow(args, kwargs, result)
        return result

    def _follow(self, args: Any, kwargs: Any, result: Any) -> None:
        if any(id(leaf) in self._derived for leaf in pytree.tree_leaves((args, kwargs))):
            written = args[:1] if result is None else (result, *args[:1])
            for leaf in pytree.tree_leaves(written):
                if isinstance(leaf, torch.Tensor):
                    self._derived[id(leaf)] = weakref.ref(leaf)

    def written_outside_torch(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor was made empty and no torch operation wrote to it since."""
        reference = self._uninitialised.get(id(tensor))
        return reference is not None and reference() is tensor and tensor.numel() > 0

    def hides(self, result: torch.Tensor) -> bool:
        """Whether a result is cut off from the sources, though it is not zero."""
        if self.written_outside_torch(result):
            return True
        if id(result) in self._derived or requires_grad_somewhere(result):
            return False
        plain = concrete(result)
        return plain is not None and bool(plain.any())

    def refuse(self, why: str) -> UnsupportedError:
        """Make the error that names what cannot be seen through."""
        return UnsupportedError(
            f"{self.purpose} of {self.name} cannot be derived: {why}.", mend=self.mend
        )


def _tracked(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or is_functorch_wrapped_tensor(tensor)


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
