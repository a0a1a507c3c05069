"""The author's own pair, forward and then backward, run again where autograd sees it.

    P(x, g) = backward(forward(x), g)

Forward is run on a fresh context, and backward reads that context: whatever forward keeps, in
whatever object, reaches backward with its history, or was refused on the way
(`pullback.tensor._retrace`).

What is right is the derivative of the pair as a map of numbers. There are three ways to it:

- ``"rules"``: the operations that the two run, and of Functions that they apply the rules.
- ``"operations"``: those Functions are seen through. The rules of one whose backward is no
  derivative, as on a Lie group, do not say how its values change.
- ``"outputs"``: forward is not seen at all. An output changes as backward itself says, as that of
  an iteration or of a kernel without a derivative does, where backward is the derivative.

The first is taken. Where an audit finds that it disagrees with finite differences, or that it
cannot be run, it tries the others, and one that agrees serves (`pullback.tensor._audit`).
"""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import custom_function_call, pytree
from pullback.tensor._autocast import scope
from pullback.tensor._call import Call, differentiable
from pullback.tensor._context import Context
from pullback.tensor._definition import Definition
from pullback.tensor._leniency import complete_inner
from pullback.tensor._levels import is_freed
from pullback.tensor._made import Made
from pullback.tensor._places import Places
from pullback.tensor._preserve import preserved
from pullback.tensor._random import replaying
from pullback.tensor._reach import codes
from pullback.tensor._retrace import MEND, Encoded, Retrace, suspended
from pullback.tensor._structure import flatten, is_data, is_hole

__all__ = ["engines", "forward_again", "gradient_again"]

Tensors = Sequence[torch.Tensor | None]
# The engine of each definition; set where it is made.
engines: weakref.WeakKeyDictionary[Definition, Any] = weakref.WeakKeyDictionary()


def gradient_again(
    call: Call, purpose: str, inputs: Sequence[torch.Tensor], cotangents: Tensors, needs: Any
) -> list[torch.Tensor | None]:
    """Run forward and backward on tracked inputs and cotangents."""
    name = call.definition.name
    flags: dict[int, bool] = {}
    through = call.follows == "operations"
    retrace = Retrace(name, purpose, MEND, (*inputs, *cotangents), flags, through=through)
    with preserved(call.definition), complete_inner():
        context, outputs = forward_again(call, inputs, retrace)
        with retrace:
            given = fill_in(call, cotangents, outputs)
            Context.declared(context).needs = needs
            gradients = call.backward(call.definition.transposable, context, given)
        return retrace.confirm(gradients, "what backward returns")


def forward_again(
    call: Call, inputs: Sequence[torch.Tensor], mode: Retrace
) -> tuple[Context, list[torch.Tensor]]:
    """Run forward again, seen through where it can be; gives its context and its outputs."""
    if any(map(is_freed, inputs)):
        raise mode.refuse("forward frees the memory of an input")
    if call.follows == "outputs":
        return _forward_unseen(call, inputs, mode, None)
    try:
        with mode:
            return _forward_seen(call, inputs, mode)
    except UnsupportedError as error:
        encoded = error if isinstance(error, Encoded) and not call.agreed else None
        return _forward_unseen(call, inputs, mode, encoded)


