"""`Add`: two Variables together."""

from pullback.compat.afnio.autodiff import basic_ops
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["Add"]


class Add(OperationModule):
    """The sum of two Variables."""

    operation = basic_ops.Add
