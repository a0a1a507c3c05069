"""What a tracker does with the tensors that come out of modules, and with their gradients.

In eager code the output of a module is measured and left as it is: the same object, so that an
operation in place, a dictionary or a dataclass goes on as before, and its gradient is seen by a
tensor hook. In code that is being compiled, and inside torch.func, tensor hooks are not available;
there the tensors of the output are passed through `pullback.tracking.track`'s Function. An
`Attachment` hangs all hooks of a store on a model, and takes every one of them off again. A
`FunctionWatch` does the same with what functions return inside of a module's forward.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.overrides import resolve_name

from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.internal._open import open_function
from pullback.internal.torch import (
    FunctionMode,
    base_of,
    disable_torch_function,
    leave_function_mode,
    peek_interpreter_stack,
    version_of,
)
from pullback.tracking._hang import GradientHook, Hook, Hung, Overlay, Running, hook_gradient
from pullback.tracking._outputs import replace_tensors, tensors_in
from pullback.tracking.formats import QuantisationNoise, SimulatedFormat
from pullback.tracking.formats._noise import NoiseMeter, Sums, noise_between
from pullback.tracking.measure._dispatch import PLAIN, check_measurable
from pullback.tracking.run._identity import ROOT
from pullback.tracking.watch._measures import factors_of
from pullback.tracking.watch._store import Seen, Store
from pullback.tracking.watch._track import begin_operator, in_backward, pass_through

__all__ = ["Attachment", "FunctionWatch", "Names", "choose_by", "unmatched"]


def _measure_gradient(store: Store, names: list[Seen], order: int, gradient: torch.Tensor) -> None:
    """Measure the gradient of one tensor, under each name that the tensor was returned by."""
    if store.closed:
        return
    if type(gradient) in PLAIN:
        store.follow(gradient, names, order)
    if gradient.requires_grad:  # a graph of the backward pass: its gradients come next
        see = functools.partial(_measure_gradient, store, names, order + 1)
        gradient.register_hook(GradientHook(see))


class Sightings:
    """Which tensors were seen in this step, so that one returned twice is measured once.

    A container often returns the very tensor that its last module returned. It is named twice and
    measured once; an operation in place in between raises its version and makes it a new value.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[int, tuple[Any, int, list[Seen]]] = {}
        self._leaves: list[Any] = []

    def clear(self) -> None:
        """Forget all tensors; they are only held weakly in any case."""
        self._seen.clear()
        for handle in self._leaves:
            handle.remove()
        self._leaves.clear()

    def takes(self, values: torch.Tensor, name: str) -> bool:
        """Whether a value can be measured; what cannot is named among the skipped."""
        if type(values) not in PLAIN:
            self.store.skipped[name] = f"a {type(values).__name__}, not a plain tensor"
            return False
        try:
            check_measurable(values)
        except UnsupportedError as refusal:
            self.store.skipped[name] = refusal.what
            return False
        return True

    def take(self, output: Any, name: str, inputs: Any) -> Any:
        """Measure what a module or function returned for inputs.

        Returns ``None``, or under torch.func, which has no tensor hooks, what takes its place.
        """

        def through(path: str, values: torch.Tensor) -> torch.Tensor:
            takes = self.takes(values, name + path)
            return self._copied(name, path, values) if takes else values

        with disable_torch_function():  # what measuring computes, the model does not call
            if peek_interpreter_stack() is not None:
                try:
                    return replace_tensors(output, through)
                except UnsupportedError as refusal:
                    self.store.skipped[name] = refusal.what
                    return None
            for path, values in tensors_in(output):
                self.see(values, name + path, inputs)
            return None

    def trace(self, output: Any, name: str) -> Any:
        """The same in code that is being compiled: what takes the place of an output."""
        return replace_tensors(output, functools.partial(self._copied, name))

    def _copied(self, name: str, path: str, values: torch.Tensor) -> torch.Tensor:
        # A copy: what follows may change the output in place, which a view of a custom Function's
        # input does not allow. Compilers remove the copy where nothing does.
        return pass_through(values, self.store.handle, name + path, copy=True)

    def see(self, values: torch.Tensor, name: str, inputs: Any = ()) -> None:
        """Measure a value that a module returned for inputs, and later its gradient."""
        if not self.takes(values, name):
            return
        recomputed = in_backward()
        version = version_of(values)
        known = self._seen.get(id(values))
        if known is not None and known[0]() is values and known[1] == version >= 0:
            names = known[2]
            names.append(self.store.observe(values, name, recomputed, names[0]))
            return
        names = [self.store.observe(values, name, recomputed)]
        self._seen[id(values)] = (ref(values), version, names)
        if values.requires_grad:

            def is_given(base: torch.Tensor) -> bool:
                given = (tensor for _, tensor in tensors_in(inputs))
                return any(base is each or base is base_of(each) for each in given)

            see = functools.partial(_measure_gradient, self.store, names, 1)
            handle = hook_gradient(values, see, is_given)
            if values.is_leaf:  # a parameter outlives its graph, and must not keep the hook
                self._leaves.append(handle)


