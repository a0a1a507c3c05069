"""Hang hooks on modules, of which whatever is copied or saved meanwhile has nothing.

`copy.deepcopy` and pickle ask an object itself for ``__reduce_ex__``, the method that says what it
is made of; so a module that is watched has one of its own, which leaves out what trackers put
there. A module with a ``__deepcopy__`` of its own copies its hooks, which become inert (`Hook`).
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    base_of,
    forward_hooks_of,
    is_known_to_export,
    never_compile,
    remove_forward_hook,
    version_of,
    without_forward_hooks,
)

__all__ = ["GradientHook", "Hook", "Hung", "Overlay", "Running", "hook_gradient", "names_of"]

_REDUCE = "__reduce_ex__"


class _Unscriptable(UnsupportedError, AttributeError):
    """A hook has no name; others may ask whether it has one."""


class Hook:
    """A hook that belongs to one tracker, and becomes inert where it is copied.

    It does one thing in eager code, and another or nothing in code that is being compiled.
    """

    def __init__(
        self, eager: Callable[..., Any], compiled: Callable[..., Any] | None = None
    ) -> None:
        self.eager = eager
        self.compiled = compiled

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, *output: Any) -> Any:
        inputs = (*args, *kwargs.values())
        if torch.compiler.is_compiling():
            # What is exported runs where nobody tracks, and where this package need not be.
            exported = not torch.compiler.is_dynamo_compiling() or is_known_to_export()
            if self.compiled is None or exported:
                return None
            return self.compiled(module, inputs, *output)
        return self.eager(module, inputs, *output)

    @property
    def __name__(self) -> str:
        """What torch.jit.script, which would compile a hook, asks first."""
        raise _Unscriptable(
            "torch.jit.script cannot compile the hooks of a module that is tracked.",
            mend="Script it before or after the `with` block of the tracker.",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        inert = Hook(lambda module, *_: remove_forward_hook(module, inert))
        return inert

    def __reduce__(self) -> Any:  # in a file: a saved model is loaded without this package
        return getattr, (contextlib.nullcontext(), "__exit__")


# Dynamo enters the hooks of a compiled module in two ways. Those of its parts it traces as a piece
# of the forward. Those of the module itself torch calls outside of it, in Python, where Dynamo
# would make a graph of each function that they call.
never_compile(Hook.__call__)


class Hung:
    """A hook on a module, before its forward or after it, also after one that raises."""

    def __init__(
        self,
        module: nn.Module,
        hook: Hook,
        *,
        before: bool = False,
        always_call: bool = False,
    ) -> None:
        if before:  # and before the user's own: a module that one of these ends has begun too
            self._handle = module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
        else:
            self._handle = module.register_forward_hook(
                hook, with_kwargs=True, always_call=always_call
            )
        self._module = ref(module)
        vars(module).setdefault(_REDUCE, MethodType(_reduce_plainly, module))

    @property
    def module(self) -> nn.Module | None:
        """What it hangs on, as long as that is there."""
        return self._module()

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has removed it."""
        hooks = self._handle.hooks_dict_ref()
        return hooks is not None and self._handle.id not in hooks

    def remove(self) -> None:
        """Take it off; with the last one the module is as it was."""
        self._handle.remove()
        module = self.module
        if module is not None and not any(map(_is_ours, forward_hooks_of(module))):
            vars(module).pop(_REDUCE, None)


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Each module of a model with all of its names there; that of the model itself is empty."""
    names: dict[nn.Module, list[str]] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        names.setdefault(part, []).append(name)
    return names


class GradientHook:
    """Calls a function with the gradient of one tensor, if one comes."""

    __slots__ = ("_came", "_changes", "_see", "_version")

    def __init__(self, see: Callable[[torch.Tensor], None]) -> None:
        self._see = see
        self._came = False

    def __call__(self, gradient: torch.Tensor | None) -> None:
        # Of a node with several outputs, as those of chunk, torch hands on what got none, too.
        if gradient is not None:
            self._came = True
            self._see(gradient)

    def follow_base(self, values: torch.Tensor, base: torch.Tensor) -> None:
        """Look at the gradient of the tensor that the value is a view of, too.

        An operation in place on a view takes the view's node out of the graph, and hooks with
        it; the node of its base stays. A linear layer's output is such a view, and an in-place
        activation after it is common.
        """
        self._changes, self._version = values.detach(), version_of(values)
        self._changes.data = values.new_empty(0)  # it shares the count of changes, and no memory
        base.register_hook(self._of_base)

    def _of_base(self, gradient: torch.Tensor | None) -> None:
        # A view that nothing changed and whose gradient never came has none: another used the base.
        changed = version_of(self._changes) != self._version
        if gradient is not None and changed and not self._came:
            self._see(gradient)
        self._came = False


# A whole step that is compiled runs its backward pass with Dynamo looking on.
never_compile(GradientHook.__call__)
never_compile(GradientHook._of_base)


def hook_gradient(
    values: torch.Tensor,
    see: Callable[[torch.Tensor], None],
    is_seen: Callable[[torch.Tensor], bool],
) -> RemovableHandle:
    """Call a function with the gradient of a tensor, if one comes.

    What it is a view of tells it where the tensor is changed in place, if that is of all the
    elements, was computed, and is not seen itself.
    """
    hook, base = GradientHook(see), base_of(values)
    whole = base is not None and not base.is_leaf and base.numel() == values.numel()
    handle = values.register_hook(hook)
    if base is not None and whole and not is_seen(base):
        hook.follow_base(values, base)
    return handle


class Running:
    """Which modules of a model are running in this thread, by name, the innermost last."""

    def __init__(
        self, names: Iterable[str] = (), ended: Callable[[Any], None] = lambda output: None
    ) -> None:
        self.names = list(names)
        self._ended = ended
        self._undo = contextlib.ExitStack()

    def follow(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Keep the names while modules call one another."""
        self._thread = threading.get_ident()  # hooks are seen by all that run the same modules
        for name, module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                begin, end = Hook(functools.partial(self._begin, name)), Hook(self._end)
                self._undo.callback(Hung(module, begin, before=True).remove)
                self._undo.callback(Hung(module, end, always_call=True).remove)

    def stop(self) -> None:
        """Look no more."""
        self._undo.close()

    def _begin(self, name: str, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self.names.append(name)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and self.names:
            self.names.pop()
            self._ended(output)


class Overlay:
    """Something of an object's own in the place of a method, until it is removed.

    It makes compiled code look again, which never checks for hooks that came after it. It does
    check that a module has no ``forward`` of its own, or which; so the module gets one, the very
    method it had or what calls it. Without it, the code compiled before is valid again.

    Arguments:
        after: what to call each time when the method has run.
    """

    def __init__(self, owner: Any, name: str, after: Callable[[], None] | None = None) -> None:
        own, found = vars(owner).get(name), getattr(owner, name)
        self._owner, self._name = ref(owner), name
        plain = own is None and after is None
        self._given = vars(owner)[name] = found if plain else _Calling(found, own, after)

    def remove(self) -> None:
        """Give back the method that there was before; one that somebody set since stays."""
        owner, given, own = self._owner(), self._given, None
        if isinstance(given, _Calling):
            given.after, own = None, given.own
        if owner is None:
            return
        now = vars(owner).get(self._name)
        if now is given and own is None:
            del vars(owner)[self._name]
        elif now is given:
            vars(owner)[self._name] = own
        while isinstance(now, _Calling):  # what came later
            if now.own is given:
                now.own = own
            now = now.own


class _Calling:
    """Calls a method, and then what is to be called after it.

    ``own`` is what the object gets back in the end: nothing once an overlay before it is gone.
    """

    def __init__(self, method: Any, own: Any, after: Callable[[], None] | None) -> None:
        functools.update_wrapper(self, method)  # first: it copies what an overlay before it has
        self.method, self.own, self.after = method, own, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.method(*args, **kwargs)
        if self.after is not None:
            self.after()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.method,)


def _same(method: Any) -> Any:
    return method


def _is_ours(hook: object) -> bool:
    return isinstance(hook, Hook)


def _reduce_plainly(module: nn.Module, protocol: Any) -> Any:
    """What a module is made of, but for hooks and overlays."""
    reduced = type(module).__reduce_ex__(module, protocol)
    if len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state = without_forward_hooks(reduced[2], _is_ours)
    state.pop(_REDUCE, None)
    forward = state.pop("forward", None)
    while isinstance(forward, _Calling):
        forward = forward.own
    if forward not in (None, MethodType(type(module).forward, module)):
        state["forward"] = forward
    return *reduced[:2], state, *reduced[3:]
