"""What is known of the functions of torch that a rule calls: what each reads, writes and gives."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pullback.internal.torch import (
    FunctionMode,
    OpOverload,
    OpOverloadPacket,
    is_of_custom_operators,
    is_view,
    pytree,
    schema_of,
)

__all__ = [
    "BITS",
    "CONSTANT",
    "CUTS",
    "DECIDING",
    "DESCRIBING",
    "DETACHING",
    "LEAVING",
    "OVERWRITING",
    "REQUIRES_GRAD",
    "REQUIRING",
    "RESHAPING",
    "Facts",
    "FunctionCall",
    "Retaining",
    "ends_in_place",
    "facts",
    "is_of_torch",
    "is_unknown",
    "name_of",
    "pieces",
    "pure_form",
    "tensors_in",
    "with_argument",
    "writes_into_a_view",
    "written_by",
]

_NO_TREE = frozenset((bool, int, float, str, torch.device, torch.dtype, type(None)))
_AUGMENTED = frozenset(
    f"__i{operator}__"
    for operator in (
        *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
# These change what a tensor is, and none of its values.
_OF_ITSELF = frozenset(
    f"{name}_"
    for name in (
        *("as_strided", "detach", "rename", "squeeze", "swapaxes", "swapdims", "t"),
        *("transpose", "unsqueeze", "resize_as", "resize"),
    )
)


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return name.rsplit(".", maxsplit=1)[0] if isinstance(func, OpOverload) else name


def is_of_torch(func: Any) -> bool:
    """Whether torch itself defines a function; the name of a custom operator says nothing."""
    module = getattr(func, "__module__", None) or getattr(func, "__objclass__", func).__module__
    return module.partition(".")[0] == "torch" and not is_of_custom_operators(module)


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors among arguments or results, most of which are no trees."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) not in _NO_TREE:
            found += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return found


def is_unknown(node: Any) -> bool:
    """Whether a node stands for a derivative that torch does not have."""
    return node.name() in _UNKNOWN


_UNKNOWN = {
    f"torch::autograd::{name}"
    for name in ("NotImplemented", "WarnNotImplemented", "Error", "DelayedError")
}


def with_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with another value for one that stands at a place or has a name."""
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def ends_in_place(name: str) -> bool:
    """Whether torch's way to name a function says that it changes a tensor in place."""
    return name.endswith("_") and not name.endswith("__")


def pure_form(func: Any) -> Any:
    """The function that returns what another one writes into a tensor of the same shape, if any."""
    name = name_of(func)
    if name in _AUGMENTED:
        return getattr(torch.Tensor, name.replace("__i", "__", 1), None)
    if not ends_in_place(name) or name in _OF_ITSELF:
        return None
    pure = getattr(torch.Tensor, name.rstrip("_"), None)
    return pure if callable(pure) else None


def writes_into_a_view(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a function changes a part of a tensor in place."""
    name = name_of(func)
    if name == "__setitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, (int, slice)) for part in index)
    written = name in _AUGMENTED or ends_in_place(name)
    return written and bool(args) and isinstance(args[0], torch.Tensor) and is_view(args[0])


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that a custom operator writes to, by its schema."""
    if isinstance(func, OpOverloadPacket):
        overloads = [getattr(func, name) for name in func.overloads()]
    else:
        overloads = [func] if isinstance(func, OpOverload) else []
    return [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for overload in overloads
        for place, argument in enumerate(schema_of(overload).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
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
# Where each takes whole numbers that say which entries are meant: its place, and its name.
INDEX = {
    **dict.fromkeys(("__getitem__", "__setitem__", "index_put"), (1, "indices")),
    **dict.fromkeys(
        (
            *("gather", "index_select", "index_add", "index_copy", "index_fill"),
            *("scatter", "scatter_add", "scatter_reduce"),
        ),
        (2, "index"),
    ),
    "take": (1, "index"),
    "take_along_dim": (1, "indices"),
    "embedding": (0, "input"),
}
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


class FunctionCall:
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
        if name in LIKE_ANOTHER and is_of_torch(self.func):
            return self.given[:1]
        pure = name.removesuffix("_") if ends_in_place(name) else name
        if pure in INDEX and is_of_torch(self.func):
            place, keyword = INDEX[pure]
            others = (value for key, value in self.kwargs.items() if key != keyword)
            return tensors_in(*self.args[:place], *self.args[place + 1 :], *others)
        return self.given

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


# The functions that cut a tensor, by where they take the dimension.
_CUT: dict[Any, int] = {
    function: 2
    for name in ("chunk", "split", "split_with_sizes", "tensor_split")
    for function in (getattr(torch, name), getattr(_tensor, name))
}
_UNBIND: dict[Any, int] = {torch.unbind: 1, _tensor.unbind: 1, _tensor.__iter__: 1}
# All of them.
CUTS = frozenset((*_CUT, *_UNBIND))


def pieces(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """What such a function returns."""
    place = _CUT.get(func, _UNBIND.get(func, 0))
    dim = args[place] if len(args) > place else kwargs.get("dim", 0)
    if func in _UNBIND:
        return tuple(args[0].select(dim, i) for i in range(args[0].shape[dim]))
    sizes = [piece.shape[dim] for piece in func(*args, **kwargs)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(args[0].narrow(dim, *piece) for piece in zip(starts, sizes, strict=True))
