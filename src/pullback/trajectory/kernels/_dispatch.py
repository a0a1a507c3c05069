"""Two operators of `torch.library` over the families of kernels, and the backends of each.

A family is a package whose modules `_reference`, `_cpu` and `_triton` have ``apply`` and
``apply_adjoint``; the reference says also what its outputs are shaped like, and the gradient of the
weights. A family's own numbers go as a word: an argument without a structure that each call would
walk. The operators carry kernels and no rule of differentiation: that is `Levels`'.
"""

from typing import Any

from torch import Tensor

from pullback.internal.kernels._backend import implementation
from pullback.internal.kernels._folding import fold_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.trajectory.kernels.accumulate import _reference as accumulate
from pullback.trajectory.kernels.stencil import _reference as stencil

__all__ = ["REFERENCES", "levels", "levels_adjoint", "read_code"]

_PACKAGE = "pullback.trajectory.kernels"
REFERENCES: dict[str, Any] = {"accumulate": accumulate, "stencil": stencil}

_codes: dict[str, tuple[int, ...]] = {}


def read_code(code: str) -> tuple[int, ...]:
    """The numbers of a word: ``"2,5"`` to ``(2, 5)``."""
    numbers = _codes.get(code)
    if numbers is None:
        numbers = _codes[code] = tuple(map(int, code.split(",")))
    return numbers


@register_kernel("pullback::levels")
def levels(
    first: Tensor, second: Tensor, weights: Tensor, family: str, code: str, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's ``apply`` by a chosen backend.

    Only rows at the ends of a stencil weigh boundary values: a backend may take those weights of
    inside rows as zero without a look.
    """
    kernels = implementation(f"{_PACKAGE}.{family}", backend)
    return kernels.apply(first, second, weights, read_code(code))


@register_kernel("pullback::levels_adjoint")
def levels_adjoint(
    position: Tensor,
    velocity: Tensor,
    acceleration: Tensor,
    jerk: Tensor,
    weights: Tensor,
    family: str,
    code: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The reference's ``apply_adjoint`` of four cotangents; the others as in `levels`."""
    cotangents = (position, velocity, acceleration, jerk)
    kernels = implementation(f"{_PACKAGE}.{family}", backend)
    return kernels.apply_adjoint(cotangents, weights, read_code(code))


@levels.register_fake
def _(first: Tensor, second: Tensor, weights: Tensor, family: str, code: str, _: str) -> Any:
    batch, samples, dof = first.shape
    more, _rows = REFERENCES[family].sizes(weights, read_code(code))
    return tuple(first.new_empty(batch, samples + more, dof) for _ in range(4))


@levels_adjoint.register_fake
def _(position: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, samples, dof = position.shape
    *_, weights, family, code, _backend = others
    more, rows = REFERENCES[family].sizes(weights, read_code(code))
    return position.new_empty(batch, samples - more, dof), position.new_empty(batch, rows, dof)


levels.register_vmap(fold_batch(levels, 3))
levels_adjoint.register_vmap(fold_batch(levels_adjoint, 5))
