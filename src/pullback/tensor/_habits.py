"""Old habits of published rules, answered so that they work under `torch.func`.

Rules that were written before `torch.func` read ``x.data`` (which vmap forbids), ask an input
for ``requires_grad`` (which is false below a transform), and apply other Functions in combined
form (which `torch.func` refuses). None of them changes what is computed.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["complete_inner", "old_habits"]

_tensor: Any = torch.Tensor
_base: Any = torch.autograd.Function
_DATA = _tensor.data.__get__
_REQUIRES_GRAD = _tensor.requires_grad.__get__

_lock = threading.Lock()
_active = 0


class _Habits(TorchFunctionMode):
    def __init__(self, needs: dict[int, bool]) -> None:
        super().__init__()
        self._needs = needs

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == _DATA:
            return args[0].detach()
        if func == _REQUIRES_GRAD and id(args[0]) in self._needs:
            return self._needs[id(args[0])]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def old_habits(
    tensors: Sequence[torch.Tensor] = (),
    needs: Sequence[bool] = (),
    *,
    published: bool,
) -> Iterator[None]:
    """Run a rule below transforms.

    Arguments:
        tensors: the inputs of forward, as the rule has them.
        needs: what each is to answer when it is asked whether it requires a gradient.
        published: the rule is third-party code, whose inner Functions are completed.
    """
    flags = {id(tensor): need for tensor, need in zip(tensors, needs, strict=True)}
    with _Habits(flags), complete_inner() if published else contextlib.nullcontext():
        yield


# Set by pullback.tensor._complete, which needs this module.
completer: Callable[[Any], Any] | None = None


@contextlib.contextmanager
def complete_inner() -> Iterator[None]:
    """Complete, while active, each Function in combined form that is applied under torch.func."""
    global _active  # noqa: PLW0603 - one patch of torch, counted over threads
    original = _base.__dict__["apply"]
    with _lock:
        _active += 1
        if _active == 1:
            _base.apply = classmethod(_redirect(original.__func__))
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                _base.apply = classmethod(_unwrap(_base.__dict__["apply"].__func__))


def _redirect(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        combined = cls.setup_context is _base.setup_context
        if completer is None or not torch._C._are_functorch_transforms_active():
            return original(cls, *args, **kwargs)
        inner = completer(cls) if combined else cls
        interpreter = retrieve_current_functorch_interpreter()
        if interpreter.key() == TransformType.Functionalize:
            return _below_functionalize(interpreter, inner, args)
        return inner.apply(*args, **kwargs) if combined else original(cls, *args, **kwargs)

    apply.__wrapped__ = original  # type: ignore[attr-defined]
    return apply


def _below_functionalize(interpreter: Any, function: Any, args: tuple[Any, ...]) -> Any:
    """Apply a Function below the level that makes changes in place pure; torch has no rule."""
    level = interpreter.level()

    def lower(value: Any) -> Any:
        return torch._from_functional_tensor(value) if torch._is_functional_tensor(value) else value

    given = pytree.tree_map_only(torch.Tensor, lower, args)
    with interpreter.lower():
        result = function.apply(*given)
    return pytree.tree_map_only(
        torch.Tensor,
        lambda value: torch._C._functorch._wrap_functional_tensor(value, level),
        result,
    )


def _unwrap(function: Any) -> Callable[..., Any]:
    return getattr(function, "__wrapped__", function)
