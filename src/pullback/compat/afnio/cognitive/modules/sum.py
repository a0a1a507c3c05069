"""`Sum`: Variables together."""

from pullback.compat.afnio.autodiff import basic_ops
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["Sum"]


class Sum(OperationModule):
    """The sum of Variables."""

    operation = basic_ops.Sum
