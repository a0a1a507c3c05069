"""`Case`: a Function with inputs that fit it, as rooms offer them to the checker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from pullback.errors import ArgumentError, ArgumentTypeError

__all__ = ["Case", "Intent"]

Intent = Literal["exact", "surrogate", "nonlinear"]


@dataclass(frozen=True)
class Case:
    """A Function, or any callable, with inputs that fit it.

    A package offers its cases to ``pullback check`` through an entry point in the group
    ``pullback.cases`` that names a callable returning an iterable of cases.

    Arguments:
        name: a unique name, for example ``"gradients.scale_gradient"``.
        function: a `torch.autograd.Function` subclass or a callable of tensors.
        inputs: makes the positional arguments from a seeded generator. Floating tensors
            should be float64; those that require a gradient are differentiated.
        gradient: the declared intent, or ``None`` to take it from the function.
        refuses: clause id -> why the function refuses it, for documentation.

    Raises:
        ArgumentError: the name is empty or the intent unknown.
        ArgumentTypeError: the function or inputs cannot be called.

    Example:
        >>> import torch
        >>> case = Case("sine", torch.sin,
        ...             lambda generator: (torch.randn(3, generator=generator),))
        >>> case.name
        'sine'
    """

    name: str
    function: Callable[..., Any] | type[torch.autograd.Function]
    inputs: Callable[[torch.Generator], tuple[Any, ...]]
    gradient: Intent | None = None
    refuses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            raise ArgumentError("A case needs a name.", given="an empty name")
        if not callable(self.function) or not callable(self.inputs):
            raise ArgumentTypeError(
                f"Case {self.name!r} needs a function and a maker of inputs.",
                given=f"function={self.function!r}, inputs={self.inputs!r}",
                expected="two callables",
            )
        if self.gradient not in (None, "exact", "surrogate", "nonlinear"):
            raise ArgumentError(
                f"Case {self.name!r} declares an unknown gradient intent.",
                given=f"gradient={self.gradient!r}",
                expected="'exact', 'surrogate', 'nonlinear' or None",
            )
