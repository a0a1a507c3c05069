"""`custom_vjp`: the decorator form of a Function, in the shape that JAX gave it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError
from pullback.internal.torch import pytree
from pullback.tensor._case import Intent
from pullback.tensor._function import Function

__all__ = ["CustomVjp", "custom_vjp"]

P = ParamSpec("P")
R = TypeVar("R")


class CustomVjp(Generic[P, R]):
    """A function with its own rules of differentiation; made by `custom_vjp`.

    Attributes:
        function: the `pullback.Function` that runs it, once the rules are given.
    """

    __name__: str

    def __init__(self, primal: Callable[P, R], static: tuple[str, ...], gradient: Intent) -> None:
        self._primal = primal
        self._signature = inspect.signature(primal)
        self._static = static
        self._gradient: Intent = gradient
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._push: Callable[..., Any] | None = None
        self._function: type[Function] | None = None
        functools.update_wrapper(self, primal)
        unknown = sorted(set(static) - set(self._signature.parameters))
        if unknown:
            raise ArgumentError(
                f"custom_vjp declares arguments static that {primal.__name__} does not have.",
                given=f"static={unknown}",
                expected=f"names among {list(self._signature.parameters)}",
            )

    @property
    def function(self) -> type[Function]:
        """The Function that runs it.

        Raises:
            DefinitionError: `defvjp` has not been called.
        """
        if self._function is None:
            raise DefinitionError(
                f"{self.__name__} has no rules yet.",
                mend=f"Call {self.__name__}.defvjp(forward, backward) after its definition.",
            )
        return self._function

    def defvjp(
        self, forward: Callable[..., tuple[R, Any]], backward: Callable[[Any, Any], Any]
    ) -> None:
        """Give the reverse rule.

        Arguments:
            forward: takes the same arguments and returns ``(output, residuals)``; residuals are
                any nested dicts, lists and tuples of tensors and other values.
            backward: takes ``(residuals, cotangent)``, the cotangent nested as the output, and
                returns one gradient (or None) for each argument that is not static; a single
                one need not be in a tuple.
        """
        _callable("forward", forward)
        _callable("backward", backward)
        self._rules = (forward, backward)
        self._build()

    def defjvp(self, rule: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[R, Any]]) -> None:
        """Give a forward rule in place of the derived one.

        Arguments:
            rule: takes ``(primals, tangents)``, tuples over all arguments (the tangent of what
                is no tensor is None), and returns ``(output, tangent)``.
        """
        _callable("rule", rule)
        self._push = rule
        if self._rules is not None:
            self._build()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(
                f"{self.__name__} got arguments that it does not take: {error}.",
                expected=f"{self.__name__}{self._signature}",
            ) from None
        bound.apply_defaults()
        for name in self._static:
            leaves = pytree.tree_leaves(bound.arguments[name])
            if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                raise ArgumentTypeError(
                    f"The static argument {name!r} of {self.__name__} holds a tensor.",
                    expected="a value that has no gradient",
                    mend=f"Drop {name!r} from static, or pass a number.",
                )
        return self.function.apply(*bound.args, *bound.kwargs.values())[0]

    def _build(self) -> None:
        if self._rules is None:
            return
        forward, backward = self._rules
        primal, push, call = self._primal, self._push, self._call
        places = [i for i, name in enumerate(self._signature.parameters) if name in self._static]

        def run(ctx: Any, *args: Any) -> tuple[Any]:
            if push is not None:
                ctx.primals = args
            if not any(ctx.needs_input_grad):
                return (call(primal, args),)
            result = call(forward, args)
            if not isinstance(result, tuple) or len(result) != 2:
                raise DefinitionError(
                    f"The forward rule of {primal.__name__} returned no pair.",
                    given=type(result).__name__,
                    expected="(output, residuals)",
                )
            output, ctx.residuals = result
            return (output,)

        def pull(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
            gradients = backward(ctx.residuals, cotangent)
            listed = list(gradients) if isinstance(gradients, (tuple, list)) else [gradients]
            for place in places:
                listed.insert(place, None)
            return tuple(listed)

        body: dict[str, Any] = {
            "forward": staticmethod(run),
            "backward": staticmethod(pull),
            "gradient": self._gradient,
            "__module__": primal.__module__,
            "__qualname__": primal.__qualname__,
            "__doc__": primal.__doc__,
        }
        if push is not None:
            rule = push
            body["jvp"] = staticmethod(lambda ctx, *tangents: (rule(ctx.primals, tangents)[1],))
        self._function = type(primal.__name__, (Function,), body)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call with arguments in the order of the signature, keyword-only ones by name."""
        keyword = [
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        if not keyword:
            return function(*args)
        split = len(args) - len(keyword)
        return function(*args[:split], **dict(zip(keyword, args[split:], strict=True)))


@overload
def custom_vjp(function: Callable[P, R], /) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(
    *, static: tuple[str, ...] = (), gradient: Intent = "exact"
) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
def custom_vjp(
    function: Callable[P, R] | None = None,
    /,
    *,
    static: tuple[str, ...] = (),
    gradient: Intent = "exact",
) -> Any:
    """Give a function of tensors its own reverse rule.

    The function itself runs where no derivative can be asked for; elsewhere the forward rule
    does. Residuals are differentiated at second order. Forward mode, vmap and compilation are
    derived as for `Function`.

    Arguments:
        function: the function to decorate; it runs where nothing is differentiated.
        static: names of arguments that are no tensors and have no gradient.
        gradient: the intent; see `Function`.

    Raises:
        ArgumentError: ``static`` names an argument that the function does not have.
        ArgumentTypeError: ``static`` is not a tuple of names.

    Example:
        >>> import torch
        >>> @custom_vjp(static=("power",))
        ... def raise_to(x, power):
        ...     return x**power
        >>> raise_to.defvjp(
        ...     lambda x, power: (x**power, (x, power)),
        ...     lambda residuals, cotangent: residuals[1]
        ...     * residuals[0] ** (residuals[1] - 1)
        ...     * cotangent,
        ... )
        >>> torch.func.grad(raise_to)(torch.tensor(2.0), 3)
        tensor(12.)
    """
    if isinstance(static, str) or not all(isinstance(name, str) for name in static):
        raise ArgumentTypeError(
            "custom_vjp takes the names of static arguments as a tuple.",
            given=f"static={static!r}",
            mend=f"Write static=({static!r},)." if isinstance(static, str) else None,
        )
    if function is not None:
        _callable("function", function)
        return CustomVjp(function, tuple(static), gradient)
    return lambda decorated: CustomVjp(decorated, tuple(static), gradient)


def _callable(role: str, value: Any) -> None:
    if not callable(value):
        raise ArgumentTypeError(
            f"custom_vjp needs a callable as {role}.", given=repr(value), expected="a function"
        )
