"""Functions that leave a value alone, or make it simply, and shape its gradient."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.gradients")

from pullback.gradients import _nonlinear, _route, _scale, _straight_through
from pullback.gradients._nonlinear import *
from pullback.gradients._route import *
from pullback.gradients._scale import *
from pullback.gradients._straight_through import *

__all__ = sorted(
    [*_nonlinear.__all__, *_route.__all__, *_scale.__all__, *_straight_through.__all__]
)
__dir__ = __all__.copy  # completion offers these names, and no module inside
