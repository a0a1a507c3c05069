"""The hooks that a tracker hangs on modules, and on the tensors that come out of them.

In eager code the output of a module is measured and left as it is: the same object, so that an
operation in place, a dictionary or a dataclass goes on as before, and its gradient is seen by a
tensor hook. In code that is being compiled, and inside torch.func, tensor hooks are not available;
there the tensors of the output are passed through `pullback.tracking.track`'s Function.
"""

from typing import Any
from weakref import ref

import torch
from torch import nn

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    base_of,
    disable_torch_function,
    never_compile,
    peek_interpreter_stack,
    version_of,
)
from pullback.tracking.measure._dispatch import check_measurable
from pullback.tracking.watch._blocks import input_name, weight_name
from pullback.tracking.watch._hang import Hook
from pullback.tracking.watch._outputs import replace_tensors, tensors_in
from pullback.tracking.watch._store import Seen, Store
from pullback.tracking.watch._track import begin_operator, in_backward, pass_through

__all__ = ["BeginHook", "EndHook", "OutputHook", "Sightings"]


class _GradientHook:
    """Measures the gradient of one tensor, under each name that the tensor was returned by."""

    __slots__ = ("names", "order", "store", "taken")

    def __init__(self, store: Store, names: list[Seen], order: int) -> None:
        self.store = store
        self.names = names
        self.order = order
        self.taken = False

    def __call__(self, gradient: torch.Tensor) -> None:
        self.taken = True
        self._measure(gradient)

    def of_base(self, gradient: torch.Tensor) -> None:
        """The gradient of the tensor that the value is a view of, if the view's never came.

        An operation in place on a view takes the view's node out of the graph, and hooks with
        it; the node of its base stays. A linear layer's output is such a view, and an in-place
        activation after it is common.
        """
        if not self.taken:
            self._measure(gradient)
        self.taken = False

    def _measure(self, gradient: torch.Tensor) -> None:
        if self.store.closed:
            return
        if type(gradient) in _PLAIN:
            self.store.follow_all(gradient, self.names, self.order)
        if gradient.requires_grad:  # a graph of the backward pass: its gradients come next
            gradient.register_hook(_GradientHook(self.store, self.names, self.order + 1))


_PLAIN = (torch.Tensor, nn.Parameter)


