"""One breach at a time undone in a Function, from outside: what then holds failed because of it."""

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._tree import tensors
from pullback.conformance.process._limits import held
from pullback.conformance.source._left import LEFT, Left, copied
from pullback.internal.torch import pytree
from pullback.tensor import reference_of

__all__ = ["MENDS", "Mend", "Stand", "Undo", "around", "by_autograd", "changed", "mended"]

_Kind = type[torch.autograd.Function]
Undo = Callable[[_Kind], dict[str, Any]]


@dataclass(frozen=True)
class Mend:
    """How one breach is undone."""

    clause: str  # the clause whose breach it is
    # makes of a Function the methods of one without the breach, one step after the other
    undo: Sequence[Undo]
    hint: str = ""  # how the author mends it, where it says more than the clause
    said: str = ""  # what the Function does, where it says more than the clause
    # the clauses whose breach may follow from this one; any, where none is named
    of: Sequence[str] = ()
    noticed: bool = False  # whether torch notices then what else is wrong, and refuses it
    whole: bool = False  # the rule is another one then: a loud failure has a cause of its own


def mended(subject: Subject, steps: Sequence[Undo]) -> Subject | None:
    """The same Function with other methods, step by step; ``None`` where it cannot be had."""
    kind = subject.function
    if kind is None and reference_of(subject.target) is not None:
        kind = subject.target.function
    other = None if kind is None else changed(kind, steps)
    return None if other is None else replace(subject, call=other.apply, function=other)


def changed(kind: _Kind, steps: Sequence[Undo]) -> _Kind | None:
    """A Function with other methods, step by step; ``None`` for one that cannot be derived from."""
    with suppress(Exception):
        for undo in steps:
            kind = type(kind)(kind.__name__, (kind,), {**undo(kind), "__module__": kind.__module__})
        return kind
    return None


def by_autograd(subject: Subject) -> Subject | None:
    """The same Function, whose backward is the derivative of forward as autograd has it."""
    return mended(subject, [_differentiated])


def _methods(kind: _Kind, **around: Callable[..., Any]) -> dict[str, Any]:
    """Static methods that are called through ``around(method, *args)``.

    Arguments:
        kind: the Function.
        around: by what a method does: ``forward``, ``fill`` the context, ``back``, ``jvp``.
    """
    own = kind.backward is not torch.autograd.Function.backward
    names = {"forward": "forward", "fill": _context(kind), "back": "backward" if own else "vjp",
             "jvp": "jvp"}  # fmt: skip
    made: dict[str, Any] = {}
    for does, outer in around.items():
        name = names[does]
        made[name] = _through(outer, made.get(name, getattr(kind, name)))
    return {name: staticmethod(method) for name, method in made.items()}


