"""The derivative of a gradient: backward, run where autograd sees it.

A gradient is a map of the inputs and the cotangents,

    P(x, g) = backward(forward(x), g),

and its derivative is what autograd finds when the rules run with gradients on, if they hide
nothing. There are three kinds of call:

- *plain*: all tensors that can reach backward are inputs, outputs that are differentiated, or
  masks, which have no derivative. Then backward runs once, on the saved tensors, as torch runs it
  (`Watch` looks for cuts).
- *residual*: forward kept something else that it has computed. Unless backward reads it in steps
  alone (``q.abs() <= 6``) or as indices, forward runs again, so that it has a history, and backward
  runs on it.
  An output is the one that was returned, with the history that the author's own rule gives it.
- *opaque*: the rules leave torch. The gradient is what it is, and its derivative is refused.

Nothing is remembered from one call to another. The derivative lies in the graph that autograd makes
of the rules, so that a parameter that is no argument keeps its share, and a third derivative is
that of the graph.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal._generators import rewind_shared
from pullback.internal.torch import is_raised_by_tracing
from pullback.tensor.call._application import Application
from pullback.tensor.call._call import Call
from pullback.tensor.call._context import Context
from pullback.tensor.rules._batching import gradients_by_item
from pullback.tensor.rules._refused import Refusals, refused
from pullback.tensor.values import _random
from pullback.tensor.values._autocast import scope
from pullback.tensor.values._compare import agree, equals_one_of
from pullback.tensor.values._errors import Raised, named
from pullback.tensor.values._functions import Retaining
from pullback.tensor.values._levels import apart, is_differentiable, is_freed
from pullback.tensor.values._places import refuse_values
from pullback.tensor.values._structure import flatten, is_mask, replaced, unflatten
from pullback.tensor.watch._leniency import complete_inner, leniency
from pullback.tensor.watch._memory import Allocations
from pullback.tensor.watch._watch import MEND, Outside, Watch, refusal

__all__ = [
    "confirm_forward",
    "connected",
    "differentiable_gradient",
    "refuse_remembered",
    "running_again",
    "with_gradients",
]

Tensors = Sequence[torch.Tensor | None]
_PURPOSE = "The second derivative"


def differentiable_gradient(
    application: Application, cotangents: Tensors, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients, with a history; where that cannot be, an error in place of a derivative.

    Arguments:
        application: of the Function.
        cotangents: one for each output, or None.
        needs: for each input, whether its gradient is wanted.
    """

    def compute(given: Tensors) -> list[torch.Tensor | None]:
        return with_gradients(_differentiable, application, given, needs)

    return gradients_by_item(compute, cotangents)


def with_gradients(
    compute: Callable[..., list[torch.Tensor | None]], *args: Any
) -> list[torch.Tensor | None]:
    """Run rules with gradients on: an author's ``no_grad`` stops a gradient, and shows so alone.

    Where they were off, as ``torch.no_grad`` around forward over reverse has them, the results get
    no history, and keep their tangents.
    """
    if torch.is_grad_enabled():
        return compute(*args)
    with torch.enable_grad():
        results = compute(*args)
    return [t.clone() if t is not None and t.requires_grad else t for t in results]


