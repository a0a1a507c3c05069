"""`Function`: written like `torch.autograd.Function`, over any value; and how it is applied."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Literal, NoReturn

from pullback.errors import DefinitionError
from pullback.tape._application import Application
from pullback.tape._concurrency import run
from pullback.tape._definition import Definition
from pullback.tape._layout import batch_in

__all__ = ["Function", "finished"]


def _of_any_number(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Let a type checker take a rule of one's own number of gradients for no error."""
    return rule


class Function:
    """A custom differentiable function of Variables, on torch's contract to the letter.

    Write ``forward(ctx, *args)``, or ``forward(*args)`` with ``setup_context(ctx, inputs,
    output)``; ``backward(ctx, *gradients)``, which may be called ``vjp``; if you like ``jvp(ctx,
    *tangents)`` and ``vmap(info, in_dims, *args)``. What is left out is derived where it can be,
    and refused by name where not. Then call `apply`.

    forward is given the arguments of `apply`: Variables, plain values, and lists, tuples and
    dicts of them. It returns a Variable or a tuple. backward is given one gradient for each
    output and returns one for each argument, None where there is none, in the argument's own
    structure where it is nested. The gradient of a text is `Feedback`.

    Each rule but setup_context may be a coroutine function; such rules, and those of a Function
    that declares ``blocking = True``, run beside others that are ready, up to the limit of
    `concurrency`.

    Attributes:
        gradient: ``"exact"`` (backward is the transpose of the derivative), ``"surrogate"``
            (linear, deliberately not the derivative) or ``"nonlinear"``.
        generate_vmap_rule: as in torch; a rule is derived either way.
        blocking: the rules wait for something outside of Python, so they run in threads.
        random: two runs with the same arguments differ, so `vmap` never shares one. ``"drawn"``:
            they may, as of a model, and `vmap` shares one unless it is told otherwise.

    Example:
        >>> from pullback.tape import Variable
        >>> class Shout(Function):
        ...     @staticmethod
        ...     def forward(ctx, text):
        ...         return Variable(text.data.upper(), role=f"loud {text.role}")
        ...     @staticmethod
        ...     def backward(ctx, feedback):
        ...         return feedback
        >>> text = Variable("quiet", role="word", requires_grad=True)
        >>> Shout.apply(text).backward(Variable("too loud"))
        >>> [note.data for note in text.grad]
        ['too loud']
    """

    gradient: ClassVar[Literal["exact", "surrogate", "nonlinear"]] = "exact"
    generate_vmap_rule: ClassVar[bool] = False
    blocking: ClassVar[bool] = False
    random: ClassVar[bool | Literal["drawn"]] = False
    _trusted: ClassVar[bool] = False
    _reads_roles: ClassVar[bool] = True
    _linear: ClassVar[Literal["", "jointly", "each", "first"]] = ""
    _definition: ClassVar[Definition | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise DefinitionError(
            f"{type(self).__name__} was made an instance; its rules are static.",
            mend=f"Call {type(self).__name__}.apply(...).",
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._definition = None

    # The names and signatures are those of torch's page.

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; to be written, with or without ``ctx`` before the arguments."""
        _missing("forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save what backward needs; forward is then given no ``ctx``."""
        _missing("setup_context")

    @staticmethod
    @_of_any_number
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Give the gradients of the arguments, from those of the outputs."""
        _missing("backward")

    @staticmethod
    @_of_any_number
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        """Another name of `backward`."""
        _missing("vjp")

    @staticmethod
    @_of_any_number
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Give the tangents of the outputs, from those of the arguments."""
        _missing("jvp")

    @staticmethod
    @_of_any_number
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Give the outputs of a whole batch and their out_dims."""
        _missing("vmap")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function; with or without a running event loop.

        Raises:
            ArgumentTypeError: the arguments do not fit forward.
            DefinitionError: the rules break the contract.
        """
        definition = cls._definition or cls._define()
        if kwargs or len(args) not in definition.counts:
            args = definition.bind(args, kwargs)
        application = Application(definition, args)
        if "forward" not in definition.waiting and batch_in(application.inputs) is None:
            return application.finish(application.forward())
        answer = finished(application)
        return run(answer) if definition.waiting else _at_once(answer)

    @classmethod
    async def aapply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the Function and await it, so that others run meanwhile."""
        definition = cls._definition or cls._define()
        if kwargs or len(args) not in definition.counts:
            args = definition.bind(args, kwargs)
        return await finished(Application(definition, args))

    @classmethod
    def _define(cls) -> Definition:
        cls._definition = Definition(cls, Function)
        return cls._definition


def _missing(rule: str) -> NoReturn:
    raise DefinitionError(f"The Function has no {rule}.")


async def finished(application: Application) -> Any:
    """What an application gives, awaited: a rule that waits lets others run meanwhile."""
    batch = batch_in(application.inputs)
    if batch is not None:
        return await batch.each(application.definition, application.args)
    return application.finish(await application.aforward())


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives that waits for nothing, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise DefinitionError("A rule waits and is no coroutine function.")
