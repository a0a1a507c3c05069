"""Where torch is lenient with published rules, answered so that they work under `torch.func`.

Rules that were written before `torch.func` read ``x.data`` (which vmap forbids), ask an input
for ``requires_grad`` (which is false below a transform), and apply other Functions that
`torch.func` refuses: in combined form, without a jvp or a vmap rule. None of them changes what is
computed.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import (
    FunctionMode,
    OpOverloadPacket,
    TransformType,
    answering,
    are_functorch_transforms_active,
    current_interpreter,
    drops_writes,
    from_functional_tensor,
    is_functional_tensor,
    is_legacy_batchedtensor,
    is_of_an_operator,
    is_traced,
    never_compile,
    pytree,
    schema_of,
    wrap_functional_tensor,
)
from pullback.tensor.values._errors import Raised
from pullback.tensor.values._functions import (
    DECIDING,
    LEAVING,
    name_of,
    pure_form,
    tensors_in,
    writes_into_a_view,
)
from pullback.tensor.values._levels import indexed
from pullback.tensor.watch._watch import watching

__all__ = ["complete_inner", "leniency"]

_tensor: Any = torch.Tensor
_base: Any = torch.autograd.Function
_DATA = _tensor.data.__get__
_DETACHING = (_DATA, _tensor.detach, torch.detach)
_REQUIRES_GRAD = _tensor.requires_grad.__get__


class _Leniency(FunctionMode):
    def __init__(self, name: str, needs: dict[int, bool]) -> None:
        super().__init__()
        self._name = name
        self._needs = needs

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _DETACHING and is_legacy_batchedtensor(args[0]) and not torch.is_grad_enabled():
            return args[0]  # for .data torch would end the process
        if func == _DATA:
            return args[0].detach()
        written = indexed(*args, **(kwargs or {})) if func in _BY_INDEX else None
        if written is not None:
            return args[0].copy_(written)
        if func == _REQUIRES_GRAD and id(args[0]) in self._needs:
            return self._needs[id(args[0])]
        if func in _PRIVATE and any(map(self._is_no_leaf, _asked(func, args, kwargs or {}))):
            raise _leafless(self._name)  # allow_unused would make it None without a word
        left = LEAVING.get(func) or DECIDING.get(func)
        if left and is_traced():
            raise UnsupportedError(
                f"{self._name} cannot be traced: a rule leaves torch through {left}.",
                mend="Write the rules in torch operations, or do not trace it.",
            )
        if isinstance(func, OpOverloadPacket) and is_traced() and _writes(func):
            raise UnsupportedError(
                f"{self._name} cannot be traced: it calls {func}, which writes into an argument, "
                "and torch.func.linearize drops such a call.",
                mend="Let the operator return what it computes, or do not trace it.",
            )
        if drops_writes() and writes_into_a_view(func, args):
            raise UnsupportedError(
                f"{self._name} cannot be traced: it changes a view in place ({name_of(func)}), and "
                "torch.func.linearize drops such a change.",
                mend="Compute out of place (torch.where, torch.cat), or do not trace it.",
            )
        pure = pure_form(func) if drops_writes() else None
        if pure is not None and args and isinstance(args[0], torch.Tensor):
            # What torch.func.linearize returns makes each change once more, each time it is called.
            return args[0].copy_(pure(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _is_no_leaf(self, tensor: torch.Tensor) -> bool:
        if not self._needs.get(id(tensor), False):
            return not tensor.requires_grad
        # One item of a batch says that it requires a gradient, and no graph reaches it.
        with torch.enable_grad():
            node = tensor.view_as(tensor).grad_fn
        return node is None or node.next_functions[0][0] is None


_BY_INDEX = {_tensor.__setitem__, _tensor.index_put_, torch.index_put_}

# What asks for a private derivative, and how many of its arguments need a graph.
_PRIVATE: dict[Any, int] = {torch.autograd.grad: 2, torch.autograd.backward: 1, _tensor.backward: 1}


def _asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that are to be differentiated, and those with respect to which."""
    named = (kwargs.get(name) for name in ("outputs", "tensors", "inputs"))
    return tensors_in(*args[: _PRIVATE[func]], *named)


def _leafless(name: str) -> Raised:
    return Raised(
        f"{name} is refused by torch.func: a rule differentiates what it computes of its inputs "
        "themselves, which are no leaves of autograd below a transform.",
        mend="Let the rule differentiate with respect to x.detach().requires_grad_(), made "
        "inside of enable_grad().",
    )


def _writes(packet: Any) -> bool:
    overloads = [getattr(packet, name) for name in packet.overloads()]
    custom = not any(overload.namespace == "aten" for overload in overloads)
    return custom and any(schema_of(overload).is_mutable for overload in overloads)


@contextlib.contextmanager
def leniency(answers: dict[int, bool], *, name: str) -> Iterator[None]:
    """Run a rule below transforms.

    Arguments:
        answers: what tensors, by id, are to answer when asked whether they require a gradient.
        name: of the Function, for a refusal.
    """
    with _Leniency(name, answers), complete_inner():
        try:
            yield
        except RuntimeError as error:
            untraceable = isinstance(error, NotImplementedError) and is_traced()
            if isinstance(error, PullbackError) or not untraceable:
                raise
            raise UnsupportedError(
                f"{name} cannot be traced: a rule makes something else of a tensor: {error}.",
                mend="Write the rules in torch operations, or do not trace it.",
            ) from error


# Set by pullback.tensor._complete, which needs this module.
completer: Callable[[Any], Any] | None = None


def complete_inner() -> contextlib.AbstractContextManager[None]:
    """Complete, while active, each Function that torch.func cannot take as it is applied to it."""
    return answering(_complete)


def _complete(
    call: Callable[..., Any], cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    lacks = (
        cls.setup_context is _base.setup_context
        or cls.jvp is _base.jvp
        or (cls.vmap is _base.vmap and not cls.generate_vmap_rule)
    )
    # What torch makes of an operator's rules runs inside of the dispatcher, below all transforms.
    of_an_operator = is_of_an_operator(cls)
    watch = watching()
    if watch is not None:
        return watch.apply(lambda *a, **k: _complete(call, cls, a, k), args, kwargs)
    if completer is None or of_an_operator or not are_functorch_transforms_active():
        return call(cls, *args, **kwargs)
    inner = completer(cls) if lacks else cls
    interpreter = current_interpreter()
    if interpreter.key() == TransformType.Functionalize:
        return _below_functionalize(interpreter, inner, args)
    return inner.apply(*args, **kwargs) if lacks else call(cls, *args, **kwargs)


never_compile(complete_inner, callees=True)  # type: ignore[arg-type]


def _below_functionalize(interpreter: Any, function: Any, args: tuple[Any, ...]) -> Any:
    """Apply a Function below the level that makes changes in place pure; torch has no rule."""
    level = interpreter.level()

    def lower(value: Any) -> Any:
        return from_functional_tensor(value) if is_functional_tensor(value) else value

    given = pytree.tree_map_only(torch.Tensor, lower, args)
    with interpreter.lower():
        result = function.apply(*given)
    return pytree.tree_map_only(
        torch.Tensor,
        lambda value: wrap_functional_tensor(value, level),
        result,
    )