def _differentiable(
    application: Application, cotangents: Tensors, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    call = application.call
    values: list[torch.Tensor | None] | None = None
    error = _declared(call)
    if error is None and call.seen:
        given = [*(application.saved() if call.plain else application.known()), *cotangents]
        # Of a call that keeps integers beside, others may be the bits of what forward has computed.
        unknown = is_differentiable if call.plain else _is_no_mask
        watch = Watch(given, detaches=call.definition.detaches, cuts_unknown=unknown)
        watch.answers = application.answers()
        try:
            with Refusals(_PURPOSE, call, watch) as failed:
                try:
                    with complete_inner(), watch:
                        values = application.pull(cotangents)
                finally:
                    watch.write()
                values, error = _whole(call, watch, values, needs)
                if error is None:
                    return values
                values = apart(values)
            error = failed[0] if failed else error
        except Outside:
            values = None
        if not call.plain or watch.unknown:  # what forward has computed may have a history
            error = None
    if values is None:
        try:
            values = _values(application, cotangents)
        except Exception as raised:
            # What was kept beside the saved tensors may belong to a level that has ended, and what
            # leaves torch cannot run on the tensors of a level.
            if not call.transformed or is_raised_by_tracing(raised):
                raise
    if error is None:
        with Refusals(_PURPOSE, call) as failed:
            return _again(application, cotangents, needs, values)
        error = failed[0]
    return _refused(application, error, cotangents, values)


def _is_no_mask(tensor: torch.Tensor) -> bool:
    return not is_mask(tensor)


def _refused(
    application: Application, error: UnsupportedError, cotangents: Tensors, values: Tensors | None
) -> list[torch.Tensor | None]:
    """The gradients, with an error in the place of their derivative.

    Below a transform backward runs on tensors that no level differentiates; elsewhere it has run.
    """
    if not application.reaches_inputs():
        raise error  # a derivative would not pass here, and be without this part in silence
    saved = application.saved()

    def compute(tensors: Sequence[Any]) -> Sequence[Any]:
        if values is not None and not application.call.transformed:
            return values
        kept, given = tensors[: len(saved)], tensors[len(saved) :]
        return _values(application.at(kept), given)

    try:
        return refused(error, compute, [*saved, *cotangents], application.call)
    except Exception as raised:
        if isinstance(raised, PullbackError) or is_raised_by_tracing(raised):
            raise
        raise Raised(error.what, mend=error.mend) from raised


def _values(application: Application, cotangents: Tensors) -> list[torch.Tensor | None]:
    """The gradients without a history."""
    with torch.no_grad(), Retaining():  # it runs again if the derivative is asked for
        return apart(application.pull(apart(cotangents)))


def _declared(call: Call) -> UnsupportedError | None:
    if call.definition.once:
        return call.once_refusal
    if call.dirty:
        return UnsupportedError(
            f"{_PURPOSE} of {call.definition.name} needs the input that it has changed in place.",
            mend="Compute out of place where a second derivative is wanted.",
        )
    return None


def _whole(
    call: Call, watch: Watch, gradients: Tensors, needs: Sequence[bool]
) -> tuple[list[torch.Tensor | None], UnsupportedError | None]:
    """The gradients with their history, and the refusal if one that is wanted has lost a part."""
    found, error = list(gradients), None
    for i, (gradient, need) in enumerate(zip(gradients, needs, strict=True)):
        if gradient is not None and need:
            found[i], why = watch.whole(gradient)
            if why is not None and error is None:
                error = refusal(_PURPOSE, call.definition.name, why)
    return found, error


def _again(
    application: Application,
    cotangents: Tensors,
    needs: Sequence[bool],
    values: Tensors | None,
) -> list[torch.Tensor | None]:
    """Run forward and backward again, where autograd sees them."""
    call, inputs = application.call, application.inputs()
    with running_again(call, (*inputs, *cotangents), _PURPOSE) as watch:
        context = connected(application, inputs, watch)
        context.needs_input_grad = call.by_argument(needs)
        given = fill_in(call, cotangents, application)
        watch.give(given)
        with watch:
            gradients = call.backward(call.definition.transposable, context, given)
        gradients, error = _whole(call, watch, gradients, needs)
    if error is not None:
        raise error
    values = apart(gradients) if values is None else values
    _confirm(application, watch, values, gradients)
    if watch.doubtful:
        confirm_forward(
            application, inputs, cotangents, needs=needs, values=values, met=watch.dtypes
        )
    return gradients


@contextmanager
def running_again(
    call: Call, given: Tensors, purpose: str, *, detaches: bool | None = None
) -> Iterator[Watch]:
    """Run rules a second time, with the numbers that were drawn, and leave no trace.

    Yields:
        What the rules run under.
    """
    if any(tensor is not None and is_freed(tensor) for tensor in given):
        raise refusal(purpose, call.definition.name, "forward frees the memory of an input")
    detaches = call.definition.detaches if detaches is None else detaches
    undo = rewind_shared()
    generators = call.generators or _random.states(given)
    try:
        with (
            leniency({}, name=call.definition.name),
            _random.replaying(generators),
            Allocations() as allocated,
        ):
            watch = Watch(given, allocated=allocated.storages, detaches=detaches)
            try:
                yield watch
            finally:
                watch.write()  # whatever comes of it: the rules that run next may read it
    finally:
        for step in undo:
            step()


def connected(application: Application, inputs: Sequence[torch.Tensor], watch: Watch) -> Context:
    """Run forward again; gives a context on which all that forward computed has a history."""
    call = application.call
    # Copies, since forward may change them in place.
    copies = [x.clone() if is_differentiable(x) else x for x in inputs]
    watch.give(copies)
    if call.transformed:
        watch.answers.update(zip(map(id, copies), call.needs, strict=True))
    with watch.forward(), scope(call.autocast):
        values = unflatten(call.template, copies)
        context, output = call.forward(values, lambda output: _returned(application, output, watch))
    _, outputs = flatten(call.entries(output))
    # One that has no derivative vouches for nothing that forward has computed it by.
    watch.doubt([y for i, y in enumerate(outputs) if i not in call.non_differentiable])
    if call.transformed:
        watch.answers.update((id(output), any(call.needs)) for output in outputs)
    places = {id(output): i for i, output in enumerate(outputs) if i not in call.non_differentiable}
    known: list[torch.Tensor] = []

    def as_returned(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in places:
            return tensor
        if not known:
            known.extend(application.outputs())
            watch.give(known)
            watch.answers.update(application.answers())
        return known[places[id(tensor)]]

    context.saved_tensors = replaced(context.to_save, as_returned)
    context.saved_for_forward = replaced(context.saved_for_forward, as_returned)
    for name, value in list(context.__dict__.items()):
        context.__dict__[name] = replaced(value, as_returned)
    if watch.left_in_forward is not None:
        refuse_values(call, context.__dict__, watch.left_in_forward, _PURPOSE)
    if watch.outputs_left:
        what = "what forward has computed of its output leaves torch"
        raise refusal(_PURPOSE, call.definition.name, what)
    for name, value in application.attributes().items():  # put there since
        context.__dict__.setdefault(name, value)
    return context


def _returned(application: Application, output: Any, watch: Watch) -> Any:
    """What `setup_context` is given: the outputs that were returned, as far as they flow."""
    call = application.call
    entries = call.entries(output)
    template, computed = flatten(entries)
    watch.doubt(computed)
    with watch.pause():
        outputs = application.outputs()
    watch.give(outputs)
    for i in call.non_differentiable:
        outputs[i] = watch.current(computed[i])
    found = unflatten(template, outputs)
    return found[0] if call.single else found


def fill_in(call: Call, cotangents: Tensors, application: Application) -> Tensors:
    """Put zeros where a cotangent is undefined, if the author wants them."""
    if not call.materialize or all(cotangent is not None for cotangent in cotangents):
        return cotangents
    outputs = application.outputs()
    return [
        torch.zeros_like(output) if c is None and is_differentiable(output) else c
        for c, output in zip(cotangents, outputs, strict=True)
    ]


def _confirm(application: Application, watch: Watch, values: Tensors, gradients: Tensors) -> None:
    """Refuse where the rules give another result when they run again."""
    name = application.call.definition.name
    what = "its rules give another result when they run again"
    pattern = [value is None for value in values] == [g is None for g in gradients]
    if not pattern or not agree(gradients, values):
        raise refusal(_PURPOSE, name, what)
    refuse_remembered(watch, name, _PURPOSE)


def refuse_remembered(watch: Watch, name: str, purpose: str) -> None:
    """Refuse a tensor outside that is equal to one that forward has computed again."""
    if equals_one_of(watch.outside, watch.computed()):
        what = "a rule reads a tensor outside of its context that an earlier forward has kept"
        raise refusal(purpose, name, what)


def confirm_forward(
    application: Application,
    inputs: Sequence[torch.Tensor],
    cotangents: Tensors,
    *,
    needs: Sequence[bool],
    values: Tensors,
    met: Iterable[torch.dtype],
) -> None:
    """Refuse where forward, seen by autograd, has another gradient than the author's backward.

    What backward uses was computed of an output, or by another Function. Its history is that of the
    operations of forward. They say how it changes if they say, of the same cotangent, what backward
    says; an iteration, or a Function whose gradient is no derivative, does not.
    """
    call = application.call
    flowing = [
        i for i, c in enumerate(cotangents) if c is not None and i not in call.non_differentiable
    ]
    live = [i for i, need in enumerate(needs) if need]

    def forward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled: list[Any] = [x.clone() if is_differentiable(x) else x for x in inputs]
        for i, tensor in zip(live, given, strict=True):
            filled[i] = tensor.clone()
        watch.give(filled)
        with watch.forward():
            _, output = call.forward(unflatten(call.template, filled))
        _, outputs = flatten(call.entries(output))
        return tuple(watch.current(outputs[i]) for i in flowing)

    with (
        named(f"{_PURPOSE} of {call.definition.name} cannot be derived", MEND),
        running_again(call, (*inputs, *cotangents), _PURPOSE) as watch,
        scope(call.autocast),
    ):
        pull: Callable[..., Any] = torch.func.vjp(forward, *(inputs[i] for i in live))[1]
        found = pull(tuple(cotangents[i] for i in flowing))
    wanted = [_summed(values[i], inputs[i]) for i in live]
    if not agree(found, wanted, met=met, needed=True):
        what = (
            "backward uses what forward has computed of an output, or by another Function, and "
            "the operations of forward have another derivative than backward says"
        )
        raise refusal(_PURPOSE, call.definition.name, what)


def _summed(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """A gradient in the shape of its input, as autograd sums it."""
    if gradient is None:
        return torch.zeros_like(like)
    return gradient if gradient.shape == like.shape else gradient.sum_to_size(like.shape)
