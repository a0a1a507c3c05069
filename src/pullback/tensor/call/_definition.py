"""What an author wrote, read off the class once: the rules and how they are called."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pullback.errors import ArgumentTypeError, DefinitionError
from pullback.tensor.values._autocast import Policy

__all__ = ["Definition", "define", "without_once"]

_base = torch.autograd.Function


@dataclass(frozen=True, eq=False)
class Definition:
    """The rules of one Function.

    Arguments:
        name: the name of the class, for messages and graph nodes.
        split: whether forward has no ``ctx`` and setup_context is written.
        backward: the rule as written, with its decorators.
        transposable: the rule below `once_differentiable`, for deriving the forward mode.
        once: whether backward is declared `once_differentiable`.
        detaches: whether a value that backward detaches stops a gradient: not where it was declared
            `once_differentiable`, for then it never had one.
        clears: whether saved tensors are freed once backward has read them.
        mutates: positions of arguments that forward is declared to write into.
        lenient: a third-party Function, whose undeclared mutations are left as they are.
        signature: the signature of forward, without ``ctx``.
        positional: the number of arguments of a call that needs no binding; ``None`` if any
            number does.
        random: whether forward is declared to draw random numbers.
        keep_inputs: whether a second derivative may rely on inputs that were not saved.
        rules: the rules as they were on the class.
        direct: whether torch may run the rules itself where no transform is at work.
    """

    name: str
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    transposable: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    split: bool
    once: bool
    detaches: bool
    boxed: bool
    clears: bool
    gradient: Literal["exact", "surrogate", "nonlinear"] | None
    batching: Literal["derived", "loop", "auto"]
    autocast: Policy
    mutates: frozenset[int]
    lenient: bool
    signature: inspect.Signature
    positional: int | None
    random: bool
    keep_inputs: bool
    direct: bool
    rules: tuple[Any, ...]

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Order the arguments as forward does; the last ones are named by the second value.

        Raises:
            ArgumentTypeError: the arguments do not fit the signature of forward.
        """
        if not kwargs and self.positional is None:
            return args, ()
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(
                f"{self.name}.apply got arguments that its forward does not take: {error}.",
                given=f"{len(args)} positional and {sorted(kwargs)} by keyword",
                expected=f"forward{self.signature}",
            ) from None
        if self.split:  # as torch does
            bound.apply_defaults()
        return (*bound.args, *bound.kwargs.values()), tuple(bound.kwargs)

    def call(self, values: tuple[Any, ...], names: tuple[str, ...], *before: Any) -> Any:
        """Call forward with the arguments as `bind` ordered them."""
        if not names:
            return self.forward(*before, *values)
        positional = len(values) - len(names)
        named = dict(zip(names, values[positional:], strict=True))
        return self.forward(*before, *values[:positional], **named)


