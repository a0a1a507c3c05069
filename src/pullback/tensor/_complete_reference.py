"""What `complete` makes of a kernel and its plain reference: a Function, or a callable."""

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal._operator import (
    is_operator,
    operator_name,
    registered_rules,
    resolve,
    signature,
    written,
)
from pullback.internal.torch import (
    are_functorch_transforms_active,
    forward_level,
    graph_break,
    pytree,
)
from pullback.tensor._function import Function
from pullback.tensor._reference import Pair, run
from pullback.tensor.compiled._compile import follow

__all__ = ["CompletedKernel", "Referenced", "reference_of", "refuse_reference"]


class Referenced(Function):
    """A Function whose derivatives beyond the first are those of a plain reference."""

    reference: ClassVar[Callable[..., Any]]
    pair: ClassVar[Pair]

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the kernel, or its reference where a transform is at work."""
        if not torch.compiler.is_dynamo_compiling():
            return run(cls.pair, args, kwargs)
        if are_functorch_transforms_active() or forward_level() >= 0:
            return cls.pair.reference(*args, **kwargs)
        return follow(cls, args, kwargs)


class CompletedKernel:
    """A kernel, an operator or another callable, with the derivatives of its reference.

    Attributes:
        function: the Function that it applies.
        reference: the plain reference.
    """

    def __init__(
        self, kernel: Any, reference: Callable[..., Any], options: Mapping[str, Any], again: Any
    ) -> None:
        kernel = resolve(kernel) if is_operator(kernel) else kernel
        functools.update_wrapper(self, kernel, updated=())
        named = operator_name(kernel) if is_operator(kernel) else kernel
        self._made_by = again, (named, {**options, "reference": reference})
        self.reference = reference
        self.gradient = options["gradient"] or getattr(kernel, "gradient", None)
        name, call = getattr(kernel, "__name__", type(kernel).__name__), kernel
        if is_operator(kernel):
            name, call = operator_name(kernel), _of_operator(kernel)
            self.__signature__ = signature(kernel)
        body = {
            "__module__": getattr(kernel, "__module__", None) or __name__,
            "__doc__": kernel.__doc__,
            "gradient": self.gradient,
            "forward": staticmethod(call),
            # So that forward takes no context. No engine runs it.
            "setup_context": staticmethod(lambda ctx, inputs, output: None),
            "reference": staticmethod(reference),
            "pair": Pair(name, call, reference),
        }
        made: Any = type(Referenced)
        self.function = made(name, (Referenced,), body)
        self.function._twin = _Traced(call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)

    def __reduce__(self) -> Any:
        # Where it decorates the kernel, the name leads here, and the kernel has none.
        name = getattr(self, "__qualname__", "")
        try:
            decorates = operator.attrgetter(name)(sys.modules[self.__module__]) is self
        except (AttributeError, KeyError):
            decorates = False
        return name if decorates else self._made_by


class _Traced:
    """What Dynamo traces in the place of such a kernel: the kernel itself."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        output = self.kernel(*args, **kwargs)
        if torch.is_grad_enabled() and _needs((args, kwargs)) and not _needs(output):
            graph_break("A kernel without a gradient of its own: the reference gives it.")
        return output


def _needs(tree: Any) -> bool:
    leaves = pytree.tree_leaves(tree)
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _of_operator(op: Any) -> Callable[..., Any]:
    """An operator as a kernel; without a gradient registered, its outputs get no history.

    That would be one that raises.
    """
    if written(op):
        raise UnsupportedError(
            f"The operator {operator_name(op)} writes into its arguments, and its reference would "
            "be given other values.",
            given=f"written into: {', '.join(written(op))}",
            mend="Register a functional operator that returns what this one writes.",
        )
    return torch.no_grad()(op) if registered_rules(op).kind == "none" else op


def refuse_reference(kernel: Any, reference: Any, hidden: int = 0) -> None:
    """Refuse a reference that cannot take what the kernel takes.

    Arguments:
        kernel: what is called.
        reference: what was given for it.
        hidden: how many arguments of the kernel are no arguments of a call.

    Raises:
        ArgumentTypeError: one of the two cannot be called.
        ArgumentError: they have other signatures.
    """
    for name, function in (("kernel", kernel), ("reference", reference)):
        if not (callable(function) or (function is kernel and is_operator(function))):
            raise ArgumentTypeError(
                f"The {name} cannot be called.",
                given=repr(function),
                expected="a callable, or as a kernel a Function class or an operator",
            )
    if isinstance(reference, type) or inspect.iscoroutinefunction(reference):
        raise ArgumentTypeError(
            "The reference is no function that returns what it computes.",
            given=repr(reference),
            expected="a function or module of torch operations",
        )
    try:
        op = resolve(kernel) if is_operator(kernel) else None
        wanted = signature(op) if op is not None else inspect.signature(kernel)
        taken = inspect.signature(reference)
    except (TypeError, ValueError):
        return  # builtins do not say what they take
    parameters = list(wanted.parameters.values())[hidden:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        taken.bind(*(p for p in parameters if p.name not in named), **named)
    except TypeError as error:
        raise ArgumentError(
            f"The reference takes other arguments than the kernel: {error}.",
            given=f"reference{taken}",
            expected=str(wanted.replace(parameters=parameters)),
            mend="Give it the same arguments, in the same order.",
        ) from None


def reference_of(function: Any) -> Callable[..., Any] | None:
    """The reference that a Function or callable was completed with, or ``None``.

    Example:
        >>> import pullback
        >>> reference_of(pullback.complete(torch.sin, reference=torch.cos)) is torch.cos
        True
    """
    known = isinstance(function, type) and issubclass(function, Referenced)
    return function.reference if known or isinstance(function, CompletedKernel) else None
