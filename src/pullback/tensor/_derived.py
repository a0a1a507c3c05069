"""`derive`: a result whose own derivative is found by running what it comes from again.

A gradient is computed by the author's backward from whatever forward kept for it: saved tensors,
numbers, closures, objects. Its value is right. Its derivative is that of the pair

    P(x, g) = backward(forward(x), g)

as a function of the inputs ``x`` and the cotangents ``g``, and what forward kept would hide a
part of it from autograd. So a gradient is the output of one node here, whose inputs are ``x`` and
``g``. The node computes the value with what was kept; asked for its derivative, it runs the whole
pair again on tracked ``x`` and ``g`` and differentiates that, at whatever level of transforms the
derivative is asked for. Nothing runs again unless it is asked for. A tangent is such a node too.

With the pair as ``P``, reverse mode is ``P'^T h``. Forward mode is ``P' v``, the transpose of the
transpose: with ``u -> P'^T u`` linear in ``u``, its own vector-Jacobian product with ``v`` is
``P' v`` (J. Townsend, "A new trick for calculating Jacobian vector products", 2017); torch cannot
trace a jvp inside of a jvp.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    forward_level,
    is_raised_by_tracing,
    is_view,
    never_compile,
    set_forward_mode,
)
from pullback.tensor._audit import compare_rule
from pullback.tensor._batching import batched, share_batch
from pullback.tensor._call import Call, differentiable
from pullback.tensor._levels import alive, are_numbers, concrete, out_of_place, primal, vjp
from pullback.tensor._retrace import MEND, named

__all__ = ["Derivation", "derive"]

Tensors = Sequence[Any]  # tensors, and None where there is none
_transforming = are_functorch_transforms_active
_ROWS = 1 << 20  # entries of a matrix that is made row by row


class Derivation:
    """How a result is computed, and how it is run again to be differentiated.

    Arguments:
        call: the application of the Function that it belongs to.
        purpose: what is derived from it, for messages.
        compute: takes sources and state; gives the result, ``None`` where there is none.
        again: takes a call and sources alone; gives the same where autograd sees it.
        refusal: raised in place of a derivative.
    """

    def __init__(
        self,
        call: Call,
        purpose: str,
        compute: Callable[[Tensors, Tensors], Tensors],
        again: Callable[[Call, Tensors], Tensors],
        refusal: PullbackError | None = None,
    ) -> None:
        self.call = call
        self.purpose = purpose
        self.compute = compute
        self.again = again
        self.refusal = refusal
        self.sources = 0  # how many of the tensors of the node it is a function of
        self.present: list[int] = []  # places of the result that hold a tensor
        self.places = 0  # of the result

    def value(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Compute the result from what was kept."""
        try:
            result = self.compute(tensors[: self.sources], tensors[self.sources :])
        except PullbackError:
            raise
        except Exception as error:
            once = not (_transforming() or self.call.transformed) or self.call.definition.random
            if once or is_raised_by_tracing(error):
                raise
            # What was kept beside the saved tensors belongs to a level that has ended.
            try:
                result = self.again(self.call, tensors[: self.sources])
            except PullbackError:
                raise
            except Exception:
                raise error from None
        self.places = len(result)
        self.present = [i for i, tensor in enumerate(result) if tensor is not None]
        return tuple(_own(result[i], tensors) for i in self.present)

    def transpose(self, call: Call, sources: Tensors, cotangents: Tensors) -> tuple[Any, list[Any]]:
        """Run again; gives the wanted results and the gradients of the sources: ``P'^T h``."""
        wanted = [k for k, cotangent in enumerate(cotangents) if cotangent is not None]
        live, rerun = self._rerun(call, sources, wanted)
        given = tuple(cotangents[k] for k in wanted)

        def derive(wrap: Any) -> Any:
            values, pulled = vjp(wrap(rerun), *(sources[i] for i in live))
            return values, pulled(tuple(map(_as, given, values)))

        gradients: list[Any] = [None] * len(sources)
        if not live or not wanted:
            return (), gradients
        with named(call.definition.name, self.purpose, MEND):
            values, pulled = out_of_place(derive)
        for i, gradient in zip(live, pulled, strict=True):
            gradients[i] = gradient
        return values, gradients

    def pull(self, sources: Tensors, before: Tensors, cotangents: Tensors) -> list[Any]:
        """The gradients of the sources, if running again gives the same result."""
        values, gradients = self.transpose(self.call, sources, cotangents)
        if values:
            kept = [b for b, c in zip(before, cotangents, strict=True) if c is not None]
            self._compare(values, kept)
            known = [*(t for t in (*sources, *cotangents) if t is not None), *kept]
            if not are_numbers(gradients, known):
                raise self._no_number()
        return gradients

    def push(self, sources: Tensors, before: Tensors, tangents: Tensors) -> list[Any]:
        """The tangents of the result: ``P' v``."""
        wanted = list(range(len(before)))
        live, rerun = self._rerun(self.call, sources, wanted)
        given = tuple(
            torch.zeros_like(sources[i]) if tangents[i] is None else tangents[i] for i in live
        )

        def transpose(wrap: Any) -> Any:
            values, pulled = vjp(wrap(rerun), *(sources[i] for i in live))
            _, pushed = vjp(pulled, tuple(torch.zeros_like(value) for value in values))
            return values, pushed(given)[0]

        if not live or not wanted:
            return [None] * len(before)
        with named(self.call.definition.name, self.purpose, MEND):
            values, pushed = out_of_place(transpose)
        self._compare(values, before)
        known = [*sources, *given, *before]
        if not are_numbers(pushed, known):
            pushed = self._push_by_rows(rerun, before, [sources[i] for i in live], given)
            if not are_numbers(pushed, known):
                raise self._no_number()
        return list(pushed)

    def _push_by_rows(
        self, rerun: Callable[..., Any], before: Tensors, sources: Tensors, tangents: Tensors
    ) -> list[torch.Tensor]:
        """The tangents ``P' v`` from the rows of ``P'``, which reverse mode gives.

        A rule may mask what it has computed, as ``where(x > 0, sqrt(x), 0)``. Reverse mode masks
        the cotangent before it meets the infinite slope; transposed, the order is the other one.
        """
        size = sum(t.numel() for t in before) * sum(t.numel() for t in sources)
        plain = all(t.numel() and not t.is_complex() for t in (*before, *sources))
        if size > _ROWS or not plain:
            raise self._no_number()

        def entry(place: int, number: int) -> torch.Tensor:
            def derive(wrap: Any) -> Any:
                values, pulled = vjp(wrap(rerun), *sources)
                heads = [torch.zeros_like(value) for value in values]
                one = torch.arange(heads[place].numel(), device=heads[place].device) == number
                heads[place] = one.to(heads[place]).reshape(heads[place].shape)
                return pulled(tuple(heads))

            row = zip(out_of_place(derive), tangents, strict=True)
            return torch.stack([(part * tangent).sum() for part, tangent in row]).sum()

        return [
            torch.stack([entry(place, number) for number in range(value.numel())]).reshape(
                value.shape
            )
            for place, value in enumerate(before)
        ]

    def _no_number(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.purpose} of {self.call.definition.name} is not a number where all that it "
            "comes from is finite: a slope without bound (of a root, a power or a logarithm at 0) "
            "meets a zero.",
            mend="Mask the argument of such an operation, not its result: "
            "torch.where(x > 0, x, 1).sqrt().",
        )

    def audit(self, sources: Any) -> None:
        """Compare the derived rule with finite differences, once for a signature."""
        present = self.present

        def again(call: Call, values: Tensors) -> list[Any]:
            result = self.again(call, values)
            return [result[i] for i in present]

        rule = self.purpose.removeprefix("The ")
        record = compare_rule(self.call, rule, again, self.transpose, sources)
        found = record.verdict != "skipped", record.follows
        if found != (self.call.agreed, self.call.follows):
            self.call = copy.copy(self.call)  # others that are derived of it may differ
            self.call.agreed, self.call.follows = found

    def _rerun(
        self, call: Call, sources: Tensors, wanted: Sequence[int]
    ) -> tuple[list[int], Callable[..., tuple[torch.Tensor, ...]]]:
        """The pair as a function of the sources that can have a derivative."""
        live = [i for i, s in enumerate(sources) if s is not None and differentiable(s.dtype)]

        def rerun(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(sources)
            for i, tensor in zip(live, given, strict=True):
                filled[i] = tensor
            result = self.again(call, filled)
            if [i for i, tensor in enumerate(result) if tensor is not None] != self.present:
                raise self._another("its rules return other gradients")
            return tuple(result[self.present[k]] for k in wanted)

        return live, rerun

    def _compare(self, again: Tensors, before: Tensors) -> None:
        """Refuse a result whose value is not the one that was computed first."""
        for first, second in zip(again, before, strict=True):
            if first.shape != second.shape:
                raise self._another("its rules give tensors of another shape")
            if concrete(first) is None or concrete(second) is None:
                continue
            difference = concrete((first.detach() - second.detach()).abs())
            scale = concrete(second.detach().abs())
            if difference is None or scale is None or not scale.numel():
                continue
            known = scale[scale.isfinite()]
            largest = known.max() if known.numel() else scale.new_ones(())
            # An entry may lose what cancels in a sum of larger ones, and its own last bits.
            eps = torch.finfo(second.dtype).eps
            tolerance = min(256 * eps, 0.05) * scale + min(16 * eps, 0.02) * (largest + 1e-30)
            if bool((difference > tolerance).any()):
                raise self._another("its rules give other values", difference)

    def _another(self, what: str, difference: torch.Tensor | None = None) -> UnsupportedError:
        found = None
        if difference is not None:
            found = f"a difference of {float(difference.nan_to_num().max()):.3g}"
        return UnsupportedError(
            f"{self.purpose} of {self.call.definition.name} cannot be derived: {what} when they "
            "run again.",
            given=found,
            mend="Let forward and backward depend on their arguments alone, or declare "
            "random = True if forward draws random numbers.",
        )


def derive(derivation: Derivation, sources: Tensors, state: Tensors) -> list[Any]:
    """Compute a result as one node that is differentiated by running it again.

    Arguments:
        derivation: how.
        sources: the tensors that the result is a function of.
        state: what was kept for it, of which it is not differentiated.
    """
    derivation.sources = len(sources)
    results = _Derived.apply(derivation, *sources, *state)
    filled: list[Any] = [None] * derivation.places
    for place, tensor in zip(derivation.present, results, strict=True):
        filled[place] = tensor
    return filled


class _Derived(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(derivation: Derivation, *tensors: torch.Tensor) -> Any:
        if not _transforming():
            return derivation.value(tensors)
        results = batched(derivation.value, derivation.call.definition)(tensors)
        return share_batch(results, range(len(results)), tensors[: derivation.sources])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.derivation = inputs[0]
        ctx.set_materialize_grads(False)
        sources = inputs[1 : 1 + inputs[0].sources]
        ctx.state = len(inputs) - 1 - len(sources)
        ctx.save_for_backward(*sources, *output)
        ctx.save_for_forward(*sources, *output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        gradients = _run(ctx, ctx.derivation.pull, ctx.saved_tensors, cotangents)
        return (None, *gradients, *([None] * ctx.state))

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> Any:
        # torch runs jvp with forward gradients switched off, which makes nested forward mode
        # silently zero. They are on here, so this level's own tangents are taken off first.
        with set_forward_mode(True):
            saved = [primal(tensor) for tensor in ctx.saved_tensors]
            tangents = given[1 : 1 + ctx.derivation.sources]
            pushed = _run(ctx, ctx.derivation.push, saved, tangents)
        return tuple(pushed)


# Where compiled code breaks its graph, Dynamo would take these for functions of the program.
for _rule in (_Derived.forward, _Derived.backward, _Derived.jvp):
    never_compile(_rule)  # type: ignore[arg-type]


def _run(ctx: Any, rule: Callable[..., Any], saved: Any, given: Any) -> list[Any]:
    """Run a derived rule under whatever transforms ask for it."""
    derivation: Derivation = ctx.derivation
    if derivation.refusal is not None:
        raise derivation.refusal
    # A pullback that outlives its transform runs on what was saved below it.
    saved = [alive(tensor) for tensor in saved]
    given = [alive(tensor) for tensor in given]
    sources, before = saved[: derivation.sources], saved[derivation.sources :]
    plain = not _transforming() and forward_level() < 0
    detached = plain and not torch.is_grad_enabled()
    if detached:
        sources = [tensor.detach() for tensor in sources]
    derivation.audit(sources)
    if _transforming():
        rule = batched(rule, derivation.call.definition)
    results = rule(sources, before, given)
    # torch.func.vjp records a history even where none is wanted.
    return [t.detach() if detached and t is not None and t.requires_grad else t for t in results]


def _own(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result that is no view: a view would need a tangent that is a view."""
    expanded = 0 in result.stride() and result.numel() > 1
    if expanded or is_view(result) or any(result is tensor for tensor in tensors):
        return result.clone(memory_format=torch.contiguous_format)
    return result


def _as(cotangent: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return cotangent if cotangent.dtype is value.dtype else cotangent.to(value.dtype)
