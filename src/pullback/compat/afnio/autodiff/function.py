"""`Function`: the contract, with afnio's Variables."""

from typing import Any, ClassVar

from pullback import tape
from pullback.compat.afnio._variable import adopt, adopt_pair

__all__ = ["Function"]


class Function(tape.Function):
    """A custom differentiable function of Variables, the whole of it running here.

    See `pullback.tape.Function`.

    Example:
        >>> import pullback.compat.afnio as hf
        >>> class Reverse(Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return hf.Variable(x.data[::-1], role=x.role)
        ...
        ...     @staticmethod
        ...     def backward(ctx, feedback):
        ...         return feedback
        >>> Reverse.apply(hf.Variable("abc", role="word"))
        Variable('cba', role='word')
    """

    _is_evaluator: ClassVar[bool] = False

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function."""
        return cls._adopted(super().apply(*args, **kwargs))

    @classmethod
    async def aapply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function and await it."""
        return cls._adopted(await super().aapply(*args, **kwargs))

    @classmethod
    def _adopted(cls, made: Any) -> Any:
        return adopt_pair(*made) if cls._is_evaluator else adopt(made)
