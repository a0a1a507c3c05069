"""Whether a kernel computes what its reference computes: `pullback.verify`."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.verification")

from pullback.verification._verify import PROMISES, refuse_inputs, verify
from pullback.verification._work import Promise

__all__ = ["PROMISES", "Promise", "refuse_inputs", "verify"]
__dir__ = __all__.copy  # completion offers these names, and no module inside
