"""Derive the tangent of a Function from its backward, by transposition.

The backward at a point is a linear map ``b(w) = J' w`` from cotangents to gradients. Its transpose
is the derivative: because ``b`` is linear, its own vector-Jacobian product at any cotangent ``w``
with a tangent ``v`` is ``J v``. It is the transpose of the rule *as written*, which is what a
surrogate gradient asks for too.

That ``b`` is linear is shown in the same call, where values are at hand: at a cotangent ``w`` with
large and small entries

    <w, J v> = <b(w), v>,    <u, J v> = <b(u), v>    and    b(-2 w) = -2 b(w)

for another one ``u``. The first two hold to rounding. The last holds to the last bits in any
dtype, since a factor of two commutes with rounding; so it tells a map that is not linear also where
a coarse dtype hides the difference from the others.

What is computed is the value that autograd and forward mode differentiate in turn, if forward and
backward hide nothing (`pullback.tensor.rules._second_order`).

Source: Radul et al., "You Only Linearize Once" (2022), read in the other direction; the double
transposition is J. Townsend, "A new trick for calculating Jacobian vector products" (2017).
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pullback.errors import DefinitionError, UnsupportedError
from pullback.internal.torch import set_forward_mode
from pullback.tensor.call._application import Application
from pullback.tensor.call._call import Call, Meta, zeros
from pullback.tensor.call._context import Context
from pullback.tensor.rules._batching import batched
from pullback.tensor.rules._refused import refused
from pullback.tensor.rules._second_order import (
    confirm_forward,
    connected,
    refuse_remembered,
    running_again,
    with_gradients,
)
from pullback.tensor.values._autocast import scope
from pullback.tensor.values._compare import inner, size_of
from pullback.tensor.values._errors import Raised, named
from pullback.tensor.values._levels import (
    apart,
    are_differentiated_below,
    concrete,
    is_coarse,
    is_freed,
    primal,
    vjp,
)
from pullback.tensor.values._structure import children, match, unflatten
from pullback.tensor.watch._memory import Allocations
from pullback.tensor.watch._watch import Outside, Watch, refusal

__all__ = ["push"]

Tangents = Sequence[torch.Tensor | None]
_PURPOSE = "Forward mode"
_BEYOND = "The derivative of a tangent"
_MEND = "Write jvp(ctx, *tangents), or write backward in torch operations."


def push(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[torch.Tensor | None]:
    """The tangents of the outputs for tangents of the inputs."""
    definition = call.definition
    if call.dirty:
        return _push_in_place(call, saved, tangents)
    if definition.jvp is None and definition.gradient == "nonlinear":
        raise UnsupportedError(
            f"Forward mode of {definition.name} is refused: its backward is declared nonlinear, so "
            "it has no transpose.",
            mend="Write jvp(ctx, *tangents).",
        )
    if len(call.non_differentiable) == call.count or all(t is None for t in tangents):
        return [None] * call.count
    if any(map(is_freed, saved.values())):
        raise UnsupportedError(
            f"Forward mode of {definition.name} is refused: forward frees the memory of an input.",
            mend="Write jvp(ctx, *tangents), or keep the memory.",
        )
    # torch runs jvp with forward gradients switched off, which makes nested forward mode silently
    # zero. They are on here, so this level's own tangents are taken off first: item by item, the
    # rules run below this level, where the innermost tangents are another one's.
    with set_forward_mode(True):
        saved = {place: primal(tensor) for place, tensor in saved.items()}
        beyond = are_differentiated_below([*saved.values(), *tangents])

    def run(kept: dict[int, Any], tangents: Tangents) -> list[torch.Tensor | None]:
        application = Application(call, kept)
        with set_forward_mode(True), torch.set_grad_enabled(call.grad_enabled):
            if beyond:
                return with_gradients(lambda: _push_beyond(application, tangents))
            return _push_once(application, tangents)

    return list(batched(run, call)(saved, tangents))


def _push_once(application: Application, tangents: Tangents) -> list[torch.Tensor | None]:
    """The tangents, where nobody differentiates them: what else is read is a constant."""
    given = [*application.kept.values(), *tangents]
    name = application.call.definition.name
    try:
        with contextlib.ExitStack() as stack:
            with named(f"{_PURPOSE} of {name} cannot be derived", _MEND):
                stack.enter_context(application.forward_before())
            valued = all(t is None or concrete(t) is not None for t in given)
            allocated = None if valued else stack.enter_context(Allocations())
            made = None if allocated is None else allocated.storages
            watch = Watch(given, outside=True, made=made, detaches=False)
            return _compute(application, application.context(tangents), tangents, watch)
    except Raised:  # what was kept beside the saved tensors may belong to a level that has ended
        return _push_again(application, tangents, detaches=False)


def _push_beyond(application: Application, tangents: Tangents) -> list[torch.Tensor | None]:
    """The tangents, where they can be differentiated in turn."""
    call = application.call
    given = [*application.kept.values(), *tangents]
    try:
        if call.definition.once:
            raise call.once_refusal
        if call.plain:
            with contextlib.suppress(Outside):
                context = application.context(tangents)
                watch = Watch(given, detaches=call.definition.detaches)
                return _compute(application, context, tangents, watch)
        return _push_again(application, tangents, detaches=call.definition.detaches)
    except UnsupportedError as error:
        if call.tentative and isinstance(error, Raised):
            raise
        count = len(application.kept)

        def compute(tensors: Sequence[Any]) -> Sequence[Any]:
            return _push_once(application.at(apart(tensors[:count])), apart(tensors[count:]))

        return refused(error, compute, given, call)


def _push_again(
    application: Application, tangents: Tangents, *, detaches: bool
) -> list[torch.Tensor | None]:
    """The tangents, with what forward computes when it runs again."""
    call, inputs = application.call, application.inputs()
    with running_again(call, [*inputs, *tangents], _BEYOND, detaches=detaches) as watch:
        with named(f"{_BEYOND} of {call.definition.name} cannot be derived", _MEND):
            context = connected(application, inputs, watch)
        context.needs_input_grad = call.by_argument([t is not None for t in tangents])
        if call.definition.jvp is not None and context.saved_for_forward:
            context.saved_tensors = context.saved_for_forward
        found = _compute(application, context, tangents, watch)
    refuse_remembered(watch, call.definition.name, _BEYOND)
    if watch.doubtful:
        with named(f"{_BEYOND} of {call.definition.name} cannot be derived", _MEND):
            cotangents, needs, values = _pulled(application, tangents)
        confirm_forward(
            application, inputs, cotangents, needs=needs, values=values, met=watch.dtypes
        )
    return found


def _pulled(
    application: Application, tangents: Tangents
) -> tuple[list[Any], list[bool], list[Any]]:
    """Cotangents, for which inputs a gradient is wanted, and these gradients."""
    call = application.call
    probes = [
        None if i in call.non_differentiable else _probe(meta)
        for i, meta in enumerate(call.outputs)
    ]
    needs = [tangent is not None for tangent in tangents]
    kept = dict(zip(application.kept, apart(application.kept.values()), strict=True))
    return probes, needs, Application(call, kept, needs).pull(probes)


def _compute(
    application: Application, context: Context, tangents: Tangents, watch: Watch
) -> list[torch.Tensor | None]:
    call = application.call
    watch.answers.update(application.answers())
    if call.definition.jvp is None:
        try:
            with named(f"{_PURPOSE} of {call.definition.name} cannot be derived", _MEND):
                return _transpose(call, context, tangents, watch)
        except Raised as error:
            if watch.left is not None:
                raise refusal(_PURPOSE, call.definition.name, watch.left) from error
            raise
    with watch, scope(call.autocast):
        found = _tangents(call, context, tangents)
    for i, tangent in enumerate(found):
        if tangent is not None:
            found[i], why = watch.whole(tangent)
            if why is not None:
                raise refusal(_BEYOND, call.definition.name, why)
    return found


def _push_in_place(call: Call, saved: dict[int, Any], tangents: Tangents) -> list[Any]:
    if call.definition.jvp is None:
        raise UnsupportedError(
            f"Forward mode of {call.definition.name} is refused: it changes an input in place.",
            mend="Compute out of place where a tangent is wanted, or write jvp(ctx, *tangents).",
        )
    with torch.set_grad_enabled(call.grad_enabled), scope(call.autocast):
        return _tangents(call, Application(call, saved).context(tangents), tangents)


def _tangents(call: Call, context: Context, tangents: Tangents) -> list[Any]:
    """Run the author's jvp."""
    definition = call.definition
    given = [
        zeros(meta) if tangent is None and call.materialize else tangent
        for tangent, meta in zip(tangents, call.inputs, strict=True)
    ]
    arguments = unflatten(call.template, given, None)
    result = definition.jvp(context, *arguments)  # type: ignore[misc]
    entries = (result,) if call.single or not isinstance(result, tuple) else result
    holes, spec = call.result
    if len(entries) != len(holes if spec is None else children(spec)):
        raise DefinitionError(
            f"The jvp of {definition.name} returned a wrong number of tangents.",
            given=f"{len(entries)}",
            expected="one for each output of forward",
        )
    outputs = match(call.result, entries, _complain(definition.name))
    for i, tangent in enumerate(outputs):
        if i in call.non_differentiable:
            outputs[i] = None
        elif tangent is None:
            raise DefinitionError(
                f"The jvp of {definition.name} returned None for output {i}, which torch would "
                "take for a zero tangent.",
                mend="Return zeros, or mark the output as non-differentiable.",
            )
    return outputs


