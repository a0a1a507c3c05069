"""The contract over torch: `Function`, and what completes third-party ones."""

from pullback.internal._extras import require_tensor as _require_tensor

_require_tensor("pullback.tensor")

from pullback.tensor._case import Case, Intent
from pullback.tensor._complete import complete
from pullback.tensor._complete_reference import reference_of
from pullback.tensor._completed import completed
from pullback.tensor._custom_vjp import CustomVjp, custom_vjp
from pullback.tensor._function import Function
from pullback.tensor.call._context import Context

__all__ = [
    "Case",
    "Context",
    "CustomVjp",
    "Function",
    "Intent",
    "complete",
    "completed",
    "custom_vjp",
    "reference_of",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
