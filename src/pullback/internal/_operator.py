"""What torch knows of an operator: its names, its schema, and the rules registered for it.

torch keeps the two functions that `torch.library.register_autograd` was given inside the kernel it
makes of them, and has no public way to read them back. The kernel passes them as ``info`` to the
frame that is about to run the operator below autograd. `registered_rules` calls the operator with
empty stand-ins under a dispatch mode that stops there, so that nothing of the operator itself runs,
and reads ``info`` off that frame.
"""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import (
    OPERATORS,
    CustomOpDef,
    Observing,
    OpOverload,
    OpOverloadPacket,
    disable_current_modes,
    disable_torch_function,
    function_behind,
    has_kernel,
    overload_of,
    rules_in,
    schema_of,
    temporarily_clear_interpreter_stack,
)

__all__ = [
    "Rules", "definer", "definition", "is_operator", "operator_name", "registered_rules",
    "resolve", "signature", "signature_of_call", "written",
]  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How an operator is differentiated.

    The kind is ``"registered"`` by `torch.library.register_autograd`; ``"none"`` where backward
    raises; ``"composite"`` where autograd sees the operations that it is made of; or ``"foreign"``,
    a kernel for autograd that was written by hand or in C++.
    """

    kind: str
    # what was registered, ``backward(ctx, *cotangents)``
    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None  # what was registered beside it


def is_operator(value: Any) -> bool:
    """Whether a value is an operator of torch's dispatcher, or spells the name of one.

    Example:
        >>> is_operator(torch.ops.aten.sin), is_operator("aten::sin"), is_operator(torch.sin)
        (True, True, False)
    """
    if isinstance(value, str):
        space, colons, name = value.partition("::")
        return bool(colons) and space.isidentifier() and name.replace(".", "_").isidentifier()
    return isinstance(value, (CustomOpDef, OpOverload, OpOverloadPacket))


def resolve(value: Any) -> OpOverload:
    """The one overload that is meant.

    Arguments:
        value: a `torch.library.custom_op`, ``torch.ops.ns.op``, ``torch.ops.ns.op.overload``,
            ``"ns::op"`` or ``"ns::op.overload"``.

    Raises:
        ArgumentError: there is no such operator, or it has several overloads.

    Example:
        >>> resolve("aten::sin.out")
        <OpOverload(op='aten.sin', overload='out')>
    """
    if isinstance(value, CustomOpDef):
        return overload_of(value)
    if isinstance(value, OpOverload):
        return value
    if isinstance(value, OpOverloadPacket):
        return _only(value)
    space, _, rest = value.partition("::")
    name, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, space), name)
        return getattr(packet, overload) if overload else _only(packet)
    except AttributeError:
        raise ArgumentError(
            f"There is no operator {value}.",
            given=repr(value),
            expected="the name of a registered operator, for example 'mylib::scale'",
            mend="Import the module that registers it first.",
        ) from None


def _only(packet: OpOverloadPacket) -> OpOverload:
    names = packet.overloads()
    if len(names) == 1:
        return getattr(packet, names[0])
    name, _, _ = getattr(packet, names[0]).name().partition(".")
    raise ArgumentError(
        f"The operator {name} has several overloads.",
        given=repr(packet),
        expected=f"one of {', '.join(names)}",
        mend=f"Pass {packet}.{names[0]}.",
    )


def operator_name(op: OpOverload) -> str:
    """``"ns::op"``, with the overload where it has a name.

    Example:
        >>> operator_name(torch.ops.aten.sin.default), operator_name(torch.ops.aten.sin.out)
        ('aten::sin', 'aten::sin.out')
    """
    return op.name().removesuffix(".default")


def signature(op: OpOverload) -> inspect.Signature:
    """The signature that the schema describes.

    Example:
        >>> str(signature(torch.ops.aten.cumsum.default))
        '(self, dim, *, dtype=None)'
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    none = inspect.Parameter.empty
    return inspect.Signature([
        inspect.Parameter(
            a.name, kinds[a.kwarg_only], default=a.default_value if a.has_default_value() else none
        )
        for a in schema_of(op).arguments
    ])  # fmt: skip


def signature_of_call(function: Any) -> inspect.Signature:
    """What a call of a Function takes, or of an operator: its forward says so, but for ``ctx``.

    Raises:
        TypeError: it is no function that can be looked at.
        ValueError: it was made in C, and does not say.
    """
    forward = getattr(function, "forward", None)
    if forward is None:
        return inspect.signature(function_behind(function))
    taken = inspect.signature(forward)
    setup = getattr(function, "setup_context", None)
    combined = setup is torch.autograd.Function.setup_context
    return taken.replace(parameters=[*taken.parameters.values()][combined:])


def written(op: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that the schema says are written into."""
    arguments = schema_of(op).arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def definer(op: OpOverload) -> Callable[..., Any] | None:
    """The Python function that `torch.library.custom_op` decorated, if one did."""
    return function_behind(definition(op))


def definition(op: OpOverload) -> Any:
    """The `torch.library.custom_op` that made an overload, or the overload itself."""
    return OPERATORS.get(schema_of(op).name) or op


def registered_rules(op: OpOverload) -> Rules:
    """Read how an operator is differentiated, without running it.

    Raises:
        UnsupportedError: the schema has an argument that no stand-in can be made for.
    """
    if has_kernel(op.name(), "CompositeImplicitAutograd"):
        return Rules("composite")
    arguments = schema_of(op).arguments
    try:
        # Outside of every transform, mode and override that is active, with gradients on.
        with (
            temporarily_clear_interpreter_stack(),
            disable_current_modes(),
            disable_torch_function(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            positional = [_stand_in(a, op) for a in arguments if not a.kwarg_only]
            named = {a.name: _stand_in(a, op) for a in arguments if a.kwarg_only}
            with _Stop(op):
                op(*positional, **named)
    except UnsupportedError:
        raise
    except _ReachedError as reached:
        for frame, _ in traceback.walk_tb(reached.__traceback__):
            if (rules := rules_in(frame)) is not None:
                return Rules("none" if rules[0] is None else "registered", *rules)
    except Exception:  # a kernel for autograd, by hand, that does not take empty tensors
        return Rules("foreign")
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA")
    return Rules("foreign" if any(has_kernel(op.name(), key) for key in keys) else "none")


class _ReachedError(Exception):
    """The operator was about to run."""


class _Stop(Observing):
    def __init__(self, op: OpOverload) -> None:
        super().__init__()
        self._op = op

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is self._op:
            raise _ReachedError
        return func(*args, **(kwargs or {}))


_VALUES = {
    "int": 0, "float": 0.0, "bool": False, "str": "", "number": 0, "SymInt": 0, "SymFloat": 0.0,
    "SymBool": False, "complex": 0j, "Device": torch.device("cpu"), "ScalarType": torch.float32,
    "Layout": torch.strided, "MemoryFormat": torch.contiguous_format, "Generator": None,
}  # fmt: skip


def _stand_in(argument: Any, op: OpOverload) -> Any:
    """A value that the schema takes: tensors are empty and require a gradient."""
    kind = str(argument.real_type)
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if kind == "Tensor":
        return torch.empty(0, requires_grad=True)
    if kind.startswith("List[") and "Tensor" in kind:
        return [torch.empty(0, requires_grad=True)]
    if argument.has_default_value():
        return argument.default_value
    if optional or kind.startswith("List["):
        return None if optional else []
    if kind in _VALUES:
        return _VALUES[kind]
    raise UnsupportedError(
        f"{operator_name(op)} takes a {kind}, so that its rules cannot be read.",
        mend="Write it as a pullback.Function.",
    )
