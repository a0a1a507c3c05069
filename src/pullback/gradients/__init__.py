"""Functions that leave a value alone, or make it simply, and shape its gradient."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.gradients")

from pullback.gradients._norm import (
    ClipGradient,
    NormaliseGradient,
    clip_gradient,
    normalise_gradient,
)
from pullback.gradients._round import (
    DtypeGradient,
    NoiseGradient,
    dtype_gradient,
    noise_gradient,
)
from pullback.gradients._route import (
    ReplaceGradient,
    StopGradient,
    WhereGradient,
    replace_gradient,
    stop_gradient,
    where_gradient,
)
from pullback.gradients._scale import (
    ReverseGradient,
    ScaleBoth,
    ScaleForward,
    ScaleGradient,
    reverse_gradient,
    scale_both,
    scale_forward,
    scale_gradient,
)
from pullback.gradients._straight_through import (
    StraightThrough,
    StraightThroughOneHot,
    StraightThroughRound,
    StraightThroughSign,
    StraightThroughThreshold,
    straight_through,
    straight_through_one_hot,
    straight_through_round,
    straight_through_sign,
    straight_through_threshold,
)

__all__ = [
    "ClipGradient",
    "DtypeGradient",
    "NoiseGradient",
    "NormaliseGradient",
    "ReplaceGradient",
    "ReverseGradient",
    "ScaleBoth",
    "ScaleForward",
    "ScaleGradient",
    "StopGradient",
    "StraightThrough",
    "StraightThroughOneHot",
    "StraightThroughRound",
    "StraightThroughSign",
    "StraightThroughThreshold",
    "WhereGradient",
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
