"""`complete`: give any `torch.autograd.Function` the transforms it lacks."""

import copyreg
import types
from collections.abc import Callable
from typing import Any, Literal, overload

import torch

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._operator import is_operator, resolve
from pullback.internal.torch import node_class
from pullback.tensor._case import Intent
from pullback.tensor._complete_operator import complete_operator
from pullback.tensor._complete_reference import CompletedKernel, Referenced, refuse_reference
from pullback.tensor._function import Function
from pullback.tensor._reference import Pair
from pullback.tensor.compiled._compile import Traceable
from pullback.tensor.watch import _leniency

__all__ = ["complete", "has_own_apply"]

_base: Any = torch.autograd.Function
_RESULT = "_pullback_completed"


@overload
def complete(
    function: type[torch.autograd.Function],
    *,
    gradient: Intent | None = None,
    batching: Literal["auto", "derived", "loop"] = "auto",
    keep_inputs: bool = False,
    reference: Callable[..., Any] | None = None,
) -> type[Function]: ...
@overload
def complete(
    function: str | Callable[..., Any],  # an operator, or any kernel that has a reference
    *,
    gradient: Intent | None = None,
    batching: Literal["auto", "derived", "loop"] = "auto",
    keep_inputs: bool = False,
    reference: Callable[..., Any] | None = None,
) -> Callable[..., Any]: ...
def complete(
    function: Any,
    *,
    gradient: Intent | None = None,
    batching: Literal["auto", "derived", "loop"] = "auto",
    keep_inputs: bool = False,
    reference: Callable[..., Any] | None = None,
) -> Any:
    """Return a Function with the same values and gradients that works under every transform.

    The original is not changed. Its forward and backward run as they are, so outputs and
    first-order gradients are equal to the last bit. Added are `torch.func` (``grad``, ``vjp``,
    ``jacrev``, ``hessian``, ``vmap``), forward mode, a right second derivative also where
    intermediates were saved or `once_differentiable` was declared, and
    ``torch.compile(fullgraph=True)``. What cannot be derived, because backward leaves torch, is
    refused by name when it is asked for.

    Arguments:
        function: a subclass of `torch.autograd.Function`, old style or new, yours or not; or an
            operator: what `torch.library.custom_op` returns, ``torch.ops.ns.op``, one overload
            of it, or its name ``"ns::op"``.
        gradient: its intent, if you want to declare one.
        batching: how vmap runs its rules: ``"derived"`` on batched tensors, ``"loop"`` item by
            item, ``"auto"`` on batched tensors where torch can and item by item where not.
        keep_inputs: keep also the inputs that ``function`` does not save, for a second derivative.
            Otherwise one is refused where such an input has gone, and memory stays the same.
        reference: the same computation in torch operations, with the same signature. Then
            ``function`` may be any callable that cannot be looked into: outputs and first-order
            gradients are its own, and all else is the reference's. All inputs are kept.

    Returns:
        A subclass of both `pullback.Function` and ``function``; of an operator, or of another
        callable with its reference, a callable with its signature.

    Raises:
        ArgumentError: there is no operator of that name, or it has several overloads; or the
            reference has another signature.
        ArgumentTypeError: ``function`` is neither a Function class nor an operator, and has no
            reference; or the reference cannot be called.
        UnsupportedError: it replaces ``apply`` by its own; or it is an operator that writes into
            its arguments, or whose gradient `torch.library.register_autograd` does not know.

    Example:
        >>> import torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.x = x
        ...         return x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 2 * ctx.x * cotangent
        >>> torch.func.hessian(complete(Square).apply)(torch.tensor(3.0))
        tensor(2.)
    """
    # Long: the checks of what was given, then one class body.
    given = {"gradient": gradient, "batching": batching, "keep_inputs": keep_inputs}
    if not isinstance(keep_inputs, bool):
        raise ArgumentTypeError(
            "keep_inputs is neither True nor False.", given=f"keep_inputs={keep_inputs!r}"
        )
    if reference is not None:
        return _complete_by(reference, function, given)
    if is_operator(function):
        options = given if gradient is not None or batching != "auto" or keep_inputs else {}
        return complete_operator(resolve(function), complete, options)
    is_one = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    if not is_one or function is torch.autograd.Function:
        raise ArgumentTypeError(
            "complete takes a Function class.",
            given=repr(function),
            expected="a subclass of torch.autograd.Function, or an operator",
            mend="Pass the class, not its apply or an instance; or reference=, for any callable.",
        )
    if issubclass(function, Function):
        return function
    if has_own_apply(function):
        raise UnsupportedError(
            f"{function.__name__} defines its own apply, which complete would bypass.",
            mend="Complete the Function that its apply calls, or write a pullback.Function.",
        )
    plain = gradient is None and batching == "auto" and not keep_inputs
    # torch makes a class of graph nodes for each Function. What hangs on it lives as long as the
    # Function does and no longer, which no dictionary can offer: the result refers to its key.
    node = node_class(function)
    if plain and _RESULT in getattr(node, "__dict__", ()):
        return getattr(node, _RESULT)
    body: dict[str, Any] = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__wrapped__": function,
        "gradient": gradient or getattr(function, "gradient", None),
        "autocast": "ambient",
        "batching": batching,
        "keep_inputs": keep_inputs,
        "_lenient": True,
        "_made_of": (function, given),
    }
    result = types.new_class(
        function.__name__,
        (function, Function),
        {"metaclass": _Completed},
        lambda namespace: namespace.update(body),
    )
    if plain and node is not None:
        setattr(node, _RESULT, result)
    return result


def _complete_by(reference: Any, function: Any, options: dict[str, Any]) -> Any:
    """Complete a kernel by its reference: a Function to a Function, what else to a callable."""
    if not isinstance(function, type) or not issubclass(function, torch.autograd.Function):
        refuse_reference(function, reference)
        return CompletedKernel(function, reference, options, _again)
    if issubclass(function, Referenced):
        raise ArgumentError(
            f"{function.__name__} has been completed with a reference.",
            given=repr(reference),
            mend="Complete the Function that it was made of.",
        )
    combined = function.setup_context is _base.setup_context
    refuse_reference(function.forward, reference, hidden=int(combined))
    kernel: Any = complete(function, **options)
    body = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "reference": staticmethod(reference),
        "pair": Pair(function.__name__, kernel.apply, reference),
        "_made_of": (function, {**options, "reference": reference}),
    }
    return types.new_class(
        function.__name__,
        (Referenced, kernel),
        {"metaclass": _Completed},
        lambda namespace: namespace.update(body),
    )


class _Completed(Traceable):
    """The class of completed Functions, which are pickled as what they were made of."""


def _again(function: Any, options: dict[str, Any]) -> Any:
    return complete(function, **options)


def _reduce(completed: Any) -> Any:
    if "_made_of" not in vars(completed):  # inherits from a completed one
        return completed.__qualname__
    return _again, vars(completed)["_made_of"]


copyreg.pickle(_Completed, _reduce)  # type: ignore[arg-type]


def has_own_apply(function: type[torch.autograd.Function]) -> bool:
    """Whether a class below `torch.autograd.Function` defines `apply` itself."""
    own = function.__mro__[: function.__mro__.index(_base)]
    defined = [vars(cls)["apply"] for cls in own if "apply" in vars(cls)]
    return not all(getattr(apply, "completes", False) for apply in defined)


_leniency.completer = complete
