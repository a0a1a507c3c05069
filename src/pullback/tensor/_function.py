"""`Function`: written like `torch.autograd.Function`, keeping the whole contract."""

from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import torch

from pullback.errors import DefinitionError
from pullback.internal.torch import never_compile
from pullback.tensor.call._definition import Definition, define
from pullback.tensor.compiled._compile import Traceable, follow, prepare
from pullback.tensor.engine._engine import apply, make_engine
from pullback.tensor.values import _autocast

__all__ = ["Function"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:  # what tells a type checker that ``apply`` takes what ``forward`` takes
    from torch.autograd.function import FunctionCtx

    from pullback.tensor.call._context import Context

    class _AnyContext(Context, FunctionCtx):  # type: ignore[misc]
        """Fits a first parameter that is annotated as either context, and no tensor."""

    class CombinedForm(Protocol[P, R_co]):
        """A Function whose forward takes the context first."""

        @staticmethod
        def forward(ctx: _AnyContext, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    class SplitForm(Protocol[P, R_co]):
        """A Function whose forward takes the arguments alone."""

        @staticmethod
        def forward(*args: P.args, **kwargs: P.kwargs) -> R_co: ...


# What `Function.apply` calls where Dynamo has given its frame up.
for _called in (define, make_engine, apply):
    never_compile(_called)


class _OtherName:
    """`vjp` where `backward` is written, or the reverse: two names of one rule, as torch has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        for cls in owner.__mro__:
            for name in ("backward", "vjp") if cls is not torch.autograd.Function else ():
                rule = vars(cls).get(name)
                if rule is not None and not isinstance(rule, _OtherName):
                    return rule.__get__(None, owner)
        return getattr(torch.autograd.Function, self.name)


class Function(torch.autograd.Function, metaclass=Traceable):
    """A custom differentiable function that works under every transform.

    Write it as torch documents `torch.autograd.Function`, in the split form (``forward(*args)``
    and ``setup_context(ctx, inputs, output)``) or the combined form (``forward(ctx, *args)``),
    with ``backward(ctx, *cotangents)``. What is left out is derived: ``jvp`` by transposing
    backward, ``vmap`` by batching the rules, the derivative of saved intermediates by running
    forward again. What cannot be derived is refused by name, never answered with a wrong number.

    Arguments and outputs may be nested dicts, lists and tuples of tensors, and keyword
    arguments; backward receives and returns gradients of the same structure.

    Attributes:
        gradient: ``"exact"`` (backward is the transpose of the derivative), ``"surrogate"``
            (linear in the cotangent, deliberately not the derivative) or ``"nonlinear"``;
            ``None`` for a completed Function that declares nothing.
        autocast: ``"inherit"``, ``"ambient"``, ``"disable"`` or a dtype; see
            `pullback.tensor.values._autocast`.
        batching: ``"derived"`` runs the rules on batched tensors, ``"loop"`` runs them item by
            item, for kernels that torch cannot look into; ``"auto"`` tries the first, and loops
            where torch cannot batch an operation.
        mutates: names of arguments that forward writes into as buffers.
        random: forward draws random numbers, so that two runs differ.
        keep_inputs: keep the inputs that forward did not save, for a second derivative, where it
            keeps more than outputs and masks. Where it is false, a second derivative needs them to
            be alive still, and refuses otherwise.

    Raises:
        DefinitionError: the class contradicts itself; raised when it is defined or first
            applied.

    Example:
        >>> import torch
        >>> class Cube(Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return x**3
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(*inputs)
        ...
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         (x,) = ctx.saved_tensors
        ...         return 3 * x**2 * cotangent
        >>> torch.func.jvp(Cube.apply, (torch.tensor(2.0),), (torch.tensor(1.0),))
        (tensor(8.), tensor(12.))
        >>> torch.func.hessian(Cube.apply)(torch.tensor(2.0))
        tensor(12.)
    """

    if TYPE_CHECKING:  # for rules with any parameters

        @staticmethod
        def forward(*args: Any, **kwargs: Any) -> Any: ...
        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> Any: ...
        @staticmethod
        def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any: ...
        @staticmethod
        def vjp(ctx: Any, *args: Any, **kwargs: Any) -> Any: ...
        @staticmethod
        def jvp(ctx: Any, *args: Any, **kwargs: Any) -> Any: ...

    else:
        backward = _OtherName("backward")
        vjp = _OtherName("vjp")
    gradient: ClassVar[Literal["exact", "surrogate", "nonlinear"] | None] = "exact"
    autocast: ClassVar[Any] = "inherit"
    batching: ClassVar[Literal["derived", "loop", "auto"]] = "derived"
    mutates: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False
    keep_inputs: ClassVar[bool] = True
    # The rules are in split form, mutate nothing and return no argument; whatever they save is an
    # argument or an output, and autocast does not touch what they compute. Outside of transforms
    # torch then runs them as they are, without the 10 us that serve the rest of the contract. It is
    # a promise of the class alone: what inherits from it may have rules of its own.
    _direct: ClassVar[bool] = False
    _lenient: ClassVar[bool] = False
    _twin: ClassVar[Any] = None  # see `pullback.tensor.compiled._compile`
    _handle: ClassVar[str] = ""
    _sites: ClassVar[list[Any]] = []
    _compiled: ClassVar[tuple[Any, Definition] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _one_of(cls, "gradient", ("exact", "surrogate", "nonlinear", None))
        _one_of(cls, "batching", ("derived", "loop", "auto"))
        _one_of(cls, "random", (True, False))
        _one_of(cls, "keep_inputs", (True, False))
        _autocast.validate(cls.__name__, cls.autocast)
        cls._compiled = None
        prepare(cls)

    @overload
    @classmethod
    def apply(cls: "type[CombinedForm[P, R_co]]", *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    @classmethod
    def apply(cls: "type[SplitForm[P, R_co]]", *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @classmethod
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function to arguments of its forward.

        A plain backward is run by torch, whose own errors say what it cannot take.

        Raises:
            ArgumentTypeError: the arguments do not fit the signature of forward.
            DefinitionError: the rules contradict each other or the contract.
            UnsupportedError: a transform was asked for that cannot be derived.
        """
        if torch.compiler.is_dynamo_compiling():  # never in eager: this very frame is compiled
            return follow(cls, args, kwargs)
        compiled: tuple[Any, Definition] | None = cls._compiled
        rules = cls.forward, cls.setup_context, cls.backward, cls.jvp, cls.vmap
        if compiled is None or compiled[1].rules != rules:  # one may have been replaced since
            definition = define(cls)
            compiled = cls._compiled = (make_engine(cls, definition), definition)
        return apply(*compiled, args, kwargs)


def _one_of(cls: type[Function], attribute: str, known: tuple[str | bool | None, ...]) -> None:
    value = getattr(cls, attribute)
    if value not in known:
        raise DefinitionError(
            f"{cls.__name__} declares an unknown {attribute}.",
            given=f"{attribute} = {value!r}",
            expected=" or ".join(repr(name) for name in known),
        )
