"""An application whose context is torch's own node."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import graph_is_kept, version_of
from pullback.tensor import _random
from pullback.tensor._application import Application
from pullback.tensor._call import Call
from pullback.tensor._definition import Definition
from pullback.tensor._kept import reclaim
from pullback.tensor._leniency import leniency
from pullback.tensor._levels import are_batched
from pullback.tensor._structure import Template, flatten, of_tensors, unflatten

__all__ = ["Nested", "OnNode", "run", "run_in_batch", "running_on"]


class _Thread(threading.local):
    running: "tuple[OnNode, ...]" = ()


_thread = _Thread()


def running_on(node: Any) -> "OnNode | None":
    """The application on a node whose rules this thread runs to differentiate them again."""
    running = _thread.running
    if running:  # as it seldom is, and each backward asks
        for application in reversed(running):
            if application.node is node:
                return application
    return None


class Nested:
    """Stands behind the tensors of a nested output, to give them their structure back."""

    __slots__ = ("single", "template")

    def __init__(self, template: Template, *, single: bool) -> None:
        self.template = template
        self.single = single

    def restore(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The output as forward returned it."""
        entries = unflatten(self.template, tensors)
        return entries[0] if self.single else entries


def run_in_batch(
    definition: Definition,
    ctx: Any,
    cotangents: Sequence[Any],
    run: Callable[[Definition, Any, Sequence[Any]], Any],
) -> Any:
    """Run a backward on cotangents that may be a batch of `is_grads_batched`."""
    if not are_batched(cotangents):
        return run(definition, ctx, cotangents)
    try:
        with leniency({}, name=definition.name):
            return run(definition, ctx, cotangents)
    except RuntimeError as error:
        if isinstance(error, PullbackError):
            raise
        raise UnsupportedError(
            f"The backward of {definition.name} cannot be batched by is_grads_batched: "
            f"{str(error).splitlines()[0]}",
            mend="Use torch.func.vmap, or take one gradient at a time.",
        ) from error


def run(definition: Definition, ctx: Any, cotangents: Sequence[Any]) -> Any:
    """Run the author's backward on torch's context."""
    call, given = ctx.__pullback__, cotangents
    if call.nested:
        given = unflatten(call.result, cotangents[:-1], None)
    watched = running_on(ctx) is not None
    return call.run_backward(definition.backward, ctx, cotangents, given, watched=watched)


class OnNode(Application):
    """An application whose context is torch's own node, which other threads may be running, too.

    Arguments:
        call: the application.
        ctx: the node.
        cotangents: as torch gives them to it.
        read: the saved tensors.
    """

    def __init__(
        self, call: Call, ctx: Any, cotangents: Sequence[Any], read: Sequence[torch.Tensor | None]
    ) -> None:
        self.node, self.call, self.read = ctx, call, tuple(read)
        last = cotangents[:-1] if call.nested else cotangents
        mixed = not call.nested and len(call.result[0]) == len(last)
        every = range(len(last))
        self._places = of_tensors(call.result, every) if mixed else every  # of the output tensors
        self._cotangents = cotangents
        self.given = [last[i] for i in self._places]

    def __enter__(self) -> None:
        """Let rules that run on the node in this thread read what was read here."""
        _thread.running = (*_thread.running, self)

    def __exit__(self, *_: object) -> None:
        _thread.running = _thread.running[:-1]

    def pull(self, cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
        """Run the author's backward on what forward kept."""
        every = list(self._cotangents)
        for i, cotangent in zip(self._places, cotangents, strict=True):
            every[i] = cotangent
        return self.call.matched(run(self.call.definition, self.node, every))

    def at(self, saved: Sequence[torch.Tensor | None]) -> Application:
        """The same: a node is of one level."""
        return self

    def answers(self) -> dict[int, bool]:
        """Nothing: tensors answer themselves."""
        return {}

    def saved(self) -> list[torch.Tensor]:
        """The tensors that were saved, the inputs that were kept aside, the outputs still there."""
        found = list(self.read)
        found += [_behind(entry[0]) for entry in self.call.kept if isinstance(entry, tuple)]
        found += [reference() for reference, _ in self.call.returned]
        return [tensor for tensor in found if tensor is not None]

    def known(self) -> list[torch.Tensor]:
        """The inputs and outputs, as far as they are there: all whose history is known."""
        kept = [self.read[k] if isinstance(k, int) else _behind(k[0]) for k in self.call.kept]
        found = [*kept, *filter(self._gave, self.saved())]
        return [tensor for tensor in found if tensor is not None]

    def inputs(self) -> list[torch.Tensor]:
        """The inputs, with their history."""
        found = reclaim(self.call.definition, self.call.kept, self.read)
        return list(found.values())

    def reaches_inputs(self) -> bool:
        """Whether the tensors that are left have a history that leads to each input."""
        if any(map(self._gave, self.saved())):
            return True
        kept = zip(self.call.kept, self.call.needs, strict=True)
        held = (isinstance(k, int) or _behind(k[0]) is not None for k, need in kept if need)
        return all(held)

    def outputs(self) -> list[Any]:
        """The outputs as they were returned, or those of one more application.

        The node holds none that its author did not save. One without a derivative may be None.
        """
        there = [ref() for ref, version in self.call.returned if version_of(ref()) == version]
        found = {t.output_nr: t for t in (*self.read, *there) if t is not None and self._gave(t)}
        flowing = [i for i in range(self.call.count) if i not in self.call.non_differentiable]
        if all(self._places[i] in found for i in flowing) and graph_is_kept():
            return [found.get(place) for place in self._places]
        with _random.replaying(self.call.generators):
            output = self.call.enter(self.call, self.inputs())
        if type(output) is tuple and output and type(output[-1]) is Nested:
            return list(output[:-1])
        return flatten(self.call.entries(output))[1]

    def _gave(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is an output."""
        return tensor.grad_fn is self.node

    def attributes(self) -> dict[str, Any]:
        """What the context has now, that its author has put there."""
        return {name: v for name, v in self.node.__dict__.items() if name != "__pullback__"}


def _behind(reference: Any) -> Any:
    return reference if isinstance(reference, torch.Tensor) else reference()
