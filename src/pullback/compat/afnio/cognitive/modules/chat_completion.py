"""`ChatCompletion`: a call of a model."""

from pullback.compat.afnio.autodiff import lm_ops
from pullback.compat.afnio.cognitive.modules.module import OperationModule

__all__ = ["ChatCompletion"]


class ChatCompletion(OperationModule):
    """A call of a model."""

    operation = lm_ops.ChatCompletion
