"""`Split`: a text in parts."""

from pullback.compat.afnio.autodiff import basic_ops
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["Split"]

Split = module_of(basic_ops.Split)
