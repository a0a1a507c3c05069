"""A value whose derivative is refused: the error is raised by whoever asks for that."""

from collections.abc import Callable, Sequence
from typing import Any, Never

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, never_compile
from pullback.tensor.call._call import Call
from pullback.tensor.rules._batching import batched, share_batch
from pullback.tensor.values._errors import in_short, is_of_rules, without_frames
from pullback.tensor.watch._watch import Watch, refusal

__all__ = ["Refusals", "refused"]


class Refusals:
    """Collects a refusal, or what rules raise; a generator's context takes three times as long.

    Arguments:
        purpose: what is derived.
        call: of which application.
        watch: what the rules run under, which may know why.
    """

    def __init__(self, purpose: str, call: Call, watch: Watch | None = None) -> None:
        self._purpose, self._call, self._watch = purpose, call, watch
        self._found: list[UnsupportedError] = []

    def __enter__(self) -> list[UnsupportedError]:
        return self._found

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, UnsupportedError):
            self._found.append(error)
            return True
        if error is None or self._call.tentative or not is_of_rules(error):
            return False
        why = f"its rules, run where autograd sees them, raise {in_short(error)}"
        if self._watch is not None and self._watch.left is not None:
            why = self._watch.left
        self._found.append(refusal(self._purpose, self._call.definition.name, why))
        self._found[0].__cause__ = error
        return True


def refused(
    error: PullbackError,
    compute: Callable[[Sequence[Any]], Sequence[Any]],
    sources: Sequence[Any],
    call: Call,
) -> list[torch.Tensor | None]:
    """Values of sources, with an error in the place of their derivative.

    Arguments:
        error: what is raised.
        compute: takes the sources, below the transforms that differentiate them; gives tensors, or
            ``None`` where there is none.
        sources: tensors, or None.
        call: the application that the values are of.
    """
    given = [source for source in sources if source is not None]
    found: dict[str, Sequence[int]] = {}

    def run(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        following = iter(tensors)
        values = compute([None if s is None else next(following) for s in sources])
        found["places"] = [i for i, value in enumerate(values) if value is not None]
        found["count"] = range(len(values))
        return tuple(value.clone() for value in values if value is not None)

    results = _Refused.apply(without_frames(error), run, call, *given)
    values: list[torch.Tensor | None] = [None for _ in found["count"]]
    for place, result in zip(found["places"], results, strict=True):
        values[place] = result
    return values


class _Refused(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(error: PullbackError, run: Any, call: Call, *tensors: torch.Tensor) -> Any:
        if not are_functorch_transforms_active():
            return run(tensors)
        results = batched(run, call)(tensors)
        return share_batch(results, range(len(results)), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.error = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Never:
        raise without_frames(ctx.error)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Never:
        raise without_frames(ctx.error)


# Where compiled code breaks its graph, Dynamo would take these for functions of the program.
for _rule in (_Refused.forward, _Refused.backward, _Refused.jvp):
    never_compile(_rule)  # type: ignore[arg-type]
