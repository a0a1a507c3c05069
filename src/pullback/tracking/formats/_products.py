"""The products of a model: which functions they are, and which of their arguments are factors."""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pullback.internal.torch import fused_function

__all__ = ["FACTORS", "REFUSED", "count_factors", "is_product", "is_single", "replace_factors"]

# For each function: the positions and names of the tensors that are multiplied.
_TWO: tuple[tuple[int, str], ...] = ((0, "input"), (1, "weight"))
_PAIR: tuple[tuple[int, str], ...] = ((0, "input"), (1, "other"))
_QUERY: tuple[tuple[int, str], ...] = ((0, "query"), (1, "key"), (2, "value"))


def _pair(second: str, first: str = "input") -> tuple[tuple[int, str], ...]:
    return ((0, first), (1, second))


_ADDED = ((1, "mat1"), (2, "mat2"))
_ADDED_VECTOR = ((1, "mat"), (2, "vec"))
_ADDED_OUTER = ((1, "vec1"), (2, "vec2"))
_ADDED_BATCH = ((1, "batch1"), (2, "batch2"))

FACTORS: dict[Callable[..., Any], tuple[tuple[int, str], ...]] = {
    functional.linear: _TWO,
    functional.bilinear: ((0, "input1"), (1, "input2"), (2, "weight")),
    functional.scaled_dot_product_attention: _QUERY,
    torch.matmul: _PAIR,
    Tensor.matmul: _PAIR,
    Tensor.__matmul__: _PAIR,
    Tensor.__rmatmul__: _PAIR,
    torch.mm: _pair("mat2"),
    Tensor.mm: _pair("mat2"),
    torch.bmm: _pair("mat2"),
    Tensor.bmm: _pair("mat2"),
    torch.mv: _pair("vec"),
    Tensor.mv: _pair("vec"),
    torch.dot: _pair("tensor"),
    Tensor.dot: _pair("tensor"),
    torch.vdot: _pair("other"),
    Tensor.vdot: _pair("other"),
    torch.inner: _PAIR,
    Tensor.inner: _PAIR,
    torch.outer: _pair("vec2"),
    Tensor.outer: _pair("vec2"),
    torch.ger: _pair("vec2"),
    Tensor.ger: _pair("vec2"),
    torch.kron: _PAIR,
    Tensor.kron: _PAIR,
    torch.linalg.matmul: _PAIR,
    torch.linalg.vecdot: _pair("y", "x"),
    torch.addmm: _ADDED,
    Tensor.addmm: _ADDED,
    Tensor.addmm_: _ADDED,
    torch.addmv: _ADDED_VECTOR,
    Tensor.addmv: _ADDED_VECTOR,
    Tensor.addmv_: _ADDED_VECTOR,
    torch.addr: _ADDED_OUTER,
    Tensor.addr: _ADDED_OUTER,
    Tensor.addr_: _ADDED_OUTER,
    torch.baddbmm: _ADDED_BATCH,
    Tensor.baddbmm: _ADDED_BATCH,
    Tensor.baddbmm_: _ADDED_BATCH,
    torch.addbmm: _ADDED_BATCH,
    Tensor.addbmm: _ADDED_BATCH,
    Tensor.addbmm_: _ADDED_BATCH,
    torch.chain_matmul: (),
    torch.linalg.multi_dot: (),
    torch.convolution: _TWO,
    functional.conv1d: _TWO,
    functional.conv2d: _TWO,
    functional.conv3d: _TWO,
    functional.conv_transpose1d: _TWO,
    functional.conv_transpose2d: _TWO,
    functional.conv_transpose3d: _TWO,
    torch.einsum: (),
    torch.tensordot: ((0, "a"), (1, "b")),
}
"""The products that are simulated. Empty: every tensor among the arguments is a factor."""

# One function each for a whole layer, whose products cannot be reached from outside.
REFUSED: dict[Callable[..., Any], str] = {
    fused_function(name): name
    for name in (
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    )
}
for _name in ("outer", "ger", "kron", "linalg_vecdot"):  # torch writes them as sums, out of sight
    _packet = getattr(torch.ops.aten, _name)
    REFUSED |= {_packet: f"ops.aten.{_name}", _packet.default: f"ops.aten.{_name}"}
