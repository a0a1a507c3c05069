"""What is linear in the cotangent, told by the functions that a backward calls.

A map is linear in what it is given if each step is: a sum of values that are linear, a product of
one that is with one that does not depend on it, a rearrangement of one. What is not in these lists
may be linear all the same; that is for an evaluation to show.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from pullback.tensor.values._functions import FunctionCall
from pullback.tensor.values._levels import is_coarse, is_differentiable, memory_of

__all__ = ["Linearity"]

# True and False for what depends on what was given; ``"zero"`` for zeros, and ``None`` for other
# values that do not.
Linear = bool | Literal["zero"] | None

# ruff: noqa: SIM905 - a text of names reads better than a list of texts
# Linear in their first argument, whatever the others are, on which they do not depend.
_FIRST = frozenset(
    """
    __get__ __getitem__ __neg__ __pos__ __truediv__ bfloat16 broadcast_to cdouble cfloat
    cholesky_solve chunk clone conj contiguous cumsum data diag diag_embed diagonal diff div div_
    divide double dsplit expand expand_as fft fft2 fftn flatten flip fliplr flipud float gather half
    hfft hsplit ifft ifft2 ifftn ihfft imag index_select irfft irfft2 irfftn mean movedim moveaxis
    narrow neg neg_ negative permute positive ravel real repeat repeat_interleave requires_grad_
    reshape reshape_as resolve_conj resolve_neg rfft rfft2 rfftn roll rot90 select split
    split_with_sizes squeeze squeeze_ sum sum_to_size swapaxes swapdims t t_ tensor_split tile to
    trace transpose transpose_ tril tril_ triu triu_ true_divide type type_as unbind unflatten
    unfold unsqueeze unsqueeze_ view view_as view_as_complex view_as_real vsplit
    """.split()
)
# Linear in each of their arguments.
_EACH = frozenset(
    """
    __imul__ __matmul__ __mul__ __rmatmul__ __rmul__ bilinear bmm chain_matmul conv1d conv2d conv3d
    conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d dot einsum ger inner kron matmul mm
    mul mul_ multi_dot multiply multiply_ mv outer tensordot vdot
    """.split()
)
# Linear where all of their arguments are.
_ALL = frozenset(
    """
    __add__ __iadd__ __isub__ __radd__ __rsub__ __sub__ add add_ cat column_stack concat concatenate
    dstack hstack row_stack stack sub sub_ subtract vstack
    """.split()
)
_ZEROS = frozenset(("new_zeros", "zero_", "zeros", "zeros_like"))
_WRITES = frozenset(
    ("__setitem__", "index_add", "index_add_", "index_put", "scatter_add", "scatter_add_")
)


class Linearity:
    """Which tensors are linear in some cotangents, by ids that somebody else keeps."""

    def __init__(self, cotangents: Iterable[torch.Tensor] = ()) -> None:
        self._states: dict[int, Linear] = {id(tensor): True for tensor in cotangents}
        self._alike: dict[int, list[int]] = {}  # by the memory that they lie in
        self.is_told = False  # whether Python has a value of what depends on them

    def __bool__(self) -> bool:
        return bool(self._states)

    def of(self, tensor: torch.Tensor) -> Linear:
        """Whether a tensor is linear."""
        return self._states.get(id(tensor))

    def share(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Take another tensor for what one is."""
        if id(tensor) in self._states:
            self._states[id(other)] = self._states[id(tensor)]

    def tell(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that Python gets the values of tensors, and may decide or compute by them."""
        self.is_told = self.is_told or any(self.of(t) in (True, False) for t in tensors)

    def deny(self, tensor: torch.Tensor) -> None:
        """Take a tensor for one that depends on the cotangents and is not linear."""
        self._states[id(tensor)] = False

    def follow(
        self,
        name: str,
        done: FunctionCall,
        made: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> None:
        """Follow what was given to a function of torch to what it has made or written."""
        state = _is_linear(name, done.args, done.kwargs, self.of)
        for tensor in made:
            if is_differentiable(tensor) and not is_coarse(tensor.dtype):
                self._states[id(tensor)] = state
                self._alike.setdefault(memory_of(tensor), []).append(id(tensor))
            elif state in (True, False):
                self.deny(tensor)  # as a mask
        for tensor in written:  # and all that lies in the same memory
            for number in self._alike.get(memory_of(tensor), ()):
                if number != id(tensor):
                    self._states[number] = _together(self._states.get(number), state)


def _is_linear(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], linear: Callable[[Any], Linear]
) -> Linear:
    """Whether a result is linear in what was given.

    Arguments:
        name: of the function of torch.
        args: its arguments.
        kwargs: those by name.
        linear: the same of a tensor.
    """
    if name in _ZEROS:
        return "zero"
    tensors = [each for each in _parts((*args, *kwargs.values())) if _is_tensor(each)]
    found = [linear(each) for each in tensors]
    if name in ("copy_", "copy"):
        return linear(args[1]) if len(args) > 1 and _is_tensor(args[1]) else False
    if False in found:
        return False
    if True not in found:
        return "zero" if name in _FIRST and found[:1] == ["zero"] else None
    if name in _FIRST:
        return found.count(True) == 1 and found[0] is True
    if name in _EACH:
        return found.count(True) == 1
    terms = [each for each in tensors if is_differentiable(each)]
    flowing = all(linear(each) in (True, "zero") for each in terms)
    if name in _ALL:
        scaled = not any(map(_is_tensor, kwargs.values()))
        return (
            flowing and scaled and not any(isinstance(n, (int, float, complex)) and n for n in args)
        )
    if name in _WRITES:
        return flowing and not kwargs and not isinstance(args[-1], (int, float))
    if name in ("where", "masked_fill", "masked_fill_") and len(args) == 3:
        chosen = args[1:] if name == "where" else (args[0], args[2])
        return all(linear(e) in (True, "zero") if _is_tensor(e) else e == 0 for e in chosen)
    return False


def _together(one: Linear, other: Linear) -> Linear:
    """Whether a tensor is linear of which a part was so, and a part is written that is so."""
    if False in (one, other):
        return False
    if one == other:
        return one
    return True if {one, other} == {True, "zero"} else None if True not in (one, other) else False


def _parts(values: Sequence[Any]) -> list[Any]:
    parts = []
    for value in values:
        parts += _parts(value) if isinstance(value, (list, tuple)) else [value]
    return parts


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
