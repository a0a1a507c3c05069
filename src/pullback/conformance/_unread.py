"""A cotangent that backward does not read, although its output has a derivative."""

import ast
from collections.abc import Mapping
from typing import Any

import torch

from pullback.conformance._sources import written

__all__ = ["unread_cotangent"]


def unread_cotangent(
    function: Any, outputs: tuple[int, ...], terms: Mapping[str, torch.Tensor]
) -> tuple[str, str]:
    """What is said of the first such cotangent, and the mend; two empty texts without one.

    Arguments:
        function: the Function.
        outputs: the positions of its outputs that are differentiated.
        terms: that of each of these in the gradient, by ``"output 0"`` and so on.
    """
    back = written(getattr(function, "backward", None))
    given = [] if back is None else back.rule.tree.args.args[1:]
    for k, place in enumerate(outputs):
        term = terms.get(f"output {k}")
        if back is None or place >= len(given) or given[place].arg not in back.rule.unread:
            continue
        if term is not None and bool(term.any()):
            name, where = given[place].arg, back.rule.where(given[place])
            said = f"Backward does not read `{name}`, the cotangent of output {k}, at {where}."
            output = _returned(function, place)
            return said, (
                f"Add the term of `{name}`, or write `ctx.mark_non_differentiable({output})` in "
                "forward, where no gradient is to flow through that output."
            )
    return "", ""


def _returned(function: Any, place: int) -> str:
    """How forward calls an output that it returns."""
    source = written(function.forward)
    forward = None if source is None else source.rule
    nodes = ast.walk(forward.tree) if forward is not None else ()
    values = [n.value.elts for n in nodes if isinstance(n, ast.Return)
              and isinstance(n.value, ast.Tuple) and place < len(n.value.elts)]  # fmt: skip
    return forward.text(values[0][place]) if forward is not None and values else "..."
