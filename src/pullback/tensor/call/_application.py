"""`Application`: one application of a Function, with the tensors it has where it is derived.

Outside of transforms its context is torch's own node. The derivative of a gradient runs forward
again, so it needs every input. What the author saved is saved; the other inputs are kept aside
with their version, by a strong or a weak reference as the Function declares (``keep_inputs``).
First order never looks at them: it costs no memory that the author did not ask for where the
reference is weak, and an input that is changed in place afterwards is no error until a second
derivative is asked for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import graph_is_kept, version_of
from pullback.tensor.call._call import Call, Kept
from pullback.tensor.call._context import Context
from pullback.tensor.call._definition import Definition
from pullback.tensor.call._refusals import refuse_altered
from pullback.tensor.values import _random
from pullback.tensor.values._levels import are_batched
from pullback.tensor.values._structure import Template, flatten, of_tensors, unflatten
from pullback.tensor.watch._leniency import leniency
from pullback.tensor.watch._memory import Mutations
from pullback.tensor.watch._watch import watching

__all__ = [
    "Application",
    "Nested",
    "OnNode",
    "aside",
    "forget",
    "reclaim",
    "run",
    "run_in_batch",
    "running_on",
]


def aside(
    definition: Definition,
    tensors: Sequence[torch.Tensor],
    saved: Sequence[Any] | None,
    *,
    refused: bool = False,
    weak: bool = False,
) -> Kept:
    """Where each input is among the saved tensors; the others are kept aside.

    Where a second derivative is ``refused`` anyway, a later change is no error.
    """
    known = saved or ()
    kept: Kept = []
    for tensor in tensors:
        for place, other in enumerate(known):
            if other is tensor:
                kept.append(place)
                break
        else:
            version = -1 if refused else version_of(tensor)
            strong = not weak and definition.keep_inputs
            kept.append((tensor if strong else TensorWeakRef(tensor), version))
    return kept


def forget(kept: Kept) -> None:
    """Let inputs go that were kept aside, as backward lets saved tensors go."""
    for place, entry in enumerate(kept):
        if isinstance(entry, tuple) and isinstance(entry[0], torch.Tensor):
            kept[place] = (TensorWeakRef(entry[0]), entry[1])


def reclaim(definition: Definition, kept: Kept, saved: Sequence[Any]) -> dict[int, torch.Tensor]:
    """All inputs, by their place.

    Raises:
        UnsupportedError: one of them is gone, or was changed.
    """
    found = {}
    for place, entry in enumerate(kept):
        if isinstance(entry, int):
            found[place] = saved[entry]
            continue
        reference, version = entry
        tensor = reference if isinstance(reference, torch.Tensor) else reference()
        if tensor is None:
            raise UnsupportedError(
                f"A gradient of {definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one that it did not save is gone.",
                given=f"input tensor {place}",
                mend="Keep a reference to the input, or declare keep_inputs = True: "
                "complete(F, keep_inputs=True).",
            )
        if version >= 0 and version_of(tensor) != version:
            raise UnsupportedError(
                f"A gradient of {definition.name} that can be differentiated again "
                "(create_graph=True) needs all inputs, and one was changed in place since.",
                given=f"input tensor {place}",
                mend="Change a copy, or compute the gradient before.",
            )
        found[place] = tensor
    return found


class Application:
    """An application of which a `Call` tells what was kept where.

    Outside of transforms torch's own node holds this: see `pullback.tensor.engine._plain`.

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
        watch, written = watching(), Mutations(keeps_made=True)
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
