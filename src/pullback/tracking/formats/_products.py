"""The products of a model: which functions they are, what they multiply, and what are weights.

A product whose factors are scaled along a dimension is run as one of matrices (`multiply_by`).
"""

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    base_of,
    fused_function,
    innermost,
    parameters_of,
    storage_of,
)
from pullback.tracking._outputs import is_floating

__all__ = [
    "FACTORS",
    "REFUSED",
    "Weights",
    "count_factors",
    "is_product",
    "multiply_by",
    "replace_factors",
]

Multiply = Callable[..., Tensor]
Factors = tuple[tuple[int, str], ...]
"""The positions and names of the tensors that a function multiplies."""


def _pair(second: str, first: str = "input", at: int = 0) -> Factors:
    return ((at, first), (at + 1, second))


_METHODS: dict[str, Factors] = {
    **dict.fromkeys(("matmul", "vdot", "inner", "kron"), _pair("other")),
    **dict.fromkeys(("mm", "bmm"), _pair("mat2")),
    **dict.fromkeys(("outer", "ger"), _pair("vec2")),
    "mv": _pair("vec"),
    "dot": _pair("tensor"),
}
_SUMS: dict[str, Factors] = {  # what they add to the product comes first
    "addmm": _pair("mat2", "mat1", at=1),
    "addmv": _pair("vec", "mat", at=1),
    "addr": _pair("vec2", "vec1", at=1),
    "baddbmm": _pair("batch2", "batch1", at=1),
    "addbmm": _pair("batch2", "batch1", at=1),
}
_CONVOLUTIONS = [f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)]

FACTORS: dict[Callable[..., Any], Factors] = {
    functional.linear: _pair("weight"),
    functional.bilinear: ((0, "input1"), (1, "input2"), (2, "weight")),
    functional.scaled_dot_product_attention: ((0, "query"), (1, "key"), (2, "value")),
    **{
        getattr(owner, name): factors
        for name, factors in (_METHODS | _SUMS).items()
        for owner in (torch, Tensor)
    },
    **{getattr(Tensor, f"{name}_"): factors for name, factors in _SUMS.items()},
    Tensor.__matmul__: _pair("other"),
    Tensor.__rmatmul__: _pair("other"),
    torch.linalg.matmul: _pair("other"),
    torch.linalg.vecdot: _pair("y", "x"),
    torch.chain_matmul: (),
    torch.linalg.multi_dot: (),
    torch.convolution: _pair("weight"),
    **{getattr(functional, name): _pair("weight") for name in _CONVOLUTIONS},
    torch.einsum: (),
    torch.tensordot: _pair("b", "a"),
}
"""The products that are simulated. Empty: every tensor among the arguments is a factor."""

# One function each for a whole layer, whose products cannot be reached from outside.
_LAYERS = [
    f"{kind}{cell}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for cell in ("", "_cell")
]
REFUSED: dict[Callable[..., Any], str] = {fused_function(name): name for name in _LAYERS}
for _name in ("outer", "ger", "kron", "linalg_vecdot"):  # torch writes them as sums, out of sight
    _packet = getattr(torch.ops.aten, _name)
    REFUSED |= {_packet: f"ops.aten.{_name}", _packet.default: f"ops.aten.{_name}"}
for _name in ("matrix_power", "matrix_exp"):
    REFUSED |= {getattr(owner, _name): _name for owner in (torch, torch.linalg, Tensor)}
for _name in ("sspaddmm", "smm"):
    REFUSED |= {getattr(owner, _name): _name for owner in (torch, Tensor)}
for _name in ("mm", "addmm", "sampled_addmm"):
    REFUSED[getattr(torch.sparse, _name)] = f"sparse.{_name}"
for _name in ("hspmm", "cdist", "conv_tbc"):
    REFUSED[getattr(torch, _name)] = _name
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
_OWN |= {"pullback", "pullback_tracking", "rngprims"}


@functools.cache
def is_product(operator: Any) -> bool:
    """Whether what reached torch's kernels multiplies, or may: other people's operators may."""
    name = operator.overloadpacket.__name__
    space = operator.namespace
    if space in {"aten", "torchvision"}:
        return _KERNEL.search(name) is not None and _NO_PRODUCT.search(name) is None
    return space not in _OWN


def count_factors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """How many factors a call of a product has, an added term counted as none.

    It is one where there is one operand, as of an einsum that transposes: no product.
    """
    wanted = FACTORS[function]
    if wanted:
        return len(wanted)

    def count(value: Any) -> int:
        if isinstance(value, list | tuple):
            return sum(map(count, value))
        return isinstance(value, Tensor)

    found = count((args, tuple(kwargs.values())))
    return found if found < 3 else 4  # between the products there is no rounding


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
        if is_floating(value):
            return replace(value, name)
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


