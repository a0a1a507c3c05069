"""What flows to position, velocity, acceleration and jerk: two operators, and a Function over them.

A family of kernels is linear in two inputs, such as positions and boundary values, and linear in
its weights. So is its adjoint, and each is the other's backward: derivatives of every order are
made of these two and of the gradient of the weights, which is plain torch.

A family is a package whose modules `_cpu` and `_triton` have ``apply`` and ``apply_adjoint``. Its
`_reference` has ``apply`` in plain torch, which needs neither operator nor Function, and says what
its outputs are shaped like and what the gradient of the weights is. Which kernels run is one word:
an argument without a structure that each call would walk. The operators carry kernels and no rule
of differentiation: that is `Levels`'.
"""

import functools
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import implementation, is_recorded
from pullback.internal.kernels._kernel import apply_rules, fold_batch, register_kernel
from pullback.tensor import Function
from pullback.trajectory.kernels.accumulate import _reference as accumulate
from pullback.trajectory.kernels.stencil import _reference as stencil

__all__ = ["Levels", "kernels_word", "move_lines"]

_REFERENCES: dict[str, Any] = {"accumulate": accumulate, "stencil": stencil}


def kernels_word(family: str, backend: str, numbers: Iterable[int]) -> str:
    """The word for the kernels of a family by a backend, with the numbers that they are told."""
    return f"{family} {backend} {','.join(map(str, numbers))}"


def _reference(word: str) -> tuple[Any, tuple[int, ...]]:
    """The reference of the family that a word names, and its numbers."""
    family, _, numbers = word.split(" ")
    return _REFERENCES[family], tuple(map(int, numbers.split(",")))


@functools.cache
def _kernels(word: str) -> tuple[ModuleType, tuple[int, ...]]:
    """The module with the kernels, and their numbers."""
    family, backend, _ = word.split(" ")
    return implementation(f"{__package__}.{family}", backend), _reference(word)[1]


@register_kernel("pullback::levels")
def levels(
    first: Tensor, second: Tensor, weights: Tensor, word: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's ``apply`` by a chosen backend.

    Only rows at the ends of a stencil weigh boundary values: a backend may take those weights of
    inside rows as zero without a look.
    """
    kernels, numbers = _kernels(word)
    return kernels.apply(first, second, weights, numbers)


@register_kernel("pullback::levels_adjoint")
def levels_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    word: str,
) -> tuple[Tensor, Tensor]:
    """The reference's ``apply_adjoint`` of four cotangents; the others as in `levels`."""
    kernels, numbers = _kernels(word)
    return kernels.apply_adjoint((position, velocity, acceleration, jerk), weights, numbers)


@levels.register_fake
def _(first: Tensor, second: Tensor, weights: Tensor, word: str) -> Any:
    batch, samples, dof = first.shape
    reference, numbers = _reference(word)
    more, _rows = reference.sizes(weights, numbers)
    return tuple(first.new_empty(batch, samples + more, dof) for _ in range(4))


@levels_adjoint.register_fake
def _(position: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, samples, dof = position.shape
    *_, weights, word = others
    reference, numbers = _reference(word)
    more, rows = reference.sizes(weights, numbers)
    return position.new_empty(batch, samples - more, dof), position.new_empty(batch, rows, dof)


levels.register_vmap(fold_batch(levels, 3))
levels_adjoint.register_vmap(fold_batch(levels_adjoint, 5))


class Levels(Function):
    """Weights and two inputs to position, velocity, acceleration and jerk, or cotangents back.

    Inputs are the weights, the word for the kernels, whether it is the adjoint, and the two inputs
    or, for the adjoint, cotangents of the four.
    """

    autocast = "disable"
    _direct = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """Apply the kernel of a family."""
        weights, word, adjoint, *given = inputs
        run: Any = levels_adjoint if adjoint else levels
        return run(*given, weights, word)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the other one needs, and what the gradient of the weights does."""
        ctx.chosen = inputs[1:3]
        ctx.save_for_backward(inputs[0], *(inputs[3:] if ctx.needs_input_grad[0] else ()))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Apply the other one; the weights' gradient only where it is needed."""
        weights, *given = ctx.saved_tensors
        word, adjoint = ctx.chosen
        of_weights, _, _, *others = ctx.needs_input_grad
        back: tuple[Any, ...] = (None,) * len(others)
        if any(others):
            run = Levels.apply if is_recorded() else Levels.forward
            back = run(weights, word, not adjoint, *cotangents)
        steep = None
        if of_weights:
            reference, numbers = _reference(word)
            four, two = (given, cotangents) if adjoint else (cotangents, given)
            steep = reference.weights_adjoint(four, *two, weights, numbers)
        return steep, None, None, *back


def move_lines(weights: Tensor, word: str, x: Tensor, known: Tensor) -> tuple[Tensor, ...]:
    """The four levels ``[..., samples, dof]`` of ``x``, with ``known [trajectories, few, dof]``."""
    batch = x.shape[:-2]
    flat = x if len(batch) == 1 else x.reshape(len(known), *x.shape[-2:])
    if " reference " in word:
        reference, numbers = _reference(word)
        parts = reference.apply(flat, known, weights, numbers)
    else:
        parts = apply_rules(Levels, weights, word, False, flat, known)
    if flat is x:
        return parts
    return tuple(part.reshape(*batch, *part.shape[1:]) for part in parts)