def _complain(name: str) -> Any:
    def complain(index: int, detail: str) -> DefinitionError:
        return DefinitionError(
            f"The jvp of {name} returned a tangent of another structure than output {index}.",
            given=detail,
        )

    return complain


def _transpose(call: Call, context: Context, tangents: Tangents, watch: Watch) -> list[Any]:
    """Transpose the author's backward on a context."""
    live = [i for i, tangent in enumerate(tangents) if tangent is not None]
    outputs = [i for i in range(call.count) if i not in call.non_differentiable]

    def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        every: list[torch.Tensor | None] = [None] * call.count
        for i, cotangent in zip(outputs, cotangents, strict=True):
            every[i] = cotangent
        watch.give_cotangents(cotangents)
        with watch:
            gradients = call.pull_on(context, every)
        found = [watch.whole(g) if g is not None else (g, None) for g in gradients]
        for _, why in (found[i] for i in live):
            if why is not None:
                raise refusal(_PURPOSE, call.definition.name, why)
        linear.append(all(g is None or watch.is_linear(g) for g, _ in (found[i] for i in live)))
        return tuple(_fit(found[i][0], call.inputs[i]) for i in live)

    linear: list[bool] = []  # whether each run of backward is shown to be so by its structure
    probes = [_probe(call.outputs[i]) for i in outputs]
    given = tuple(_as(tangents[i], call.inputs[i]) for i in live)
    gradients, transposed = vjp(pull, *probes)
    pushed = transposed(given)
    if not linear[0]:
        shapes = [call.outputs[i] for i in outputs]
        _confirm(
            call, pull, shapes, gradients=gradients, tangents=given, pushed=pushed, met=watch.dtypes
        )
    result: list[Any] = [None] * call.count
    for i, tangent in zip(outputs, pushed, strict=True):
        result[i] = tangent
    return result


