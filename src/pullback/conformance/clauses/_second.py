"""Whether a second derivative is refused, and how."""

from collections.abc import Callable

from pullback.conformance._nodes import custom_nodes
from pullback.conformance._probe import Probe

__all__ = ["is_once", "refusal"]


def is_once(probe: Probe) -> bool:
    """Whether any custom Function in the graph is marked once_differentiable."""

    def marked(rule: Callable[..., object]) -> bool:
        code = getattr(rule, "__code__", None)
        return (
            code is not None
            and code.co_filename.endswith("autograd/function.py")
            and (hasattr(rule, "__wrapped__"))
        )

    outputs = probe.evaluate(probe.leaves())  # held: a node lives as long as what it made
    nodes = custom_nodes(outputs)
    if probe.subject.function is not None:
        classes = [probe.subject.function, *(node._forward_cls for node in nodes)]
    else:
        classes = [node._forward_cls for node in nodes]
    return any(marked(cls.backward) or marked(cls.vjp) for cls in classes)


def refusal(ask: Callable[[], object]) -> Exception | None:
    """The error of a second derivative, or ``None`` when it answers."""
    try:
        ask()
    except Exception as error:  # any error is loud; the caller judges it
        return error
    return None
