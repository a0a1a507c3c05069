"""`ChatCompletion`: a call of a model."""

from pullback.compat.afnio.autodiff import lm_ops
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["ChatCompletion"]

ChatCompletion = module_of(lm_ops.ChatCompletion)
