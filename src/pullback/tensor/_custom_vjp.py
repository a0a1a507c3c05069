"""`custom_vjp`: the decorator form of a Function, in the shape that JAX gave it."""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, get_args, overload

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
    __qualname__: str

    def __init__(self, primal: Callable[P, R], static: tuple[str, ...], gradient: Intent) -> None:
        self._primal = primal
        self._signature = inspect.signature(primal)
        kinds = {p.kind: name for name, p in self._signature.parameters.items()}
        self._various = kinds.get(inspect.Parameter.VAR_POSITIONAL)  # the name of `*args`
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
        self, forward: Callable[P, tuple[R, Any]], backward: Callable[[Any, Any], Any]
    ) -> None:
        """Give the reverse rule.

        Arguments:
            forward: takes the same arguments and returns ``(output, residuals)``; residuals are
                any nested dicts, lists and tuples of tensors and other values.
            backward: takes ``(residuals, cotangent)``, the cotangent nested as the output, and
                returns one gradient (or None) for each argument that is not static, with one for
                each of ``*args`` and a dict for ``**kwargs``; a single one need not be in a tuple.
        """
        _callable("forward", forward)
        _callable("backward", backward)
        self._rules = (forward, backward)
        self._build()

    def defjvp(self, rule: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[R, Any]]) -> None:
        """Give a forward rule in place of the derived one.

        Arguments:
            rule: takes ``(primals, tangents)``, tuples over all arguments, those of ``*args`` one
                by one (the tangent of what is no tensor is None), and returns
                ``(output, tangent)``.
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
                mend=self._as_method(),
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
        return self.function.apply(*self._flat(bound.arguments))[0]

    def __reduce__(self) -> str:
        """By its name, as pickle has any function."""
        return self.__qualname__

    def _as_method(self) -> str | None:
        """How it is called where it stands in a class: an instance does not bind it."""
        owner = self.__qualname__.rpartition(".")[0]
        if not owner or owner.endswith("<locals>"):
            return None
        call = f"{owner.rpartition('.')[2]}.{self.__name__}"
        first = next(iter(self._signature.parameters), "self")
        return (
            f"It is not bound to an instance as a method is: call {call}({first}, ...), or "
            "decorate a function outside of the class and call that in a method."
        )

    def _build(self) -> None:
        if self._rules is None:
            return
        forward, backward = self._rules
        primal, push = self._primal, self._push

        def run(ctx: Any, *flat: Any) -> tuple[Any]:
            if push is not None:
                ctx.primals = flat
            bound = inspect.BoundArguments(self._signature, self._arguments(flat))
            if not any(ctx.needs_input_grad):
                return (primal(*bound.args, **bound.kwargs),)
            result = forward(*bound.args, **bound.kwargs)
            if not isinstance(result, tuple) or len(result) != 2:
                raise DefinitionError(
                    f"The forward rule of {primal.__name__} returned no pair.",
                    given=type(result).__name__,
                    expected="(output, residuals)",
                )
            output, residuals = result
            _save(ctx, residuals)
            ctx.count = len(flat)
            return (output,)

        def pull(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
            gradients = backward(_saved(ctx), cotangent)
            listed = gradients if isinstance(gradients, (tuple, list)) else [gradients]
            return self._by_argument(listed, self._names(ctx.count))

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

    # The Function takes one argument for each of the call: those of `*args` one by one, and a dict
    # for `**kwargs`. Every other parameter takes one, so their number tells which is whose.

    def _flat(self, arguments: Mapping[str, Any]) -> list[Any]:
        """The arguments of the Function, of those by parameter."""
        listed = ([*v] if name == self._various else [v] for name, v in arguments.items())
        return [value for values in listed for value in values]

    def _names(self, count: int) -> list[str]:
        """The parameter that each of so many arguments of the Function belongs to."""
        known = self._signature.parameters
        various = count - len(known) + 1
        return [n for n in known for _ in range(various if n == self._various else 1)]

    def _arguments(self, flat: Sequence[Any]) -> OrderedDict[str, Any]:
        """The arguments by parameter, of those of the Function."""
        found: OrderedDict[str, Any] = OrderedDict((n, ()) for n in self._signature.parameters)
        for name, value in zip(self._names(len(flat)), flat, strict=True):
            found[name] = (*found[name], value) if name == self._various else value
        return found

    def _by_argument(self, gradients: Sequence[Any], names: list[str]) -> tuple[Any, ...]:
        """One gradient for each argument of the Function, of those that are not static."""
        count = sum(name not in self._static for name in names)
        if len(gradients) != count:
            raise DefinitionError(
                f"The backward rule of {self.__name__} returned a wrong number of gradients.",
                given=f"{len(gradients)}",
                expected=f"{count}, one for each argument that is not static",
                mend="Return None for arguments that have no gradient.",
            )
        following = iter(gradients)
        return tuple(None if name in self._static else next(following) for name in names)


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
        ArgumentError: ``static`` names an argument that the function does not have, or the intent
            is unknown.
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
    if gradient not in get_args(Intent):
        raise ArgumentError(
            "custom_vjp is given an unknown gradient intent.",
            given=f"gradient={gradient!r}",
            expected=" or ".join(map(repr, get_args(Intent))),
        )
    if function is not None:
        _callable("function", function)
        return CustomVjp(function, tuple(static), gradient)
    return lambda decorated: CustomVjp(decorated, tuple(static), gradient)


def _save(ctx: Any, residuals: Any) -> None:
    """Save residuals: torch frees tensors, shows them to hooks, and notices a later change."""
    ctx.alone = isinstance(residuals, torch.Tensor)
    entries = (residuals,) if ctx.alone else residuals
    ctx.tensors = type(entries) is tuple and all(isinstance(e, torch.Tensor) for e in entries)
    if ctx.tensors:  # and nothing else, as most have it
        ctx.save_for_backward(*entries)
        return
    leaves, structure = pytree.tree_flatten(residuals)
    ctx.places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    ctx.save_for_backward(*(leaves[i] for i in ctx.places))
    rest = [None if i in ctx.places else leaf for i, leaf in enumerate(leaves)]
    ctx.residuals = pytree.tree_unflatten(rest, structure)


def _saved(ctx: Any) -> Any:
    """The residuals that were saved."""
    if ctx.tensors:
        return ctx.saved_tensors[0] if ctx.alone else ctx.saved_tensors
    leaves, structure = pytree.tree_flatten(ctx.residuals)
    for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
        leaves[place] = tensor
    return pytree.tree_unflatten(leaves, structure)


def _callable(role: str, value: Any) -> None:
    if not callable(value):
        raise ArgumentTypeError(
            f"custom_vjp needs a callable as {role}.", given=repr(value), expected="a function"
        )