def multiply_by(
    multiply: Multiply, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Run a product of torch's by one of matrices ``[..., m, k]`` and ``[..., k, n]``."""
    way = _WAYS.get(function)
    if way is None:
        raise UnsupportedError(
            f"simulate_format cannot scale the factors of {function.__name__} along a dimension.",
            given="a format with per='channel' or a size of blocks",
            expected="linear, matmul, attention",
            mend="Use per='tensor' there, by a Recipe, or leave this part of the model out.",
        )
    given = {name: value for name, value in kwargs.items() if name != "out"}
    for place, name in FACTORS[function]:
        if name in given:  # by whichever name this function has for its second factor
            args = (*args[:place], given.pop(name), *args[place:])
    return way(multiply, *args, **given)


def _matmul(multiply: Multiply, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - torch's
    left = input.unsqueeze(0) if input.dim() == 1 else input
    right = other.unsqueeze(-1) if other.dim() == 1 else other
    result = multiply(left, right)
    if other.dim() == 1:
        result = result.squeeze(-1)
    return result.squeeze(-1 if other.dim() == 1 else -2) if input.dim() == 1 else result


def _linear(
    multiply: Multiply,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    rows = input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    multiply = functools.partial(multiply, named=True)
    result = _matmul(multiply, rows, weight.mT if weight.dim() > 1 else weight)
    result = result.reshape(*input.shape[:-1], *result.shape[1:])
    return result if bias is None else _fitting(bias, result) + result


def _added(
    multiply: Multiply,
    input: Tensor,  # noqa: A002
    first: Tensor,
    second: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    product = _matmul(multiply, first, second)
    product = product if alpha == 1 else alpha * product
    return beta * _fitting(input, product) + product if beta else product


def _fitting(term: Tensor, product: Tensor) -> Tensor:
    """What is added to a product, in its dtype: torch casts it under autocast only."""
    if torch.is_autocast_enabled(product.device.type):
        return term.to(product.dtype)
    if term.dtype != product.dtype:
        raise ArgumentTypeError(
            "What is added to a product has another dtype.",
            given=f"{term.dtype} for a product in {product.dtype}",
        )
    return term


def _attend(  # noqa: PLR0917 - torch's signature
    multiply: Multiply,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # The definition in the documentation of torch's scaled_dot_product_attention.
    _check_mask(attn_mask, is_causal)
    if enable_gqa:
        key, value = (
            each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value)
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = multiply(query, key.mT) * factor
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    blind = (scores == -torch.inf).all(-1, keepdim=True)  # rows that see nothing attend to nothing
    shares = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0).to(value.dtype)
    return multiply(functional.dropout(shares, dropout_p), value)


def _check_mask(mask: Tensor | None, is_causal: bool) -> None:
    if mask is not None and is_causal:
        raise ArgumentError(
            "Attention takes a mask or is_causal, not both.",
            mend="Put the causal mask into attn_mask.",
        )
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentTypeError(
            "The mask of attention is boolean or floating.", given=f"dtype {mask.dtype}"
        )


_WAYS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.linear: _linear,
    functional.scaled_dot_product_attention: _attend,
    **dict.fromkeys(
        (
            torch.matmul, torch.linalg.matmul, torch.mm, torch.bmm, torch.mv, torch.dot,
            Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.dot,
        ),
        _matmul,
    ),
    Tensor.__rmatmul__: lambda multiply, first, second: _matmul(multiply, second, first),
    **dict.fromkeys(
        (torch.addmm, torch.baddbmm, torch.addmv, Tensor.addmm, Tensor.baddbmm, Tensor.addmv),
        _added,
    ),
}  # fmt: skip


class Weights:
    """The parameters that a model uses, and what stands in their place, while it runs.

    In inference mode and under `torch.func` no view tells what it was made of, and
    `torch.func.functional_call` puts plain tensors in the place of parameters: these are known by
    their memory.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._used: dict[nn.Parameter, None] = {}
        self._storages: dict[Tensor, int | None] = {}

    def see(self, args: Iterable[object]) -> None:
        """Look at the arguments of a function, which may return a view of a parameter."""
        if torch.is_inference_mode_enabled() or are_functorch_transforms_active():
            self._used |= dict.fromkeys(each for each in args if isinstance(each, nn.Parameter))

    def hold(self, x: Tensor) -> bool:
        """Whether a factor is one of them, or lies in the memory of one."""
        if isinstance(x, nn.Parameter) or isinstance(base_of(x), nn.Parameter):
            return True
        named = (each for module in self._all_modules for each in parameters_of(module))
        plain = (each for each in named if each is not None and type(each) is not nn.Parameter)
        known = [*self._used, *plain]
        storage = _storage(x) if known else None
        return storage is not None and any(
            self._storage(each) == storage and _within(x, each) for each in known
        )

    @functools.cached_property
    def _all_modules(self) -> list[nn.Module]:
        return list(self._modules())

    def _storage(self, known: Tensor) -> int | None:
        if known not in self._storages:
            self._storages[known] = _storage(known)
        return self._storages[known]


def _storage(x: Tensor) -> int | None:
    try:
        return storage_of(innermost(x))
    except RuntimeError:  # sparse, nested, or a subclass without memory of its own
        return None


def _within(x: Tensor, whole: Tensor) -> bool:
    """Whether the first and the last number of a tensor are numbers of another in its storage."""
    x, whole = innermost(x), innermost(whole)
    first: Any = x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return _reaches(whole, first) and _reaches(whole, last)


def _reaches(whole: Tensor, place: int) -> bool:
    """Whether a tensor has the number at a place of its storage."""
    rest = place - whole.storage_offset()
    for step, n in sorted(zip(whole.stride(), whole.shape, strict=True), reverse=True):
        rest -= step * max(0, min(rest // step, n - 1)) if step else 0
    return rest == 0
