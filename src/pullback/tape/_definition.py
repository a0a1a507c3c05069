"""What an author wrote, read off a Function class once."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from pullback.errors import ArgumentTypeError, DefinitionError
from pullback.internal._arguments import checked

__all__ = ["Definition", "once_differentiable"]

INTENTS = ("exact", "surrogate", "nonlinear")


class Definition:
    """The rules of one Function, read off its class, and what follows from them.

    Attributes:
        setup_context: None where forward is given ``ctx`` and does it itself.
        waiting: the names of the rules that wait for something, so that they run beside others.
        trusted: one of the tape's own Functions, whose rules need no watching.
        reads_roles: whether what forward gives may hang on the roles of what it is given.
        counts: how many arguments forward can take by position.
        shared: what forward and a derivative rule both can reach beside ctx and may write to.
        linear: what it is linear in: all of its Variables ``"jointly"``, ``"each"`` with the others
            held, the ``"first"`` with the others held; empty if nothing is known.

    Raises:
        DefinitionError: rules are missing or contradict each other.
    """

    def __init__(self, cls: Any, base: Any) -> None:
        self.name = name = cls.__name__
        if cls.forward is base.forward:
            raise DefinitionError(
                f"{name} has no forward.", mend="Define forward as a static method."
            )
        if cls.gradient not in INTENTS:
            raise DefinitionError(
                f"{name} declares an unknown gradient.", given=f"gradient = {cls.gradient!r}",
                expected=" or ".join(map(repr, INTENTS)),
            )  # fmt: skip
        if type(cls.random) is not bool and cls.random != "drawn":
            raise DefinitionError(
                f"{name} declares an unknown randomness.", given=f"random = {cls.random!r}",
                expected="True, False or 'drawn'",
            )  # fmt: skip
        self.node_name = f"{name}Backward"
        self.forward = cls.forward
        self.setup_context = _written(cls, base, "setup_context")
        self.backward = _backward(cls, base)
        self.jvp = _written(cls, base, "jvp")
        self.vmap = _written(cls, base, "vmap")
        _check(cls, self.vmap, self.setup_context is not None)
        self.waiting = frozenset(
            rule for rule in ("forward", "backward", "jvp", "vmap")
            if inspect.iscoroutinefunction(getattr(self, rule))
            or (cls.blocking and rule in ("forward", "backward"))
        )  # fmt: skip
        self.gradient, self.random = cls.gradient, cls.random
        self.once = getattr(self.backward, "_pullback_once", False)
        self.trusted, self.linear = cls._trusted, cls._linear
        self.reads_roles = cls._reads_roles
        self.signature = _signature(cls.forward, self.setup_context is not None)
        self.counts = _counts(self.signature)
        self.shared = () if self.trusted else self._shared()

    def _shared(self) -> tuple[Any, ...]:
        """The containers that forward and another rule both hold."""
        written, *read = map(_containers, (self.forward, self.backward, self.jvp))
        return tuple(each for held in read for number, each in held.items() if number in written)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of forward, if they fit its signature."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(
                f"{self.name}.apply got arguments that its forward does not take: {error}.",
                given=f"{len(args)} positional and {sorted(kwargs)} by keyword",
                expected=f"forward{self.signature}",
            ) from None
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentTypeError(
                f"{self.name}.forward has arguments by keyword only.",
                given=f"forward{self.signature}",
                mend="Let backward answer for each by position: take them by position.",
            )
        return bound.args


@checked
def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that backward is not itself differentiable: a second derivative is refused.

    Example:
        >>> from pullback.tape import Function, Variable, grad
        >>> class Double(Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * 2
        ...     @staticmethod
        ...     @once_differentiable
        ...     def backward(ctx, gradient):
        ...         return gradient * 2
        >>> x = Variable(1.0, requires_grad=True)
        >>> grad(Double.apply(x), x)
        (Variable(2.0),)
    """
    backward._pullback_once = True  # type: ignore[missing-attribute]
    return backward


def _written(cls: Any, base: Any, name: str) -> Callable[..., Any] | None:
    """A rule of a Function, if its author has written it."""
    rule = getattr(cls, name)
    return None if rule is getattr(base, name) else rule


def _containers(rule: Any) -> dict[int, Any]:
    """The containers that a rule captures, or has as a default."""
    rule = inspect.unwrap(rule) if callable(rule) else rule
    if not inspect.isfunction(rule):
        return {}
    found = [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
    for cell in rule.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return {id(each): each for each in found if isinstance(each, dict | list | set | bytearray)}


def _check(cls: Any, vmap: Callable[..., Any] | None, split: bool) -> None:
    if split and inspect.iscoroutinefunction(cls.setup_context):
        raise DefinitionError(
            f"{cls.__name__}.setup_context is a coroutine function, and only saves."
        )
    if vmap is not None and cls.generate_vmap_rule:
        raise DefinitionError(
            f"{cls.__name__} has a vmap rule and generate_vmap_rule = True.",
            expected="one of the two",
        )
    if vmap is not None and not split:
        raise DefinitionError(
            f"{cls.__name__} has a vmap rule and the combined form of forward.",
            expected="a vmap rule beside forward(*args) and setup_context(ctx, inputs, output)",
            mend="Split forward, or delete vmap to have it derived.",
        )


def _backward(cls: Any, base: Any) -> Callable[..., Any] | None:
    backward, vjp = _written(cls, base, "backward"), _written(cls, base, "vjp")
    if backward and vjp and backward is not vjp:
        raise DefinitionError(
            f"{cls.__name__} defines both backward and vjp.",
            expected="one of them: they are two names of the same rule", mend="Delete vjp.",
        )  # fmt: skip
    return backward or vjp


def _counts(signature: inspect.Signature) -> range:
    parameters = signature.parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in by_position)
    any_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return range(least, sys.maxsize if any_more else len(by_position) + 1)


def _signature(forward: Callable[..., Any], split: bool) -> inspect.Signature:
    signature = inspect.signature(forward)
    parameters = list(signature.parameters.values())
    if not split and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