REFUSED |= {
    torch.matrix_power: "matrix_power",
    Tensor.matrix_power: "matrix_power",
    torch.linalg.matrix_power: "matrix_power",
    torch.sparse.mm: "sparse.mm",
    torch.sparse.addmm: "sparse.addmm",
    torch.sspaddmm: "sspaddmm",
    Tensor.sspaddmm: "sspaddmm",
    torch.hspmm: "hspmm",
    torch.smm: "smm",
    Tensor.smm: "smm",
    torch.sparse.sampled_addmm: "sparse.sampled_addmm",
    torch.cdist: "cdist",
    torch.conv_tbc: "conv_tbc",
    torch.matrix_exp: "matrix_exp",
    torch.linalg.matrix_exp: "matrix_exp",
    Tensor.matrix_exp: "matrix_exp",
}
"""Functions that multiply out of reach, by name."""

_KERNEL = re.compile(
    r"""
    (^|_) (  # of the words that a name is made of
        (add|addb|b|badd|baddb|s|hsp|sspadd)? mm
        | addmv | mv | addr | dot | vdot | vecdot | inner | outer | ger | kron | matmul | trilinear
        | bilinear | tensordot | linear | conv | convolution | conv\dd | attention | encoder_layer
        | multi_dot | einsum | rnn | lstm | gru | rnn_relu | rnn_tanh
        | cdist | euclidean_dist | matrix_exp | affine_grid_generator | ormqr | orgqr
        | householder_product
    ) (_|$)
    """,
    re.VERBOSE,
)
_NO_PRODUCT = re.compile(
    r"(^|_)(upsample|weight_norm|flatten|reorder|pack|prepack|quantize_|backward)"
)
# Of torch, of whoever records what it does, and of this package: none of them multiplies.
_OWN = {"prim", "prims", "profiler", "c10d", "c10d_functional", "_c10d_functional", "debugprims"}
_OWN |= {"pullback", "pullback_tracking", "pullback_unit_scaling", "rngprims"}


@functools.cache
def is_product(operator: Any) -> bool:
    """Whether what reached torch's kernels multiplies, or may: other people's operators may."""
    name = operator.overloadpacket.__name__
    space = operator.namespace
    if space in {"aten", "torchvision"}:
        return _KERNEL.search(name) is not None and _NO_PRODUCT.search(name) is None
    return space not in _OWN


def is_single(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has one operand alone, as einsum that transposes or sums: no product."""

    def count(value: Any) -> int:
        if isinstance(value, list | tuple):
            return sum(map(count, value))
        return isinstance(value, Tensor)

    return not FACTORS[function] and count((args, tuple(kwargs.values()))) == 1


def count_factors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """How many factors a call of a product has, an added term counted as none."""
    wanted = FACTORS[function]
    if wanted:
        return len(wanted)
    found = []
    replace_factors(function, args, kwargs, lambda tensor, _: found.append(tensor) or tensor)
    return len(found) if len(found) < 3 else 4  # between the products there is no rounding


def replace_factors(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    replace: Callable[[Tensor, str], Tensor],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a product with its factors replaced.

    ``replace`` is given each floating or complex factor, and its name as an argument.
    """

    def visit(value: Any, name: str = "") -> Any:
        if isinstance(value, Tensor):
            wanted = value.is_floating_point() or value.is_complex()
            return replace(value, name) if wanted else value
        if isinstance(value, list | tuple):
            return type(value)(visit(item) for item in value)
        return value

    wanted = FACTORS[function]
    if not wanted:
        return tuple(visit(value) for value in args), kwargs
    places = dict(wanted)
    names = set(places.values())
    return (
        tuple(
            visit(value, places[place]) if place in places else value
            for place, value in enumerate(args)
        ),
        {name: visit(value, name) if name in names else value for name, value in kwargs.items()},
    )