def _forward_unseen(
    call: Call,
    inputs: Sequence[torch.Tensor],
    mode: Retrace,
    encoded: UnsupportedError | None,
) -> tuple[Context, list[torch.Tensor]]:
    """Apply the Function itself where its forward leaves torch; gives its context and outputs.

    Then an input is tracked, an output has the history that the author's own backward gives it,
    and whatever else forward computed of them and kept is refused as soon as backward uses it. A
    number that it keeps must be one of its arguments.
    """
    definition = call.definition
    inputs = [tensor.clone() for tensor in inputs]  # since forward may change them in place
    twin = _Watched(
        definition, call.template, call.names, call.needs, call.autocast, transformed=True
    )
    twin.watch = made = Made()
    with suspended(), replaying(call.generators), scope(call.autocast):
        results = custom_function_call(engines[definition], twin, *inputs)
    twin.watch = None  # the graph keeps the application
    if encoded is not None and not all(differentiable(t.dtype) for t in results):
        raise encoded  # integers that forward kept may be the bits that it has read
    twin.agreed = call.agreed
    _refuse_values(twin, mode)
    saved = dict(enumerate((*inputs, *results)))
    kept = zip(results[twin.count :], twin.found.kept(), strict=True)
    unseen = [t for t, inside in kept if _floats(t) and not made.is_constant(inside)]
    del twin.found
    unseen += [results[i] for i in twin.non_differentiable if results[i].is_floating_point()]
    mode.forbidden = {id(tensor): tensor for tensor in unseen}
    mode.forbidden |= {id(t): t for t in made.tensors if not any(t is r for r in results)}
    mode.flags.update(zip(map(id, inputs), call.needs, strict=True))
    context = twin.context(saved, call.needs)
    mode.kept = [*inputs, *results]
    return context, list(results[: twin.count])


class _Watched(Call):
    """An application whose forward is watched: a mode around it would be off in its rules."""

    __slots__ = ("found", "watch")
    found: Places  # of the last run
    watch: Made | None

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[Context, Any]:
        """Run the author's forward; returns its context and what it returned."""
        with self.watch or contextlib.nullcontext():
            return super().forward(tensors)

    def places(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Places:
        """Where the tensors that forward kept come from."""
        self.found = super().places(tensors, outputs)
        return self.found


def _floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and differentiable(value.dtype)


def _refuse_values(call: Call, mode: Retrace) -> None:
    """Refuse values on the context that forward may have computed outside of torch.

    Whole numbers and flags change in steps, and so do texts; but a text may spell a number, so
    that one is refused, unless it was measured, that neither an argument nor the code has.
    """
    given = [hole for hole in call.template[0] if not is_hole(hole)]
    for value in (call.attributes or {}).values():
        if any(value is one or value is type(one) for one in given):
            continue
        if isinstance(value, float) and any(
            isinstance(one, (int, float)) and one == value for one in given
        ):
            continue
        known = is_data(value) and not _has_floats(value)
        if not known or not (call.agreed or _texts(value) <= _written(call, given)):
            raise mode.refuse("forward leaves torch and keeps a value on the context")


def _texts(value: Any) -> set[Any]:
    return {leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, (str, bytes))}


def _written(call: Call, given: Any) -> set[Any]:
    """The texts that are arguments, or stand in the code of the rules."""
    rules = (call.definition.forward, call.definition.setup_context)
    parts = [part for rule in rules if hasattr(rule, "__code__") for part in codes(rule.__code__)]  # type: ignore[union-attr]
    return _texts([*given, *(list(part.co_consts) for part in parts)])


def _has_floats(value: Any) -> bool:
    return any(isinstance(leaf, (float, complex)) for leaf in pytree.tree_leaves(value))


def _forward_seen(
    call: Call, inputs: Sequence[torch.Tensor], mode: Retrace
) -> tuple[Context, list[torch.Tensor]]:
    """Run forward on copies of the inputs; returns its context and its outputs."""
    # Copies, since forward may change them in place.
    copies = [tensor.clone() for tensor in inputs]
    mode.flags.update(zip(map(id, copies), call.needs, strict=True))
    mode.kept = copies
    with replaying(call.generators), scope(call.autocast):
        context, output = call.forward(copies)
    single = not isinstance(output, tuple) or hasattr(output, "_fields")
    _, outputs = flatten((output,) if single else output)
    flowing = any(call.needs)
    mode.flags.update((id(t), flowing) for t in outputs if id(t) not in mode.flags)
    mode.kept = [*copies, *outputs]
    return context, outputs


def fill_in(call: Call, cotangents: Tensors, outputs: Tensors) -> Tensors:
    """Put zeros where a cotangent is undefined, if the author wants them."""
    if not call.materialize:
        return cotangents
    return [
        torch.zeros_like(output)
        if cotangent is None and output is not None and differentiable(output.dtype)
        else cotangent
        for cotangent, output in zip(cotangents, outputs, strict=True)
    ]
