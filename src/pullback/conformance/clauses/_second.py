"""Whether a second derivative is refused, and how."""

from collections.abc import Callable
from typing import Any

from pullback.conformance._nodes import custom_nodes
from pullback.conformance._probe import Probe
from pullback.internal.torch import function_of
from pullback.recording.locator import Locator
from pullback.tensor import Function

__all__ = ["is_once", "refusal"]


def is_once(probe: Probe) -> bool:
    """Whether any custom Function in the graph is marked once_differentiable.

    A completed one is not: what it computes below the mark has a derivative, which it derives.
    """

    def marked(cls: Any) -> bool:
        if issubclass(cls, Function) and Locator.of(cls).completed:
            return False
        codes = (getattr(rule, "__code__", None) for rule in (cls.backward, cls.vjp)
                 if hasattr(rule, "__wrapped__"))  # fmt: skip
        return any(
            code is not None and code.co_filename.endswith("autograd/function.py") for code in codes
        )

    outputs = probe.evaluate(probe.leaves())  # held: a node lives as long as what it made
    nodes = custom_nodes(outputs)
    if probe.subject.function is not None:
        classes = [probe.subject.function, *(function_of(node) for node in nodes)]
    else:
        classes = [function_of(node) for node in nodes]
    return any(map(marked, classes))


def refusal(ask: Callable[[], object]) -> Exception | None:
    """The error of a second derivative, or ``None`` when it answers."""
    try:
        ask()
    except Exception as error:  # any error is loud; the caller judges it
        return error
    return None