class Sightings:
    """Which tensors were seen in this step, so that one returned twice is measured once.

    A container often returns the very tensor that its last module returned. It is named twice and
    measured once; an operation in place in between raises its version and makes it a new value.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.skipped: dict[str, str] = {}
        self._seen: dict[int, tuple[Any, int, _GradientHook]] = {}
        self._leaves: list[Any] = []

    def clear(self) -> None:
        """Forget all tensors; they are only held weakly in any case."""
        self._seen.clear()
        for handle in self._leaves:
            handle.remove()
        self._leaves.clear()

    def takes(self, values: torch.Tensor, name: str) -> bool:
        """Whether a value can be measured; what cannot is named among the skipped."""
        if type(values) not in _PLAIN:
            self.skipped[name] = f"a {type(values).__name__}, not a plain tensor"
            return False
        try:
            check_measurable(values)
        except UnsupportedError as refusal:
            self.skipped[name] = refusal.what
            return False
        return True

    def take(self, output: Any, name: str, inputs: Any) -> Any:
        """Measure what a module or function returned for inputs.

        Returns ``None``, or under torch.func, which has no tensor hooks, what takes its place.
        """
        with disable_torch_function():  # what measuring computes, the model does not call
            return self._take(output, name, inputs)

    def _take(self, output: Any, name: str, inputs: Any) -> Any:
        if peek_interpreter_stack() is None:
            for path, values in tensors_in(output):
                self.see(values, name + path, inputs)
            return None

        def through(path: str, values: torch.Tensor) -> torch.Tensor:
            takes = self.takes(values, name + path)
            return _copied(values, self.store, name + path) if takes else values

        try:
            return replace_tensors(output, through)
        except UnsupportedError as refusal:
            self.skipped[name] = refusal.what
            return None

    def see(self, values: torch.Tensor, name: str, inputs: Any = ()) -> None:
        """Measure a value that a module returned for inputs, and later its gradient."""
        if not self.takes(values, name):
            return
        recomputed = in_backward()
        version = version_of(values)
        known, known_version, hook = self._seen.get(id(values), (_gone, -1, None))
        if hook is not None and known() is values and known_version == version >= 0:
            hook.names.append(self.store.observe_again(values, name, hook.names[0], recomputed))
            return
        hook = _GradientHook(self.store, [self.store.observe(values, name, recomputed)], 1)
        self._seen[id(values)] = (ref(values), version, hook)
        if values.requires_grad:
            handle = values.register_hook(hook)
            if values.is_leaf:  # a parameter outlives its graph, and must not keep the hook
                self._leaves.append(handle)
            base = _own_base(values, inputs)
            if base is not None:
                base.register_hook(hook.of_base)


def _gone() -> None:
    return None


def _copied(values: torch.Tensor, store: Store, name: str) -> torch.Tensor:
    # A copy: what follows may change the output in place, which a view of a custom Function's
    # input does not allow. Compilers remove the copy where nothing does.
    return pass_through(values, store, name, copy=True)


def _own_base(values: torch.Tensor, inputs: Any) -> torch.Tensor | None:
    """The base of a view of all its elements, unless the module was given that base."""
    base = base_of(values)
    if base is None or base.is_leaf or base.numel() != values.numel():
        return None
    given = (tensor for _, tensor in tensors_in(inputs))
    if any(tensor is base or base_of(tensor) is base for tensor in given):
        return None
    return base


class OutputHook(Hook):
    """After a module's forward: measure what it returned."""

    def __init__(self, sightings: Sightings, name: str) -> None:
        self.sightings = sightings
        self.store = sightings.store
        self.name = name

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if torch.compiler.is_compiling():
            return replace_tensors(output, self._pass_through)
        if not self.store.active:
            self.store.touched = True
            return None
        if self.store.measures.blocks:
            self._observe_factors(module, inputs)
        return self.sightings.take(output, self.name, inputs)

    def _observe_factors(self, module: nn.Module, inputs: Any) -> None:
        """Measure what a layer multiplies: a matrix of its own, and its first input."""
        weight = getattr(module, "weight", None)
        values = inputs[0] if isinstance(inputs, tuple) and inputs else None
        if not (isinstance(weight, torch.Tensor) and weight.dim() == 2):
            return
        if isinstance(values, torch.Tensor) and values.is_floating_point():  # not an embedding
            self.store.observe_factor(values, input_name(self.name), "module")
            self.store.observe_factor(weight, weight_name(self.name), "parameter")

    def _pass_through(self, path: str, values: torch.Tensor) -> torch.Tensor:
        return _copied(values, self.store, self.name + path)


class BeginHook(Hook):
    """Before the forward of a model, or of a part that is called by itself: a pass begins.

    A Lightning module, for one, is never called; its ``training_step`` calls its parts.
    """

    def __init__(self, store: Store, root: str, whole: bool) -> None:
        self.store = store
        self.root = root
        self.whole = whole  # the model itself: its parts begin nothing until its forward is over

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            if self.whole:
                begin_operator(self.store.handle, self.root, module.training)
        elif not in_backward() and (self.whole or not self.store.inside):
            self.store.begin(self.root, module.training)
            self.store.inside = self.whole


class EndHook(Hook):
    """After a model's forward: its parts may be called by themselves again."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.store.inside = False


# Dynamo enters the hooks of a compiled module in two ways. Those of its parts it traces as a piece
# of the forward. Those of the module itself torch calls outside of it, in Python, where Dynamo
# would make a graph of each function that they call.
for _hook in (OutputHook, BeginHook, EndHook):
    never_compile(_hook.__call__)
