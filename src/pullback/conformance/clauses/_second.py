"""Whether a second derivative is refused."""

from typing import Any

from torch.autograd import function

from pullback.conformance._probe import Probe
from pullback.recording.locator import Locator
from pullback.tensor import Function, reference_of

__all__ = ["is_once"]


def is_once(probe: Probe) -> bool:
    """Whether any custom Function in the graph is marked once_differentiable.

    A completed one is not: what it computes below the mark has a derivative, which it derives.
    """

    def marked(cls: Any) -> bool:
        if issubclass(cls, Function) and (Locator.of(cls).completed or reference_of(cls)):
            return False
        made_by = [getattr(rule, "__globals__", None) for rule in (cls.backward, cls.vjp)
                   if hasattr(rule, "__wrapped__")]  # fmt: skip
        return any(names is vars(function) for names in made_by)

    return any(map(marked, probe.functions()))
