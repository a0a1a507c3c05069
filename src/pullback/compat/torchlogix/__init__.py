"""The names of torchlogix, over ours.

============================  ======================================================
torchlogix 0.2.2              here
============================  ======================================================
``GradFactor.apply(x, f)``    the same value and gradient, also for booleans and
                              integers; differences:
returns ``x`` itself          returns a view of ``x``: the value cannot be changed in
                              place while gradients are recorded, which there loses
                              the factor or corrupts ``x``
a tensor ``f`` gets None      a tensor ``f`` that requires a gradient gets zeros: the
                              value does not depend on it
a tensor ``f`` is ``ctx.f``,  ``ctx.saved_tensors[0]``: a change is refused by backward
and may change unnoticed
a half-precision tensor       ``f`` is used in float32 or wider: 1e-9 does not become 0
``f`` may become 0
a tensor ``f`` that does      refused at the call
not broadcast to ``x``
enlarges the gradient, and
fails in backward
``jvp``, ``vmap``,            all work
``torch.func``, compile fail
============================  ======================================================

NaN and infinite factors are taken, as there. The import paths are those of torchlogix under
``pullback.compat``: ``pullback.compat.torchlogix.functional``.
"""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.compat.torchlogix")

from pullback.compat.torchlogix import functional
from pullback.compat.torchlogix.functional import GradFactor

__all__ = ["GradFactor", "functional"]
