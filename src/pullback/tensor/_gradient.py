"""A gradient as a node that can be differentiated in turn."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.errors import UnsupportedError
from pullback.tensor._call import Call
from pullback.tensor._derived import Derivation, derive
from pullback.tensor._operations import with_argument
from pullback.tensor._pair import gradient_again

__all__ = ["differentiable_gradient"]

Tensors = Sequence[torch.Tensor | None]
_PURPOSE = "The second derivative"
# Where each takes retain_graph.
_RETAIN: dict[Any, int] = {
    torch.autograd.grad: 3,
    torch.autograd.backward: 2,
    torch.Tensor.backward: 2,
}


def differentiable_gradient(
    call: Call,
    saved: dict[int, Any],
    cotangents: Tensors,
    needs: Sequence[bool],
    compute: Callable[[dict[int, Any], Tensors], list[torch.Tensor | None]],
) -> list[torch.Tensor | None]:
    """Compute the gradients with what was kept; they are differentiated by running again.

    Arguments:
        call: the application of the Function.
        saved: the inputs by their place, and behind them whatever else was saved.
        cotangents: one for each output, or None.
        needs: for each input, whether its gradient is wanted.
        compute: runs the author's backward on saved tensors and cotangents.
    """
    count = len(needs)
    inputs = [place for place in range(count) if place in saved]
    others = [place for place in saved if place >= count]
    flowing = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]

    def spread(given: Sequence[Any]) -> list[Any]:
        every: list[Any] = [None] * len(cotangents)
        for i, cotangent in zip(flowing, given, strict=True):
            every[i] = cotangent
        return every

    def value(sources: Any, state: Any) -> list[torch.Tensor | None]:
        places = [*inputs, *others]
        found = dict(zip(places, [*sources[: len(inputs)], *state], strict=True))
        with _Retaining():
            return compute(found, spread(sources[len(inputs) :]))

    def again(call: Call, sources: Any) -> list[torch.Tensor | None]:
        given = spread(sources[len(inputs) :])
        return gradient_again(call, _PURPOSE, sources[: len(inputs)], given, needs)

    derivation = Derivation(call, _PURPOSE, value, again, _refusal(call))
    sources = [*(saved[i] for i in inputs), *(cotangents[i] for i in flowing)]
    return derive(derivation, sources, [saved[place] for place in others])


class _Retaining(TorchFunctionMode):
    """Keeps a graph that forward has made, and backward differentiates, for another backward.

    A gradient that is differentiated runs through its node again.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RETAIN:
            args, kwargs = with_argument(args, kwargs, _RETAIN[func], "retain_graph", True)
        return func(*args, **kwargs)


def _refusal(call: Call) -> UnsupportedError | None:
    if call.definition.once:
        return call.once_refusal
    if call.dirty:
        return UnsupportedError(
            f"{_PURPOSE} of {call.definition.name} needs the input that it has changed in place.",
            mend="Compute out of place where a second derivative is wanted.",
        )
    return None
