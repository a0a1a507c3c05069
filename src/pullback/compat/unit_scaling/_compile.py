"""`compile`: a transform that compiles what the other transforms give."""

from typing import Any, TypeVar

import torch
from torch import fx, nn

from pullback.compat.unit_scaling._transform import Transform, apply_transform

__all__ = ["compile"]

Module = TypeVar("Module", bound=nn.Module)


def compile(module: Module) -> Module:  # noqa: A001 - the name that callers use
    """Return a copy of a module that torch.compile compiles, with its other transforms.

    ``torch.compile`` itself runs a transformed module as it is.

    Arguments:
        module: the module, which is left as it is.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: the module is tracked, or a part of it is transformed.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import compile, simulate_fp8
        >>> model = compile(simulate_fp8(torch.nn.Linear(2, 2)))
        >>> [transform.name for transform in model.backends]
        ['simulate_format', 'compile']
    """
    return apply_transform(module, _Compilation())


class _Compilation(Transform):
    """Compiles each graph."""

    name = "compile"
    rank = 3

    def transform(self, graph_module: fx.GraphModule) -> Any:
        """Return the compiled graph."""
        return torch.compile(graph_module, dynamic=False)
