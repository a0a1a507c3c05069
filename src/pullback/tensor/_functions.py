"""What is known of functions of torch: which detach, leave torch, are constant, only describe."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pullback.internal.torch import FunctionMode, OpOverload, OpOverloadPacket
from pullback.tensor._operations import (
    ends_in_place,
    is_of_torch,
    name_of,
    tensors_in,
    with_argument,
    written_by,
)

__all__ = [
    "BITS",
    "CONSTANT",
    "DECIDING",
    "DESCRIBING",
    "DETACHING",
    "LEAVING",
    "OVERWRITING",
    "REQUIRES_GRAD",
    "REQUIRING",
    "RESHAPING",
    "Done",
    "Facts",
    "Retaining",
    "facts",
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
# What makes a decision of Python of a value, which a trace does not have.
DECIDING = {
    _tensor.__bool__: "bool()",
    _tensor.__int__: "int()",
    _tensor.__index__: "an index",
    _tensor.__contains__: "in",
    _tensor.is_nonzero: ".is_nonzero()",
    torch.is_nonzero: "is_nonzero()",
    _tensor.equal: ".equal()",
    torch.equal: "equal()",
    _tensor.allclose: ".allclose()",
    torch.allclose: "allclose()",
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
    _tensor.is_floating_point, _tensor.is_inference, _tensor.numel, _tensor.size, _tensor.stride,
}  # fmt: skip
REQUIRES_GRAD = _tensor.requires_grad.__get__
REQUIRING = {_tensor.requires_grad_, _tensor.requires_grad.__set__}
BITS = {"view", "view_dtype", "view_as_real"}
OVERWRITING = {"copy_", "fill_", "resize_", "zero_", "__setitem__"}
# These change the shape of the very tensor that they are given, and none of its values.
RESHAPING = {"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"}
# Where each takes retain_graph.
_RETAIN: dict[Any, int] = {
    torch.autograd.grad: 3,
    torch.autograd.backward: 2,
    torch.Tensor.backward: 2,
}


class Facts(NamedTuple):
    """What is known of a function of torch by itself.

    Attributes:
        name: without its module.
        changes: its name says that it changes its first argument.
        constant: its result has no derivative.
        custom: it is an operator that is not torch's own, or one by its overload.
    """

    name: str
    changes: bool
    constant: bool
    custom: bool


@functools.cache
def facts(func: Any) -> Facts:
    """What is known of a function of torch by itself."""
    name = name_of(func)
    constant = name in CONSTANT and is_of_torch(func)
    changes = name == "__setitem__" or ends_in_place(name)
    return Facts(name, changes, constant, isinstance(func, (OpOverload, OpOverloadPacket)))


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
        changes = name == "__setitem__" or ends_in_place(name)
        custom = facts(self.func).custom
        if not (changes or custom or self.kwargs):
            return []
        others = written_by(self.func, self.args, self.kwargs) if custom else ()
        return tensors_in(*self.args[: int(changes)], *others, self.kwargs.get("out"))


class Retaining(FunctionMode):
    """Keeps a graph that forward has made, and backward differentiates, for another backward."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RETAIN:
            args, kwargs = with_argument(args, kwargs, _RETAIN[func], "retain_graph", True)
        return func(*args, **kwargs)
