"""Functions that leave a value alone, or make it simply, and shape its gradient."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.gradients")

from pullback.gradients._clip_gradient import ClipGradient, ClipGradientFunction, clip_gradient
from pullback.gradients._dtype_gradient import DtypeGradient, DtypeGradientFunction, dtype_gradient
from pullback.gradients._noise_gradient import NoiseGradient, NoiseGradientFunction, noise_gradient
from pullback.gradients._normalise_gradient import (
    NormaliseGradient,
    NormaliseGradientFunction,
    normalise_gradient,
)
from pullback.gradients._replace_gradient import (
    ReplaceGradient,
    ReplaceGradientFunction,
    replace_gradient,
)
from pullback.gradients._reverse_gradient import (
    ReverseGradient,
    ReverseGradientFunction,
    reverse_gradient,
)
from pullback.gradients._scale_both import ScaleBoth, ScaleBothFunction, scale_both
from pullback.gradients._scale_forward import ScaleForward, ScaleForwardFunction, scale_forward
from pullback.gradients._scale_gradient import ScaleGradient, ScaleGradientFunction, scale_gradient
from pullback.gradients._stop_gradient import StopGradient, StopGradientFunction, stop_gradient
from pullback.gradients._straight_through import (
    StraightThrough,
    StraightThroughFunction,
    straight_through,
)
from pullback.gradients._straight_through_one_hot import (
    StraightThroughOneHot,
    straight_through_one_hot,
)
from pullback.gradients._straight_through_round import StraightThroughRound, straight_through_round
from pullback.gradients._straight_through_sign import StraightThroughSign, straight_through_sign
from pullback.gradients._straight_through_threshold import (
    StraightThroughThreshold,
    straight_through_threshold,
)
from pullback.gradients._where_gradient import WhereGradient, WhereGradientFunction, where_gradient

__all__ = [
    "ClipGradient",
    "ClipGradientFunction",
    "DtypeGradient",
    "DtypeGradientFunction",
    "NoiseGradient",
    "NoiseGradientFunction",
    "NormaliseGradient",
    "NormaliseGradientFunction",
    "ReplaceGradient",
    "ReplaceGradientFunction",
    "ReverseGradient",
    "ReverseGradientFunction",
    "ScaleBoth",
    "ScaleBothFunction",
    "ScaleForward",
    "ScaleForwardFunction",
    "ScaleGradient",
    "ScaleGradientFunction",
    "StopGradient",
    "StopGradientFunction",
    "StraightThrough",
    "StraightThroughFunction",
    "StraightThroughOneHot",
    "StraightThroughRound",
    "StraightThroughSign",
    "StraightThroughThreshold",
    "WhereGradient",
    "WhereGradientFunction",
    "clip_gradient",
    "dtype_gradient",
    "noise_gradient",
    "normalise_gradient",
    "replace_gradient",
    "reverse_gradient",
    "scale_both",
    "scale_forward",
    "scale_gradient",
    "stop_gradient",
    "straight_through",
    "straight_through_one_hot",
    "straight_through_round",
    "straight_through_sign",
    "straight_through_threshold",
    "where_gradient",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
