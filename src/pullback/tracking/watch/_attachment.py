"""`Attachment`: hang a store's hooks on a model, and take every one of them off again."""

import functools
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any
from weakref import ref

import torch
from torch import nn

from pullback.errors import ArgumentTypeError
from pullback.tracking.watch._hooks import BeginHook, EndHook, OutputHook, Sightings
from pullback.tracking.watch._noise import NoiseWatch
from pullback.tracking.watch._store import Store

__all__ = ["ROOT", "Attachment", "Names", "choose_by"]

ROOT = "(root)"

Choose = Callable[[str, nn.Module], bool]


Names = str | Sequence[str] | Choose | None


def choose_by(names: Names) -> Choose:
    """Whether a module is meant, by patterns of names or by a function; all of them by default.

    Raises:
        ArgumentTypeError: names of another type.
    """
    if names is None:
        return lambda name, module: True
    if callable(names):
        return names
    patterns = (
        (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    )
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentTypeError(
            "Names are patterns.",
            given=f"names={names!r}",
            expected="text, several texts, or a function of name and module",
        )
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


class Attachment:
    """The hooks of one store on any number of models."""

    def __init__(self, store: Store) -> None:
        self.sightings = Sightings(store)
        self.noise = NoiseWatch()
        self._store = store
        self._undo: list[Callable[[], Any]] = []
        self._watched: list[tuple[str, Any]] = []
        store.between = self.sightings.clear

    @property
    def skipped(self) -> dict[str, str]:
        """Outputs that could not be measured, with the reason."""
        return self.sightings.skipped

    def attach(self, model: nn.Module, choose: Choose, prefix: str = "") -> int:
        """Hang hooks on a model and its modules; give how many modules are watched."""
        parts = [(prefix, model), *((prefix + name, part) for name, part in model.named_children())]
        for name, part in parts:
            if not isinstance(part, torch.jit.ScriptModule):
                begin = BeginHook(self._store, name, part is model)
                handle = part.register_forward_pre_hook(begin, prepend=True)
                self._undo.append(handle.remove)
        if not isinstance(model, torch.jit.ScriptModule):
            handle = model.register_forward_hook(EndHook(self._store), always_call=True)
            self._undo.append(handle.remove)
        self.noise.start(model, lambda name, part: choose(prefix + name, part))
        watched = 0
        for path, module in model.named_modules():
            name = (prefix + path).rstrip(".") or ROOT
            if not choose(name, module):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self.sightings.skipped[name] = "a ScriptModule, which runs outside Python"
                continue
            handle = module.register_forward_hook(OutputHook(self.sightings, name))
            self._undo.append(handle.remove)
            self._watched.append((name, handle))
            self._mark(module)
            watched += 1
        return watched

    def _mark(self, module: nn.Module) -> None:
        """Make compiled code look again: it never checks for hooks that came after it.

        It does check that a module has no ``forward`` of its own, or which; so the module gets
        one, which is the very method it had or calls it. Without it, the code compiled before is
        valid again.
        """
        own = module.__dict__.get("forward")
        given = module.__dict__["forward"] = module.forward if own is None else _Calling(own)
        self._undo.append(functools.partial(_put_back, ref(module), given))

    def detach(self) -> None:
        """Take off every hook, and name the modules whose hook somebody else has removed."""
        self.noise.stop()
        for name, handle in self._watched:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id not in hooks:
                self.skipped[name] = "after somebody else removed its hook; its figures end there"
        while self._undo:
            self._undo.pop()()
        self._watched.clear()
        self.sightings.clear()


def _put_back(weak: ref[nn.Module], given: Any) -> None:
    """Give a module the forward that it had before a mark; one that somebody set since stays."""
    module = weak()
    if module is None:
        return
    own = given.own if isinstance(given, _Calling) else None
    now = module.__dict__.get("forward")
    if now is given and own is None:
        del module.__dict__["forward"]
    elif now is given:
        module.__dict__["forward"] = own
    while isinstance(now, _Calling):  # the marks of attachments that came later
        if now.own is given:
            now.own = own
        now = now.own


class _Calling:
    """Calls a module's own forward, of which a copy or a pickle holds that alone.

    ``own`` is what the module gets back in the end: nothing once a mark before it is gone.
    """

    def __init__(self, forward: Any) -> None:
        self.forward = self.own = forward
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.forward,)


def _same(forward: Any) -> Any:
    return forward
