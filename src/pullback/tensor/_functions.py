"""What is known of functions of torch: which detach, leave torch, are constant, only describe."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.tensor._operations import (
    ends_in_place,
    is_of_torch,
    tensors_in,
    with_argument,
    written_by,
)

__all__ = [
    "BITS",
    "CONSTANT",
    "DESCRIBING",
    "DETACHING",
    "LEAVING",
    "OVERWRITING",
    "REQUIRES_GRAD",
    "REQUIRING",
    "Done",
    "Retaining",
]

_tensor: Any = torch.Tensor
_aten = torch.ops.aten
DETACHING = {
    _tensor.detach,
    _tensor.detach_,
    torch.detach,
    torch.detach_copy,
    _tensor.data.__get__,
    _aten.detach,
    _aten.detach.default,
    _aten.alias,
    _aten.alias.default,
}
# What hands out values, or the memory that they lie in.
LEAVING = {
    _tensor.numpy: ".numpy()",
    _tensor.__array__: "numpy",
    _tensor.item: ".item()",
    _tensor.tolist: ".tolist()",
    _tensor.__float__: "float()",
    _tensor.__complex__: "complex()",
    _tensor.__repr__: "its text",
    _tensor.__format__: "its text",
    _tensor.data_ptr: ".data_ptr()",
    _tensor.untyped_storage: ".untyped_storage()",
    _tensor.storage: ".storage()",
    _tensor.set_: ".set_()",
    _tensor.__dlpack__: "DLPack",
    _tensor.__reduce_ex__: "pickle",
    _tensor.data.__set__: "an assignment to .data",
}
# Functions of torch known to give a value that does not depend on the values of its arguments, or
# only in steps, so that its derivative is zero wherever there is one.
CONSTANT = {
    "bernoulli", "bernoulli_", "bucketize", "empty_like", "exponential_", "fill_",
    "full_like", "geometric_", "heaviside", "histc", "log_normal_", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "nextafter", "normal_", "ones_like",
    "poisson", "rand_like", "randint_like", "randn_like", "random_", "round", "sign", "trunc",
    "uniform_", "zero_", "zeros_like",
}  # fmt: skip
# Of their second argument they read the shape, or the dtype and device.
LIKE_ANOTHER = {"expand_as", "reshape_as", "to", "type_as", "view_as"}
# What tells of a tensor without reading its values.
DESCRIBING = {
    getattr(_tensor, name).__get__
    for name in (
        "device", "dtype", "grad_fn", "is_cuda", "is_leaf", "itemsize", "layout", "nbytes", "ndim",
        "requires_grad", "shape",
    )
} | {
    _tensor.__hash__, _tensor.dim, _tensor.is_complex, _tensor.is_contiguous,
    _tensor.is_floating_point, _tensor.numel, _tensor.size, _tensor.stride,
}  # fmt: skip
REQUIRES_GRAD = _tensor.requires_grad.__get__
REQUIRING = {_tensor.requires_grad_, _tensor.requires_grad.__set__}
BITS = {"view", "view_dtype", "view_as_real"}
OVERWRITING = {"copy_", "fill_", "resize_", "zero_", "__setitem__"}
# Where each takes retain_graph.
_RETAIN: dict[Any, int] = {
    torch.autograd.grad: 3,
    torch.autograd.backward: 2,
    torch.Tensor.backward: 2,
}


class Done:
    """One call of a function of torch."""

    def __init__(
        self, func: Any, args: Any, kwargs: Any, given: Sequence[torch.Tensor], result: Any
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.given = given
        self.result = result

    def read(self, name: str) -> Sequence[torch.Tensor]:
        """The tensors whose values count."""
        if name == "copy":  # of the first argument nothing is left
            return self.given[1:]
        like = name in LIKE_ANOTHER and is_of_torch(self.func)
        return self.given[:1] if like else self.given

    def written(self, name: str) -> list[torch.Tensor]:
        """The arguments that the function changes."""
        found = self.args[:1] if name == "__setitem__" or ends_in_place(name) else ()
        others = written_by(self.func, self.args, self.kwargs)
        return tensors_in(*found, *others, self.kwargs.get("out"))


class Retaining(TorchFunctionMode):
    """Keeps a graph that forward has made, and backward differentiates, for another backward."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RETAIN:
            args, kwargs = with_argument(args, kwargs, _RETAIN[func], "retain_graph", True)
        return func(*args, **kwargs)
