"""Changed arguments are tried on the CPU before a device is handed them.

An index beyond the end, or a probability above one, is an exception on the CPU. CUDA answers it by
an assertion of the device, after which no later call of the process uses it: neither the check nor
whoever asked for it. So what the CPU refuses is refused, and the device never sees it.
"""

from collections.abc import Callable
from typing import Any

import torch

from pullback.conformance._tree import replace, tensors
from pullback.errors import UnsupportedError

__all__ = ["CpuTrial"]


class CpuTrial:
    """A call with other arguments than the given ones, which lie on a device.

    Arguments:
        given: makes the positional and keyword arguments that were given.
    """

    def __init__(self, given: Callable[[], tuple[Any, Any]]) -> None:
        self._given = given
        self._passed = False

    def of(self, call: Callable[..., Any], made: tuple[Any, Any]) -> None:
        """Raise what the CPU does of these arguments; once passed, those close by pass too.

        Where the code does not run on the CPU at all, nothing is known of other indices.

        Raises:
            Exception: what the call raises on the CPU, and does not of the given arguments.
            UnsupportedError: an index is among the arguments, and the code runs on a device only.
        """
        if self._passed:
            return
        with torch.random.fork_rng(devices=()):
            try:
                _call(call, made)
            except Exception:
                if _runs(call, self._given()):
                    raise
                if not all(t.is_floating_point() or t.is_complex() for t in tensors(made)):
                    raise UnsupportedError(
                        "Other indices are not tried: one beyond the end ends the use of a device.",
                        given="code that does not run on the CPU",
                    ) from None
        self._passed = True


def _runs(call: Callable[..., Any], made: tuple[Any, Any]) -> bool:
    try:
        _call(call, made)
    except Exception:
        return False
    return True


def _call(call: Callable[..., Any], made: tuple[Any, Any]) -> None:
    values = [
        value.detach().to("cpu", copy=True).requires_grad_(value.requires_grad)
        for value in tensors(made)
    ]
    args, kwargs = replace(made, iter(values))
    outputs = [y for y in tensors(call(*args, **kwargs)) if y.requires_grad]
    leaves = [x for x in values if x.requires_grad]
    if outputs and leaves:
        ones = [torch.ones_like(y) for y in outputs]
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