def _through(outer: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return outer(method, *args, **kwargs)

    return called


def _context(kind: _Kind) -> str:
    """The method that fills the context."""
    split = kind.setup_context is not torch.autograd.Function.setup_context
    return "setup_context" if split else "forward"


def _each(change: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    return pytree.tree_map(lambda v: change(v) if isinstance(v, torch.Tensor) else v, values)


def _given_to_backward(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[_Kind], Any]:
    """Backward is handed changed cotangents."""
    return around(back=lambda method, ctx, *given: method(ctx, *_each(change, given)))


def _given_to_forward(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[_Kind], Any]:
    """Forward is handed changed arguments."""
    return around(forward=lambda method, *args, **named: method(
        *_each(change, args), **_each(change, named)
    ))  # fmt: skip


def _put_back(method: Any, *args: Any, **kwargs: Any) -> Any:
    """Forward works on copies, and what it saves of them is as it came."""
    handed, named = _each(torch.clone, (args, kwargs))
    before = [(copy, copy.detach().clone()) for copy in tensors((handed, named))]
    found = method(*handed, **named)
    given = {y.untyped_storage().data_ptr() for y in tensors(found)}
    for copy, then in before:
        memory = copy.untyped_storage()
        if memory.nbytes() and memory.data_ptr() not in given:  # neither freed nor handed out
            copy.data.copy_(then)
    return found


def _contiguous_with_flag(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that requires a gradient as the argument does."""
    if x.is_contiguous():
        return x
    return x.detach().contiguous().requires_grad_(x.requires_grad)


def _fresh(kind: _Kind) -> dict[str, Any]:
    """What is returned is memory of the call's own."""
    lock = threading.RLock()  # another thread would write there before it is copied

    def backward(method: Any, *args: Any) -> Any:
        with held(lock):
            return _each(torch.clone, method(*args))

    def forward(method: Any, *args: Any, **kwargs: Any) -> Any:
        own = {id(value) for value in pytree.tree_leaves((args, kwargs))}
        found = method(*args, **kwargs)
        return _each(lambda y: y if id(y) in own else y.clone(), found)

    if _context(kind) == "setup_context":
        return _methods(kind, back=backward, forward=forward)
    return _methods(kind, back=backward)  # a combined forward has told its ctx of what it returns


def _kept(
    keep: Callable[[Any], Any], restore: Callable[[Any, Any], Any], *, alone: bool = False
) -> Undo:
    """What is kept of a context once forward has filled it makes the context for backward.

    Arguments:
        keep: of a context that is filled.
        restore: the context for backward, of the context and what was kept.
        alone: one thread at a time, or another one writes in between.
    """

    def undo(kind: _Kind) -> dict[str, Any]:
        # Of this Function alone, and with an end: a thread that stands in its forward is left
        # there, and would keep the lock from whoever comes after it.
        within = partial(held, threading.RLock()) if alone else nullcontext

        def fill(method: Any, *args: Any, **kwargs: Any) -> Any:
            with within():
                found = method(*args, **kwargs)
                object.__setattr__(args[0], "_kept", keep(args[0]))
            return found

        def back(method: Any, ctx: Any, *cotangents: Any) -> Any:
            with within():
                return method(restore(ctx, vars(ctx)["_kept"]), *cotangents)

        return _methods(kind, fill=fill, back=back)

    return undo


def around(**methods: Callable[..., Any]) -> Undo:
    """Backward is called through ``back(method, ctx, *cotangents)``; ``jvp`` likewise."""
    return lambda kind: _methods(kind, **methods)


class Stand:
    """Stands for a context, of which it answers some attributes by itself."""

    def __init__(self, ctx: Any, **own: Any) -> None:
        vars(self).update(own, _ctx=ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_ctx"], name)


def _state(ctx: Any) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Copies of what stands on a context and of what it saves."""
    saved = [t for t in getattr(ctx, "to_save", None) or () if isinstance(t, torch.Tensor)]
    own = {name: copied(value) for name, value in vars(ctx).items()}
    return own, [t.detach().clone() for t in saved]


def _restore(ctx: Any, state: tuple[dict[str, Any], list[torch.Tensor]]) -> Any:
    own, saved = state
    for name, value in own.items():
        setattr(ctx, name, copied(value))
    present = [t for t in ctx.saved_tensors if t is not None] if saved else []
    for tensor, before in zip(present, saved, strict=False):
        if tensor.shape == before.shape:
            tensor.data.copy_(before)
    return ctx


def _save_all(ctx: Any, *names: str) -> Any:
    """Save what stands on a context too, or some of it, and leave no tensor there."""
    own = {name: vars(ctx)[name] for name in names or tuple(vars(ctx))}
    leaves, form = pytree.tree_flatten(own)
    saved = tuple(getattr(ctx, "to_save", None) or ())
    ctx.save_for_backward(*saved, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
    for name in own:
        delattr(ctx, name)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return len(saved), rest, places, form


def _with_all(ctx: Any, kept: Any) -> Any:
    (count, rest, places, form), every = kept, ctx.saved_tensors
    found = dict(zip(places, every[count:], strict=True))
    own = pytree.tree_unflatten([found.get(k, leaf) for k, leaf in enumerate(rest)], form)
    return Stand(ctx, saved_tensors=every[:count], saved_variables=every[:count], **own)


# Backward finds on its ctx what forward left there, however often it runs.
_restored = _kept(_state, _restore, alone=True)
# What forward left on its ctx goes through save_for_backward.
_saving = _kept(_save_all, _with_all)
_saving_left = _kept(lambda ctx: _save_all(ctx, "left_elsewhere"), _with_all)
# Backward is asked for every gradient.
_asked_for_all = _kept(
    lambda ctx: None,
    lambda ctx, _: Stand(ctx, needs_input_grad=tuple(True for _ in ctx.needs_input_grad)),
)
# Backward is handed zeros for ``None``.
_materialised = _kept(lambda ctx: ctx.set_materialize_grads(True), lambda ctx, _: ctx)


def _of_the_call(kind: _Kind) -> dict[str, Any]:
    """Backward finds on the class, and on objects given, what forward of the same call left."""
    left = Left(kind)
    made = _methods(kind, forward=left.forward, fill=left.fill, back=left.back)
    return {**made, LEFT: left.places}


def _drawn_again(kind: _Kind) -> dict[str, Any]:
    """Backward draws the random numbers that forward of the same call drew."""
    drawn: list[torch.Tensor] = []

    def forward(method: Any, *args: Any, **kwargs: Any) -> Any:
        drawn[:] = [torch.get_rng_state()]
        return method(*args, **kwargs)

    def fill(method: Any, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(ctx, *args, **kwargs)
        object.__setattr__(ctx, "_drawn", drawn[0])
        return found

    def back(method: Any, ctx: Any, *cotangents: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(vars(ctx)["_drawn"])
            return method(ctx, *cotangents)

    return _methods(kind, forward=forward, fill=fill, back=back)


def _times_cotangent(method: Any, ctx: Any, *cotangents: Any) -> Any:
    """Gradients that are the same for every cotangent, times the only one there is."""
    given = [g for g in cotangents if isinstance(g, torch.Tensor)]
    found, at_zero = method(ctx, *cotangents), method(ctx, *_each(torch.zeros_like, cotangents))

    def times(x: Any, other: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not torch.equal(x, other):
            return x
        fits = given[0].numel() == 1 or given[0].shape == x.shape[: given[0].ndim]
        return x * given[0].reshape(*given[0].shape, *[1] * (x.ndim - given[0].ndim)) if fits else x

    return pytree.tree_map(times, found, at_zero) if len(given) == 1 else found


def _without(rule: str) -> Undo:
    """A rule that an author need not write is not there, nor where backward applies the class."""

    def undo(kind: _Kind) -> dict[str, Any]:
        absent = staticmethod(getattr(torch.autograd.Function, rule))
        own = vars(kind).get(rule)

        def back(method: Any, *args: Any) -> Any:
            setattr(kind, rule, absent)
            try:
                return method(*args)
            finally:
                if own is None:
                    delattr(kind, rule)
                else:
                    setattr(kind, rule, own)

        return {rule: absent, **_methods(kind, back=back)}

    return undo


def _differentiated(kind: _Kind) -> dict[str, Any]:
    """Backward is the derivative of forward, where autograd can follow forward."""
    split = _context(kind) == "setup_context"

    def forward(ctx: Any, *args: Any) -> Any:
        ctx._args = args
        return kind.forward(*args) if split else kind.forward(_Ignored(ctx), *args)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            args = [
                a if twice or not isinstance(a, torch.Tensor) else a.detach().requires_grad_(needed)
                for a, needed in zip(ctx._args, ctx.needs_input_grad, strict=True)
            ]
            found = kind.forward(*args) if split else kind.forward(_Ignored(ctx), *args)
            pairs = [
                (y, g)
                for y, g in zip(pytree.tree_leaves(found), cotangents, strict=True)
                if isinstance(y, torch.Tensor) and y.requires_grad and g is not None
            ]
            wanted = [k for k, needed in enumerate(ctx.needs_input_grad) if needed]
            answered = torch.autograd.grad(
                [y for y, _ in pairs], [args[k] for k in wanted], [g for _, g in pairs],
                create_graph=twice, allow_unused=True,
            )  # fmt: skip
        by_place = dict(zip(wanted, answered, strict=True))
        return tuple(by_place.get(k) for k in range(len(args)))

    made: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if split:
        made["setup_context"] = staticmethod(torch.autograd.Function.setup_context)
    return made


class _Ignored(Stand):
    """Keeps nothing that forward saves."""

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        """Backward runs forward again."""


def _by_reference(kind: _Kind) -> dict[str, Any]:
    """First order is the reference's too."""
    return {"apply": staticmethod(reference_of(kind))}  # type: ignore[arg-type]


# The likeliest first; of those that explain as much, the first is taken.
MENDS: Sequence[Mend] = (
    Mend("cotangent", [_given_to_backward(torch.clone)]),
    Mend("saved", [_saving], noticed=True),
    Mend("retain", [_restored]),
    Mend("retain", [_drawn_again],
         "Save what forward drew (ctx.save_for_backward(mask)); backward draws other numbers.",
         "Backward draws random numbers of its own."),
    Mend("mutation", [around(forward=_put_back)]),
    Mend("mutation", [_given_to_forward(torch.clone), _restored],
         "Change nothing that backward reads from ctx: save_for_backward saves the input itself, "
         "not a copy. Work out of place there.",
         "Backward changes in place what was saved."),
    Mend("state", [_fresh]),
    Mend("state", [_restored],
         "Allocate it in each call: a buffer that calls share holds what the latest one wrote.",
         "What forward leaves on its ctx is overwritten by the next call."),
    Mend("state", [_of_the_call, _saving_left],
         "Keep it on its ctx (ctx.save_for_backward), not on what all calls share.",
         "What forward leaves on {left} is read by backward."),
    Mend("needs-input-grad", [_asked_for_all]),
    Mend("undefined", [_materialised]),
    Mend("linear", [around(back=_times_cotangent)],
         "Multiply what backward returns by the cotangent, a number for each entry of the output.",
         "Backward leaves its cotangent out."),
    Mend("vmap", [_without("vmap")], of=("transforms", "forward-over-forward", "batch")),
    Mend("forward", [_without("jvp")], of=("forward-over-forward", "transforms", "vmap")),
    Mend("layout", [_given_to_backward(torch.Tensor.contiguous)],
         "Call .contiguous() on the cotangent before backward reads its memory; it comes expanded "
         "from sum() and transposed from a product.",
         "Backward reads the memory of a cotangent as if it were contiguous."),
    Mend("layout", [_given_to_forward(torch.Tensor.contiguous)]),
    Mend("layout", [_given_to_forward(_contiguous_with_flag)],
         "Ask ctx.needs_input_grad[k], by the position of the argument: requires_grad of a tensor "
         "made in forward, a contiguous copy for example, is always False.",
         "Forward asks requires_grad of a copy that it made of the input."),
    Mend("derivative", [_differentiated],
         of=("double", "forward", "undefined", "non-differentiable", "values", "sizes", "dtype",
             "autocast", "transforms", "rank", "batch", "structure"), whole=True),
    Mend("sizes", [], of=("rank", "batch")),  # by its edit alone
    Mend("reference", [_by_reference],
         of=("double", "forward", "forward-over-forward", "transforms", "vmap", "fake")),
)  # fmt: skip