def _as(tangent: Any, meta: Meta) -> torch.Tensor:
    return tangent if tangent.dtype is meta[1] else tangent.to(meta[1])


def _probe(meta: Meta, phase: int = 0) -> torch.Tensor:
    """A fixed cotangent with large and small entries and no symmetry."""
    shape, dtype, device = meta
    wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    count = torch.arange(shape.numel(), device=device, dtype=wide) + phase
    return (torch.cos(count + 1 + phase) * 10.0 ** (2 - count % 5)).reshape(shape).to(dtype)


def _fit(gradient: torch.Tensor | None, meta: Meta) -> torch.Tensor:
    """Give a gradient the shape and dtype of its input, as autograd does."""
    shape, dtype, device = meta
    if gradient is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    if gradient.shape != shape:
        gradient = gradient.sum_to_size(shape) if gradient.dim() >= len(shape) else gradient
        gradient = gradient.expand(shape)
    if gradient.dtype is not dtype:
        gradient = gradient.real if not dtype.is_complex and gradient.is_complex() else gradient
        gradient = gradient.to(dtype)
    return gradient


def _confirm(
    call: Call,
    pull: Callable[..., Any],
    outputs: Sequence[Meta],
    *,
    gradients: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    pushed: Sequence[torch.Tensor],
    met: Iterable[torch.dtype],
) -> None:
    """Refuse a backward that is not linear in the cotangent, as far as there are values."""
    name = call.definition.name
    if any(concrete(tensor) is None for tensor in (*pushed, *gradients)):
        if call.definition.gradient is None:
            raise UnsupportedError(
                f"Forward mode of {name} cannot be derived while it is traced: there are no values "
                "that show that its backward is linear in the cotangent.",
                mend="Declare its gradient: complete(F, gradient='exact') or 'surrogate'.",
            )
        return
    probes = [_probe(meta) for meta in outputs]
    others = [_probe(meta, 1) for meta in outputs]
    dtypes = {*met, *(tensor.dtype for tensor in (*pushed, *gradients))}
    limits = [torch.finfo(d) for d in dtypes if d.is_floating_point or d.is_complex]
    # As large as the scaled cotangents that gradients are clipped for, where that is no overflow.
    wide = all(each.max > _LARGE**4 for each in limits)

    def scales(factor: float) -> bool:
        scaled = pull(*(factor * probe for probe in probes))
        pairs = zip(gradients, scaled, strict=True)
        return all(_is_scaled(one, other, factor, limits) for one, other in pairs)

    linear = (
        not any(map(is_coarse, dtypes))  # which would hide whatever it is
        and all(scales(factor) for factor in ((-_LARGE, -1 / _LARGE) if wide else (-2.0,)))
        and _is_transpose(probes, pushed, gradients, tangents, limits)
        and _is_transpose(others, pushed, pull(*others), tangents, limits)
    )
    if not linear:
        raise UnsupportedError(
            f"Forward mode of {name} cannot be derived: its backward is not linear in the "
            "cotangent.",
            mend="Write jvp(ctx, *tangents); declare gradient = 'nonlinear' if that is meant.",
        )