def define(cls: Any) -> Definition:
    """Read the definition off a Function class.

    Raises:
        DefinitionError: rules are missing or contradict each other.
    """
    # Long: one field of the definition a line.
    if cls.forward is _base.forward:
        raise DefinitionError(
            f"{cls.__name__} has no forward.", mend="Define forward as a static method."
        )
    split = cls.setup_context is not _base.setup_context
    backward = _one_of(cls, "backward", "vjp")
    detaches = backward is None or without_once(backward) is backward
    if cls._lenient and backward is not None:  # what it computes has a derivative all the same
        backward = without_once(backward)
    vmap = None if cls.vmap is _base.vmap else cls.vmap
    if vmap is not None and not split:
        raise DefinitionError(
            f"{cls.__name__} has a vmap rule and the combined form of forward.",
            expected="a vmap rule beside forward(*args) and setup_context(ctx, inputs, output)",
            mend="Split forward, or delete vmap to have it derived.",
        )
    if vmap is not None and cls.generate_vmap_rule and not cls._lenient:
        raise DefinitionError(
            f"{cls.__name__} has a vmap rule and asks for one to be generated.",
            given="vmap, and generate_vmap_rule = True",
            mend="Delete one of the two.",
        )
    signature = _signature(cls.forward, split)
    return Definition(
        name=cls.__name__,
        forward=cls.forward,
        setup_context=cls.setup_context if split else None,
        backward=backward,
        transposable=None if backward is None else without_once(backward),
        jvp=None if cls.jvp is _base.jvp else cls.jvp,
        vmap=vmap,
        split=split,
        once=backward is not None and without_once(backward) is not backward,
        detaches=detaches,
        # Before torch 2.13 nothing reads the attribute.
        boxed=hasattr(_base, "boxed_grads_call") and bool(cls.boxed_grads_call),
        clears=bool(getattr(cls, "clear_saved_tensors_on_access", False)),
        gradient=cls.gradient,
        batching=cls.batching,
        autocast=cls.autocast,
        mutates=_mutates(cls, signature),
        lenient=cls._lenient,
        signature=signature,
        positional=_positional(signature),
        random=cls.random,
        keep_inputs=cls.keep_inputs,
        direct=vars(cls).get("_direct", False),
        rules=(cls.forward, cls.setup_context, cls.backward, cls.jvp, cls.vmap),
    )


def _mutates(cls: Any, signature: inspect.Signature) -> frozenset[int]:
    names = list(signature.parameters)
    if isinstance(cls.mutates, str):
        raise DefinitionError(
            f"{cls.__name__} declares what it mutates as one text.",
            given=f"mutates = {cls.mutates!r}",
            mend=f"Write mutates = ({cls.mutates!r},).",
        )
    if "mutates" not in vars(cls) and not set(cls.mutates) <= set(names):
        names = _names_declared(cls) or names
    unknown = [name for name in cls.mutates if name not in names]
    if unknown:
        raise DefinitionError(
            f"{cls.__name__} declares that it mutates arguments that forward does not have.",
            given=f"mutates = {tuple(cls.mutates)!r}",
            expected=f"names among {names}",
        )
    return frozenset(names.index(name) for name in cls.mutates)


def _names_declared(cls: Any) -> list[str]:
    """The parameters of the inherited forward that has those which ``mutates`` names.

    A forward in its place has the same arguments in the same order, whatever it calls them.
    """
    for base in cls.__mro__[1:]:
        if "forward" in vars(base) and base.forward is not _base.forward:
            split = base.setup_context is not _base.setup_context
            names = list(_signature(base.forward, split).parameters)
            if set(cls.mutates) <= set(names):
                return names
    return []


def _one_of(cls: Any, first: str, second: str) -> Callable[..., Any] | None:
    written = [
        getattr(cls, name)
        for name in (first, second)
        if getattr(cls, name) is not getattr(_base, name)
    ]
    if len(written) == 2 and written[0] != written[1]:
        raise DefinitionError(
            f"{cls.__name__} defines both {first} and {second}.",
            expected="one of them: they are two names of the same rule",
            mend=f"Delete {second}.",
        )
    return written[0] if written else None


def _signature(forward: Callable[..., Any], split: bool) -> inspect.Signature:
    # As torch binds defaults: of a split form it asks below the decorators.
    signature = inspect.signature(forward, follow_wrapped=split)
    parameters = list(signature.parameters.values())
    if not split and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def _positional(signature: inspect.Signature) -> int | None:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    every = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    if kinds and kinds == every[: len(kinds)]:
        return None
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.KEYWORD_ONLY in kinds:
        return -1
    return len(kinds)


def without_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Undo `once_differentiable`, also below decorators that wrap it, or return it as it is."""
    inner = getattr(backward, "__wrapped__", None)
    code = getattr(backward, "__code__", None)
    if inner is None or code is None:
        return backward
    if code.co_filename == torch.autograd.function.__file__:
        return inner
    unwrapped = without_once(inner)
    return backward if unwrapped is inner else unwrapped
