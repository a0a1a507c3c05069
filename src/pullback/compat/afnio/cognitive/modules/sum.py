"""`Sum`: Variables together."""

from pullback.compat.afnio.autodiff import basic_ops
from pullback.compat.afnio.cognitive.modules.module import module_of

__all__ = ["Sum"]

Sum = module_of(basic_ops.Sum)
