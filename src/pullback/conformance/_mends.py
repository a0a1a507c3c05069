"""One breach at a time undone in a Function, from outside: what then holds failed because of it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._subject import Subject
from pullback.internal.torch import pytree

__all__ = ["MENDS", "Mend", "mended"]

_Kind = type[torch.autograd.Function]


@dataclass(frozen=True)
class Mend:
    """How one breach is undone.

    Arguments:
        clause: the clause whose breach it is.
        undo: makes of the methods of a Function those of one without the breach.
        hint: how the author mends it, where it says more than the clause.
        said: what the Function does, where it says more than the clause.
    """

    clause: str
    undo: Callable[[_Kind], dict[str, Any]]
    hint: str = ""
    said: str = ""


def mended(subject: Subject, mend: Mend) -> Subject | None:
    """The same Function without a breach; ``None`` where it cannot be had.

    Arguments:
        subject: what is checked.
        mend: the breach to undo.
    """
    kind = subject.function
    if kind is None:
        return None
    try:
        methods = mend.undo(kind)
        made = type(kind)(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})
    except Exception:  # a class that cannot be derived from
        return None
    return replace(subject, call=made.apply, function=made)


def _wrapped(kind: _Kind, name: str, around: Callable[..., Any]) -> dict[str, Any]:
    """A static method that is called through ``around(method, *args)``."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    return {name: staticmethod(called)}


def _backward(kind: _Kind) -> str:
    return "backward" if kind.backward is not torch.autograd.Function.backward else "vjp"


def _each(change: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    return pytree.tree_map(lambda v: change(v) if isinstance(v, torch.Tensor) else v, values)


def _given_to_backward(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[_Kind], Any]:
    """Backward is handed changed cotangents."""

    def around(method: Any, ctx: Any, *cotangents: Any) -> Any:
        return method(ctx, *_each(change, cotangents))

    return lambda kind: _wrapped(kind, _backward(kind), around)


def _given_to_forward(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[_Kind], Any]:
    """Forward is handed changed arguments."""

    def around(method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*_each(change, args), **_each(change, kwargs))

    return lambda kind: _wrapped(kind, "forward", around)


def _contiguous_with_flag(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that requires a gradient as the argument does."""
    if x.is_contiguous():
        return x
    return x.detach().contiguous().requires_grad_(x.requires_grad)


def _fresh(kind: _Kind) -> dict[str, Any]:
    """What is returned is memory of the call's own."""

    def backward(method: Any, *args: Any) -> Any:
        return _each(torch.clone, method(*args))

    def forward(method: Any, *args: Any, **kwargs: Any) -> Any:
        own = {id(value) for value in pytree.tree_leaves((args, kwargs))}
        found = method(*args, **kwargs)
        return _each(lambda y: y if id(y) in own else y.clone(), found)

    made = _wrapped(kind, _backward(kind), backward)
    if kind.setup_context is not torch.autograd.Function.setup_context:
        return {**made, **_wrapped(kind, "forward", forward)}
    return made  # a combined forward has told its ctx of the very tensors that it returns


def _restored(kind: _Kind) -> dict[str, Any]:
    """Backward finds on its ctx what forward left there, however often it runs."""

    def keep(method: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        ctx = args[0]
        saved = [t for t in getattr(ctx, "to_save", None) or () if isinstance(t, torch.Tensor)]
        own = {name: _copied(value) for name, value in vars(ctx).items()}
        object.__setattr__(ctx, "_before", (own, [t.detach().clone() for t in saved]))
        return found

    def restore(method: Any, ctx: Any, *cotangents: Any) -> Any:
        own, saved = vars(ctx).get("_before", ({}, []))
        for name, value in own.items():
            setattr(ctx, name, _copied(value))
        present = [t for t in ctx.saved_tensors if t is not None] if saved else []
        for tensor, before in zip(present, saved, strict=False):
            if tensor.shape == before.shape:
                tensor.data.copy_(before)
        return method(ctx, *cotangents)

    split = kind.setup_context is not torch.autograd.Function.setup_context
    return {
        **_wrapped(kind, "setup_context" if split else "forward", keep),
        **_wrapped(kind, _backward(kind), restore),
    }


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if not value.requires_grad else value
    return type(value)(value) if type(value) in (list, dict, set) else value


# The likeliest first; of those that explain as much, the first is taken.
MENDS: Sequence[Mend] = (
    Mend("cotangent", _given_to_backward(torch.clone)),
    Mend("retain", _restored),
    Mend("state", _fresh),
    Mend("layout", _given_to_backward(torch.Tensor.contiguous),
         "Call .contiguous() on the cotangent before backward reads its memory; it comes expanded "
         "from sum() and transposed from a product.",
         "Backward reads the memory of a cotangent as if it were contiguous."),
    Mend("layout", _given_to_forward(torch.Tensor.contiguous)),
    Mend("layout", _given_to_forward(_contiguous_with_flag),
         "Ask ctx.needs_input_grad[k], by the position of the argument: requires_grad of a tensor "
         "made in forward, a contiguous copy for example, is always False.",
         "Forward asks requires_grad of a copy that it made of the input."),
)  # fmt: skip
