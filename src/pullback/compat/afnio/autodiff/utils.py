"""`backward` and `grad`."""

from collections.abc import Sequence
from typing import Any

from pullback import tape
from pullback.compat.afnio._variable import adopt, start

__all__ = ["backward", "grad"]


def backward(
    variables: tape.Variable | Sequence[tape.Variable],
    grad_variables: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Run back from Variables: see `pullback.tape.backward`."""
    roots = [variables] if isinstance(variables, tape.Variable) else list(variables)
    if grad_variables is None:
        given = [None] * len(roots)
    else:
        single = isinstance(grad_variables, tape.Variable)
        given = [grad_variables] if single else list(grad_variables)
    if len(given) == len(roots):
        pairs = [start(root, each) for root, each in zip(roots, given, strict=True)]
        roots = [root for some, _ in pairs for root in some]
        given = [gradient for _, some in pairs for gradient in some]
    tape.backward(roots, given, retain_graph, create_graph, inputs)


def grad(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The gradients of some inputs: see `pullback.tape.grad`."""
    return adopt(tape.grad(*args, **kwargs))
