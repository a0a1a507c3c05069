"""`Application`: one application of a Function, with the tensors it has where it is derived."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from pullback.tensor import _random
from pullback.tensor._call import Call
from pullback.tensor._context import Context
from pullback.tensor._items import refuse_altered
from pullback.tensor._structure import unflatten
from pullback.tensor._watch import watching
from pullback.tensor._written import Written

__all__ = ["Application"]


class Application:
    """An application of which a `Call` tells what was kept where.

    Outside of transforms torch's own node holds this: see `pullback.tensor._plain`.

    Arguments:
        call: the application.
        kept: by their places the inputs, and what else was kept.
        needs: for each input, whether its gradient is wanted.
    """

    def __init__(
        self, call: Call, kept: dict[int, Any], needs: Sequence[bool] | None = None
    ) -> None:
        self.call = call
        self.kept = kept
        self._needs = call.needs if needs is None else needs

    def pull(self, cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
        """Run the author's backward on what forward kept."""
        with self.forward_before():
            return self.call.pull(self.kept, cotangents, self._needs)

    @contextmanager
    def forward_before(self) -> Iterator[None]:
        """Run forward right before backward, where the items of a batch run one after the other.

        What it writes outside of its context is of this item then; of tensors that is put back at
        the end. It is not watched: what it computes has no history, and is no constant.
        """
        if not self.call.looped:
            yield
            return
        watch, written = watching(), Written(keeps_made=True)
        try:
            unwatched = nullcontext() if watch is None else watch.pause()
            with unwatched, torch.no_grad(), _random.replaying(self.call.generators), written:
                copies = [x.clone() for x in self.inputs()]
                context, _ = self.call.forward(unflatten(self.call.template, copies))
            refuse_altered(self.call, context)
            yield
        finally:
            written.put_back()

    def at(self, saved: Sequence[torch.Tensor | None]) -> "Application":
        """The same application, with the saved tensors of another level."""
        return Application(self.call, dict(zip(self.kept, saved, strict=True)), self._needs)

    def saved(self) -> list[torch.Tensor]:
        """The tensors that were saved."""
        return list(self.kept.values())

    def known(self) -> list[torch.Tensor]:
        """The inputs and outputs, as far as they are there: all whose history is known."""
        flowing = (i for i in range(self.call.count) if i not in self.call.non_differentiable)
        first = len(self.call.needs)
        places = (*range(first), *(first + i for i in flowing))
        return [self.kept[place] for place in places if place in self.kept]

    def inputs(self) -> list[torch.Tensor]:
        """The inputs, with their history.

        Raises:
            UnsupportedError: one is gone, or was changed.
        """
        return [self.kept[i] for i in range(len(self.call.needs))]

    def reaches_inputs(self) -> bool:
        """Whether the tensors that are left have a history that leads to each input."""
        return True

    def outputs(self) -> list[torch.Tensor]:
        """The outputs, with the history that the author's rule gives them."""
        first = len(self.call.needs)
        return [self.kept[first + i] for i in range(self.call.count)]

    def answers(self) -> dict[int, bool]:
        """What tensors, by id, are to answer when asked whether they require a gradient."""
        return self.call.answers(self.kept)

    def attributes(self) -> dict[str, Any]:
        """What the context has now, that its author has put there since."""
        return {}

    def context(self, tangents: Sequence[Any]) -> Context:
        """The context of forward again, for tangents of some inputs."""
        needs = [tangent is not None for tangent in tangents]
        return self.call.context(
            self.kept, needs, forward_mode=self.call.definition.jvp is not None
        )
