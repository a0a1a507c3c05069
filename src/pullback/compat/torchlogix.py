"""The names of torchlogix, over ours.

============================  ======================================================
torchlogix 0.2.2              here
============================  ======================================================
``GradFactor.apply(x, f)``    the same value and gradient; differences:
returns ``x`` itself          returns a view of ``x``: the value cannot be changed in
                              place while gradients are recorded, which there loses
                              the factor or corrupts ``x``
a tensor ``f`` gets None      a tensor ``f`` that requires a gradient gets zeros: the
                              value does not depend on it
a half-precision tensor       ``f`` is used in float32 or wider: 1e-9 does not become 0
``f`` may become 0
a tensor ``f`` that does      refused at the call
not broadcast to ``x``
enlarges the gradient, and
fails in backward
``jvp``, ``vmap``,            all work
``torch.func``, compile fail
============================  ======================================================

NaN and infinite factors are taken, as there.
"""

from typing import Any

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.compat.torchlogix")

from torch import Tensor

from pullback.gradients import ScaleGradientFunction, scale_gradient

__all__ = ["GradFactor"]


class GradFactor(ScaleGradientFunction):
    """Identity with the gradient times a factor.

    Example:
        >>> import torch
        >>> from pullback.compat.torchlogix import GradFactor
        >>> x = torch.ones(2, requires_grad=True)
        >>> GradFactor.apply(x, 2.0).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """

    @classmethod
    # torch declares (*args); the published names are kept.
    # pyrefly: ignore[bad-override]
    def apply(cls, x: Tensor, f: float | complex | Tensor) -> Any:
        """Return ``x``, with its gradient multiplied by ``f``.

        Arguments:
            x: shape (...), any floating or complex dtype.
            f: a number or a tensor that broadcasts to ``x``.

        Raises:
            ArgumentError: ``f`` is no number and no tensor that broadcasts to ``x``.
        """
        return scale_gradient(x, f, allow_nan=True)
