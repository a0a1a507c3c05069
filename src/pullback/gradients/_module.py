"""What functions of this room share: a Function that shapes the gradient alone, and a module."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, cast

import torch
from torch import Tensor, nn

from pullback.gradients._arguments import check_kept
from pullback.tensor import Function

__all__ = ["GradientModule", "ShapeFunction", "module_of"]

P = ParamSpec("P")


class GradientModule(nn.Module, Generic[P]):
    """A module that shapes a gradient.

    Its factors move with ``to(device)`` and keep their dtype under ``half()`` and
    ``to(dtype)``: a factor of 1e-9 in float16 would become 0.
    """

    _kept: tuple[str, ...] = ()

    def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        super().__init__()

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the function of the inputs."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "GradientModule":
        # nn.Module casts every floating buffer, parameter and its gradient; only their device may
        # change here. Modules within, such as a parametrization, are cast as they are anywhere.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        if recurse:
            for child in self.children():
                child._apply(fn)
        super()._apply(move, recurse=False)
        return self

    def extra_repr(self) -> str:
        """Return the arguments for the module's printed form."""
        return ", ".join(f"{name}={_show(getattr(self, name))}" for name in self._kept)


def module_of(
    function: Callable[Concatenate[Tensor, P], Tensor],
    arguments: str = "",
    *,
    given: str = "torch.ones(1)",
    result: str = "tensor([1.])",
    check: Callable[..., Any] = check_kept,
    inputs: int = 1,
    attributes: Mapping[str, str] | None = None,
) -> type[GradientModule[P]]:
    """Return the module of a function, whose arguments after the inputs it takes and keeps.

    Its name is made of the words of the function's. ``check`` refuses arguments when it is
    constructed; ``attributes`` has the names of those whose own means something else in a module.
    Its example constructs it with ``arguments`` and calls it with what is ``given``.
    """
    everything = list(inspect.signature(function).parameters.values())
    first, own = everything[:inputs], inspect.Signature(everything[inputs:])
    name = "".join(word.capitalize() for word in function.__name__.split("_"))
    kept = {argument: argument for argument in own.parameters} | dict(attributes or {})

    def construct(self: GradientModule[Any], *args: Any, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        bound = own.bind(*args, **kwargs)
        bound.apply_defaults()
        check(**bound.arguments, function=type(self).__name__)
        for argument, value in bound.arguments.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(kept[argument], value.detach().clone())
            else:
                setattr(self, kept[argument], value)

    def forward(self: GradientModule[Any], *tensors: Tensor, **named: Tensor) -> Tensor:
        arguments = {argument: getattr(self, attribute) for argument, attribute in kept.items()}
        return function(*tensors, **named, **arguments)  # pyrefly: ignore - bound above

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = ", ".join([*(one.name for one in first), *kept.values()])
    forward.__doc__ = f"Return ``{function.__name__}({takes})``."
    for method, verb, parameters in (
        (construct, "__init__", own.parameters.values()),
        (forward, "forward", first),
    ):
        method.__module__, method.__name__ = function.__module__, verb
        method.__qualname__ = f"{name}.{verb}"
        cast("Any", method).__signature__ = inspect.Signature([itself, *parameters])
    members = {
        "__doc__": _document(
            function, name, own, kept, [f">>> {name}({arguments})({given})", result]
        ),
        "__module__": function.__module__,
        "_kept": tuple(kept.values()),
        "__init__": construct,
        "forward": forward,
    }
    return type(name, (GradientModule,), members)


def _document(
    function: Callable[..., Tensor],
    name: str,
    own: inspect.Signature,
    kept: Mapping[str, str],
    example: list[str],
) -> str:
    lines = [f"`{function.__name__}` as a module."]
    if kept:
        lines += ["", "Arguments:"]
    for argument, attribute in kept.items():
        tensor = "Tensor" in str(own.parameters[argument].annotation)
        tells = "; a tensor becomes a buffer" if tensor else ""
        tells += f"; kept as ``{attribute}``" if attribute != argument else ""
        lines.append(f"    {argument}: as in `{function.__name__}`{tells}.")
    room = function.__module__.rpartition(".")[0]
    lines += ["", "Example:", "    >>> import torch", f"    >>> from {room} import {name}"]
    return "\n    ".join([*lines, *(f"    {line}" for line in example), ""])


def _show(value: object) -> str:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


class ShapeFunction(Function):
    """``x -> x`` without a copy, and ``g -> shape(g, *kept)`` of what was given beside ``x``.

    What is kept is one tensor, or plain values, or both, the tensor first. One that requires a
    gradient gets exactly zero: the value does not depend on it. So a class of which ``shape`` is
    all that is its own may be ``_direct``: nothing is changed or returned as it was given.
    """

    gradient: ClassVar[Literal["exact", "surrogate", "nonlinear"]] = "surrogate"

    shape: Callable[..., Tensor]

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # by place alone: there is no signature to bind at a call
        """Return a view of ``x``, the first: no copy."""
        return inputs[0].view_as(inputs[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what follows ``x``: a tensor so that a change is noticed, the rest as it is."""
        if isinstance(inputs[1], Tensor):
            ctx.save_for_backward(inputs[1])
            ctx.kept = inputs[2:]
        else:  # nothing is saved, which takes a microsecond or more
            ctx.kept = inputs[1:]

    @classmethod
    def backward(cls, ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Return the shaped cotangent, and the zeros that a tensor gets."""
        kept = *ctx.saved_tensors, *ctx.kept
        needs = ctx.needs_input_grad
        return (
            cls.shape(cotangent, *kept) if needs[0] else None,
            *[torch.zeros_like(kept[i]) if needs[i + 1] else None for i in range(len(kept))],
        )
