"""What an author wrote, read off a Function class once."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pullback.errors import ArgumentTypeError, DefinitionError
from pullback.internal._arguments import checked

__all__ = ["Definition", "define", "once_differentiable"]

INTENTS = ("exact", "surrogate", "nonlinear")


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """The rules of one Function.

    Arguments:
        name: the name of the class.
        node_name: the name of its graph nodes.
        setup_context: None where forward is given ``ctx`` and does it itself.
        concurrent: whether the rules wait for something, so that they run beside others.
        blocking: whether those that are no coroutine functions wait in threads.
        waits: whether backward does.
        asynchronous: the names of the rules that are coroutine functions.
        once: whether backward is declared `once_differentiable`.
        trusted: one of the tape's own Functions, whose rules need no watching.
        counts: how many arguments forward can take by position.
        shared: what forward and a derivative rule both can reach beside ctx and may write to.
        linear: what it is linear in: all of its Variables ``"jointly"``, ``"each"`` with the others
            held, the ``"first"`` with the others held; empty if nothing is known.
    """

    name: str
    node_name: str
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    concurrent: bool
    blocking: bool
    waits: bool
    asynchronous: frozenset[str]
    once: bool
    gradient: str
    random: bool | Literal["drawn"]
    trusted: bool
    signature: inspect.Signature
    counts: range
    linear: str
    shared: tuple[Any, ...]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of forward.

        Raises:
            ArgumentTypeError: they do not fit the signature of forward.
        """
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


def define(cls: Any, base: Any) -> Definition:
    """Read the definition off a Function class.

    Raises:
        DefinitionError: rules are missing or contradict each other.
    """
    name = cls.__name__
    if cls.forward is base.forward:
        raise DefinitionError(f"{name} has no forward.", mend="Define forward as a static method.")
    if cls.gradient not in INTENTS:
        raise DefinitionError(
            f"{name} declares an unknown gradient.", given=f"gradient = {cls.gradient!r}",
            expected=" or ".join(map(repr, INTENTS)),
        )  # fmt: skip
    split = cls.setup_context is not base.setup_context
    rules: dict[str, Any] = {
        "forward": cls.forward,
        "backward": _backward(cls, base),
        "jvp": None if cls.jvp is base.jvp else cls.jvp,
        "vmap": None if cls.vmap is base.vmap else cls.vmap,
    }
    _check(cls, rules["vmap"], split)
    asynchronous = frozenset(
        rule for rule, written in rules.items() if inspect.iscoroutinefunction(written)
    )
    signature = _signature(cls.forward, split)
    return Definition(
        name=name,
        node_name=f"{name}Backward",
        **rules,
        setup_context=cls.setup_context if split else None,
        concurrent=bool(asynchronous) or cls.blocking,
        blocking=cls.blocking,
        waits=cls.blocking or "backward" in asynchronous,
        asynchronous=asynchronous,
        once=getattr(rules["backward"], "_pullback_once", False),
        gradient=cls.gradient,
        random=cls.random,
        trusted=cls._trusted,
        signature=signature,
        counts=_counts(signature),
        linear=cls._linear,
        shared=() if cls._trusted else _shared(rules),
    )


def _shared(rules: dict[str, Any]) -> tuple[Any, ...]:
    """The containers that forward and another rule both hold."""
    written, *read = (_containers(rules[name]) for name in ("forward", "backward", "jvp"))
    return tuple(each for held in read for number, each in held.items() if number in written)


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
    written = [rule for rule in (cls.backward, cls.vjp) if rule not in (base.backward, base.vjp)]
    if len(written) == 2 and written[0] is not written[1]:
        raise DefinitionError(
            f"{cls.__name__} defines both backward and vjp.",
            expected="one of them: they are two names of the same rule", mend="Delete vjp.",
        )  # fmt: skip
    return written[0] if written else None


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
