"""`Split`: a text in parts."""

from pullback.compat.afnio.autodiff import basic_ops
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["Split"]


class Split(OperationModule):
    """The parts of a text."""

    operation = basic_ops.Split
