"""`Parameter`: a Variable that an optimizer may change."""

from typing import Any

from pullback.compat.afnio._variable import Variable
from pullback.text import Parameter as TextParameter

__all__ = ["Parameter"]


class Parameter(Variable, TextParameter):
    """A Variable that an optimizer may change.

    Arguments:
        data: the value to start from.
        role: what it is for, in words.
        requires_grad: whether it collects feedback.
    """

    __slots__ = ()

    def __init__(
        self, data: Any = None, role: str | None = None, requires_grad: bool = True
    ) -> None:
        Variable.__init__(self, "" if data is None else data, role or "", requires_grad)