def _is_scaled(
    gradient: torch.Tensor, scaled: torch.Tensor, factor: float, limits: Sequence[torch.finfo]
) -> bool:
    """Whether the second is a power of two times the first: but for subnormals, to the last bits.

    Each rounding is scaled alike then.
    """
    one, other = factor * gradient.detach(), scaled.detach()
    size = one.abs()
    smallest = max(-factor, 1.0) * max(each.smallest_normal for each in limits)
    bound = 2 * torch.finfo(one.dtype).eps * size + 4 * smallest
    wrong = concrete(((other - one).abs() > bound) & size.isfinite())
    return wrong is None or not bool(wrong.any())


_LARGE = 2.0**20


def _is_transpose(
    cotangents: Sequence[torch.Tensor],
    pushed: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    limits: Sequence[torch.finfo],
) -> bool:
    """Check ``<w, J v> = <b(w), v>`` to the precision of the dtypes, beside what is subnormal."""
    left, left_scale = inner(cotangents, pushed)
    right, right_scale = inner(gradients, tangents)
    eps = max(each.eps for each in limits)
    floor = 8 * max(each.smallest_normal * each.eps for each in limits)
    allowed = min(256 * eps, 0.1) * (left_scale + right_scale)
    allowed = allowed + floor * (size_of(cotangents) + size_of(tangents))
    difference, bound = concrete(left - right), concrete(allowed)
    if difference is None or bound is None or difference.shape != bound.shape:
        return True
    return not bool((difference.abs() > bound).any())