Choose = Callable[[str, nn.Module], bool]
Names = str | Iterable[str] | Choose | None


def choose_by(names: Names) -> Choose:
    """Whether a module is meant, by patterns of names or by a function; all of them by default."""
    if callable(names) and _takes_two(names):
        return names
    given: Any = "*" if names is None else names
    patterns: tuple[Any, ...] = (given,) if isinstance(given, str) or callable(given) else (*given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentTypeError(
            "Names are patterns.",
            given=f"names={names!r}",
            expected="text, several texts, or a function of name and module",
        )
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


def unmatched(names: Names, of: Iterable[str]) -> list[str]:
    """The patterns that match none of the names of modules."""
    patterns = [names] if isinstance(names, str) else [] if callable(names) else names or ()
    return [each for each in patterns if not any(fnmatchcase(name, each) for name in of)]


def _takes_two(function: Choose) -> bool:
    """Whether a function takes a name and a module, as far as its signature can be known."""
    try:
        inspect.signature(function).bind("", nn.Identity())
    except ValueError:  # it has none
        return True
    except TypeError:
        return False
    return True


class Attachment:
    """The hooks of one store on any number of models."""

    def __init__(self, store: Store) -> None:
        self.sightings = Sightings(store)
        self._store = store
        self._undo: list[Hung | Overlay] = []
        self._watched: list[tuple[str, Hung]] = []
        self._roots: list[tuple[ref[nn.Module], Choose, str]] = []
        self._noise: tuple[QuantisationNoise, ...] = ()
        # Of simulated models: our names by their meter's, and what it had at the beginning.
        self._meters: list[tuple[dict[str, str], NoiseMeter, Sums]] = []
        store.between = self.sightings.clear

    def attach(self, model: nn.Module, choose: Choose, prefix: str = "") -> int:
        """Hang hooks on a model and its modules; give how many modules are watched."""
        parts = [(prefix, model), *((prefix + name, part) for name, part in model.named_children())]
        for name, part in parts:
            if not isinstance(part, torch.jit.ScriptModule):
                begin = functools.partial(self._begin, name, part is model)
                traced = functools.partial(self._trace_begin, name) if part is model else None
                self._undo.append(Hung(part, Hook(begin, traced), before=True))
        if not isinstance(model, torch.jit.ScriptModule):
            self._undo.append(Hung(model, Hook(self._end), always_call=True))
        watched = 0
        for path, module in model.named_modules():
            name = (prefix + path).rstrip(".") or ROOT
            if isinstance(module, SimulatedFormat) and module.meter is not None:
                self._meet(module, module.meter, path, lambda n, part: choose(prefix + n, part))
            if not choose(name, module):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self._store.skipped[name] = "a ScriptModule, which runs outside Python"
                continue
            take = functools.partial(self._take, name), functools.partial(self._trace, name)
            hung = Hung(module, Hook(*take))
            self._undo += hung, Overlay(module, "forward")
            self._watched.append((name, hung))
            watched += 1
        self._roots.append((ref(model), choose, prefix))
        return watched

    def detach(self) -> None:
        """Take off every hook, and name the modules that were not watched to the end."""
        self._noise = self.noise()
        self._meters.clear()
        for name, hung in self._watched:
            if hung.is_lost:
                reason = "after somebody else removed its hook; its figures end there"
                self._store.skipped[name] = reason
        while self._undo:
            self._undo.pop().remove()
        self.sightings.clear()
        for root, choose, prefix in self._roots:
            model = root()
            if model is not None:
                self._name_late(model, choose, prefix)
        self._roots.clear()
        self._watched.clear()

    def _name_late(self, model: nn.Module, choose: Choose, prefix: str) -> None:
        """Name the modules of a model that came while it was watched."""
        watched = {id(hung.module) for _, hung in self._watched}
        for path, module in model.named_modules():
            name = (prefix + path).rstrip(".") or ROOT
            told = id(module) in watched or name in self._store.skipped
            if not told and choose(name, module):
                self._store.skipped[name] = "a module that came while the model was watched"

    def noise(self) -> tuple[QuantisationNoise, ...]:
        """What simulated formats have lost while they were watched, in the order of appearance.

        Nothing is read from a device before the end or before someone asks.
        """
        found = (
            replace(each, module=names[each.module])
            for names, meter, before in self._meters
            for each in noise_between(before, meter.sums())
            if each.module in names
        )
        return (*self._noise, *found)

    def _meet(self, model: SimulatedFormat, meter: NoiseMeter, path: str, choose: Choose) -> None:
        """Begin with the meter of a simulated model that is made with ``measure=True``."""
        inside = f"{path}.model" if path else "model"
        names = {
            name: full
            for name, module in model.model.named_modules()
            if choose(full := f"{inside}.{name}" if name else inside, module)
        }
        self._meters.append((names, meter, meter.sums()))

    def _begin(self, root: str, whole: bool, module: nn.Module, inputs: Any) -> None:
        """Before the forward of a model, or of a part that is called by itself: a pass begins.

        A Lightning module, for one, is never called; its ``training_step`` calls its parts. Parts
        begin nothing until the forward of the ``whole`` model is over, and what torch.jit.trace
        runs, where even sizes are tensors, is no pass.
        """
        if in_backward() or torch.jit.is_tracing():
            return
        if whole or not self._store.inside:
            self._store.begin(root, module.training)
            self._store.inside = whole

    def _trace_begin(self, root: str, module: nn.Module, inputs: Any) -> None:
        begin_operator(self._store.handle, root, module.training)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """After a model's forward: its parts may be called by themselves again."""
        self._store.inside = False

    def _take(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        """After a module's forward: measure what it returned."""
        if torch.jit.is_tracing():
            return None
        if not self._store.active:
            self._store.touched = True
            return None
        if self._store.measures.blocks:
            for key, values in factors_of(module, name, inputs, output):
                if self.sightings.takes(values, key.name):
                    self._store.observe_factor(values, key)
        return self.sightings.take(output, name, inputs)

    def _trace(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        return self.sightings.trace(output, name)


class FunctionWatch(FunctionMode):
    """Measures what some functions return while a model's forward runs, and their gradients.

    The name of what is measured is that of the module that runs, a slash, and the function's:
    ``"encoder.0/softmax"``. An operator and a method go by the function's name: ``"add"`` is also
    ``x + y`` and ``x.add_(y)``. Compiled code is passed over.
    """

    def __init__(self, sightings: Sightings, patterns: Sequence[str]) -> None:
        super().__init__()
        self._sightings = sightings
        self._patterns = patterns
        self._unseen = set(patterns)
        self._running = Running()

    def attach(self, model: nn.Module) -> None:
        """Follow which module runs, and look at what is called."""
        self._running.follow((name or ROOT, module) for name, module in model.named_modules())
        self.__enter__()

    def detach(self) -> None:
        """Look no more, and say which patterns were of nothing that was called."""
        leave_function_mode(self)
        said = "no function of this name was called, compiled code apart"
        self._sightings.store.skipped.update(dict.fromkeys(sorted(self._unseen), said))
        self._running.stop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return func(*args, **kwargs)
        name, path = _short_name(func), self._running.names
        chosen = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        opened = None if chosen else open_function(func)
        if opened is not None and path:
            with self:  # the mode is off inside of this method; what is inside counts
                return opened(*args, **kwargs)
        result = func(*args, **kwargs)
        self._unseen.difference_update(chosen if path else ())
        if chosen and path and self._sightings.store.active:
            full = f"{path[-1]}/{name}"
            if peek_interpreter_stack() is not None and any(result is given for given in args):
                self._sightings.store.skipped[full] = (
                    "what changes its argument in place, in torch.func"
                )
                return result
            taken = self._sightings.take(result, full, (args, kwargs))
            result = result if taken is None else taken
        return result


@functools.cache
def _short_name(function: Callable[..., Any]) -> str:
    full = resolve_name(function) or getattr(function, "__name__", "")
    name = full.rpartition(".")[2].strip("_")
    return _OPERATORS.get(name, name)


# Operators of Python by the names of torch's functions.
_OPERATORS = {
    "radd": "add", "iadd": "add", "rsub": "sub", "isub": "sub", "rmul": "mul", "imul": "mul",
    "truediv": "div", "rtruediv": "div", "itruediv": "div", "rmatmul": "matmul",
}  # fmt: skip
