"""`watch_training`: name each parameter that trains no more while a program runs.

torch calls hooks around the step of every optimiser. At the first steps of each the program is
followed closely (`Flow`); later only the parameters that have had no gradient yet are looked at,
and all of them at the steps 4, 8, 16, 32, and every 64th. So an expert that is chosen rarely is
heard when it is, and the watch costs next to nothing.
"""

import functools
import json
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from pullback.internal.torch import disable_torch_function
from pullback.recording.training._flow import Flow, largest

__all__ = ["KINDS", "ParameterFinding", "Training", "TrainingWatch", "watch_training"]


KINDS = {
    "cut": (2, "is used, and its gradient is cut"),
    "unused": (3, "is in no loss"),
    "zero": (5, "has a gradient of exactly zero"),
    "not finite": (1, "has a gradient that is not finite"),
    "not held": (2, "gets gradients, and no optimiser holds it"),
    "replaced": (3, "was replaced after the optimiser was made, which holds the old one"),
    "no gradient": (3, "had no gradient at a step, as all that its optimiser holds"),
}
"""Kind -> how many steps it takes to tell (a gradient may be zero at first), and what it says."""


@dataclass(frozen=True)
class ParameterFinding:
    """What is wrong with one parameter.

    Arguments:
        name: its name from the outermost module, ``"Net.layers.0.weight"``.
        kind: one of `KINDS`.
        detail: what was seen.
        operation: what cuts its gradient, or makes it zero; an empty text where that is not known.
        place: ``"file:line"`` of that operation, or an empty text.

    Example:
        >>> print(ParameterFinding("Net.gate.weight", "unused", "in 40 steps"))
        Net.gate.weight is in no loss, in 40 steps
    """

    name: str
    kind: str
    detail: str
    operation: str = ""
    place: str = ""

    def __str__(self) -> str:
        where = " at ".join(filter(None, (self.operation, self.place)))
        return f"{self.name} {KINDS[self.kind][1]}, {self.detail}{where and ': '}{where}"


@dataclass(frozen=True)
class Training:
    """What the processes of a program have found in training.

    Arguments:
        findings: what is wrong, each once.
        steps: how many steps the optimisers of all processes have made.
        fault: why a process could not be watched, or an empty text.
    """

    findings: tuple[ParameterFinding, ...] = ()
    steps: int = 0
    fault: str = ""

    @classmethod
    def collect(cls, directory: str | Path) -> "Training":
        """Put together what the processes have left in a directory."""
        found: dict[ParameterFinding, None] = {}
        steps, fault = 0, ""
        for path in sorted(Path(directory).glob("training-*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            found |= dict.fromkeys(ParameterFinding(**item) for item in data["findings"])
            steps, fault = steps + data["steps"], fault or data["fault"]
        return cls(tuple(found), steps, fault)


_CLOSE = 3  # steps of each optimiser that are followed closely
_EVERY = 64
_SAMPLE = 16  # entries of a parameter by which one sees that somebody changes it
_WRAPPERS = (["module"], ["_orig_mod"])  # of a distributed and of a compiled model


@dataclass(eq=False)
class _Parameter:
    """What is known of a parameter, which it outlives."""

    bit: int  # the set that holds it alone
    tensor: Any  # a weak reference to it
    name: str
    optimizer: int = 0  # which one holds it, if any does
    shape: Any = ()
    sample: Any = None
    steps: int = 0  # at which it was looked at
    nothing: int = 0  # of these without a gradient
    alive: int = 0  # with one that is not zero
    first: int = 0  # which of them was the first
    excused: bool = False  # it changes without a gradient, or its module is in evaluation mode

    def look(self) -> float:
        """Look at it after a step of an optimiser, and answer how large its gradient is."""
        tensor = self.tensor()
        if tensor is None or not tensor.requires_grad:
            return 0.0
        peak = largest(tensor.grad)
        self.shape = tensor.shape
        self.steps += 1
        self.nothing += tensor.grad is None
        self.alive += peak != 0
        self.first = self.first or self.alive * self.steps
        # Another tensor that an optimiser holds may lie on several ranks.
        if type(tensor) is torch.nn.Parameter or not self.optimizer:
            before = self.sample
            if before is None or tensor.grad is None or not self.optimizer:
                self.sample = tensor.detach().flatten()[:_SAMPLE].clone()
                self.excused |= before is not None and not torch.equal(before, self.sample)
        return peak


class TrainingWatch:
    """Watches the training of a program; true where nothing is wrong. See `watch_training`.

    Arguments:
        models: those that exist already.
        looked: called when all parameters were looked at: what is known now may have changed.

    Attributes:
        steps: how many steps optimisers have made.
        fault: why the watch gave up, or an empty text; the program is not disturbed.
    """

    def __init__(self, *models: torch.nn.Module, looked: Callable[[], None] = lambda: None) -> None:
        self.steps = 0
        self.fault = ""
        self._looked = looked
        self._flow = Flow(self._meet)
        # In their order, by identity: a module may define a hash that it has only once it is made.
        self._modules = weakref.WeakValueDictionary({id(model): model for model in models})
        self._held: dict[int, _Parameter] = {}  # those that an optimiser holds, by their bits
        self._free: dict[int, _Parameter] = {}  # those that none does
        self._not_finite: list[ParameterFinding] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._suspects: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._hooks = ExitStack()

    def __enter__(self) -> "TrainingWatch":
        for hook in (
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
            modules.register_module_parameter_registration_hook(self._meet),
            modules.register_module_module_registration_hook(self._meet),
        ):
            self._hooks.enter_context(hook)
        self._flow.enter()
        return self

    def leave(self, *reason: object) -> None:
        """Watch no more."""
        self._flow.leave()
        self._hooks.close()

    __exit__ = leave

    @property
    def findings(self) -> tuple[ParameterFinding, ...]:
        """What is wrong, as far as it is known now."""
        return tuple(self)

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        if not self:
            return "\n".join(map(str, self))
        if self.fault:
            return f"The training could not be watched: {self.fault}"
        if not self.steps:
            return "No optimiser made a step."
        return f"Every parameter that an optimiser holds trains, in {self.steps} steps."

    def __iter__(self) -> Iterator[ParameterFinding]:
        enough, _ = KINDS["not held"]
        free = [p for p in self._free.values() if p.alive >= enough and not p.excused]
        yield from self._not_finite
        for parameter in _dead(self._held.values()):
            yield from self._judge(parameter, free)
        for parameter in free:
            detail = f"at {parameter.alive} of the steps looked at"
            yield ParameterFinding(parameter.name, "not held", detail)

    def _judge(self, dead: _Parameter, free: list[_Parameter]) -> Iterator[ParameterFinding]:
        """What is to be said of a parameter that never had a gradient, if it is enough."""
        flow, detail = self._flow, f"at each of {dead.steps} steps"
        reached, cause = flow.reached & dead.bit, flow.cause(dead.bit)
        others = (p for p in self._held.values() if p.optimizer == dead.optimizer)
        # What is behind a backward that returns None may have zeros for it.
        if cause.operation and (dead.nothing == dead.steps or not reached or cause.nothing):
            kind = "cut"
            detail += ", where backward returns None" * cause.nothing
        elif dead.nothing < dead.steps:
            kind = "zero"
        elif any(p.nothing < p.steps for p in others):
            kind = "unused"
        else:
            kind = "no gradient"
        if dead.steps < KINDS[kind][0]:
            return
        if not flow.reached or flow.fault:
            detail += f" (what is computed was not followed: {flow.fault or 'not seen'})"
        if kind == "no gradient" and reached:
            detail += " (backward reached it: what it had was cleared before the step)"
        # The parameter without an optimiser that stands where one without a use stood.
        shaped = [p for p in free if p.shape == dead.shape]
        taken = [p for p in shaped if p.name == dead.name] or shaped
        if taken and kind in ("unused", "no gradient"):
            free.remove(taken[0])
            yield ParameterFinding(taken[0].name, "replaced", "so that it does not train")
        else:
            yield ParameterFinding(dead.name, kind, detail, cause.operation, cause.place)

    def _meet(self, module: Any, *part: Any) -> None:
        self._modules.setdefault(id(module), module)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        given = (each for each in (*args[1:], *kwargs.values()) if callable(each))
        self._flow.stepping = optimizer, _code_of(next(given, None))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if not self.fault:
                with disable_torch_function():  # what is looked at is no part of the program
                    self._stepped(optimizer)
        except Exception as error:  # the program must run on
            self.fault = f"{type(error).__name__}: {error}"
            self._flow.leave()
        finally:
            self._flow.stepping = None

    def _stepped(self, optimizer: Any) -> None:
        self.steps += 1
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        close = count <= _CLOSE or count & (count - 1) == 0 or count % _EVERY == 0
        looked, flow = self._hold(optimizer) if close else self._suspects[optimizer], self._flow
        if not looked and not flow.entered:
            return  # as at almost every step of a sound program, in microseconds
        endless = [parameter for parameter in looked if not math.isfinite(parameter.look())]
        self._suspects[optimizer] = [parameter for parameter in looked if not parameter.alive]
        if close:
            self._look_at_free()
            found = [ParameterFinding(p.name, "not finite", f"at step {count}") for p in endless]
            self._not_finite = self._not_finite or found  # the first: soon all are, for their sake
            self._looked()
        # Of those that a backward pass reached, and that had nothing of it: where does it stop?
        flow.wanted = flow.reached & sum({p.bit for some in self._suspects.values() for p in some})
        if all(number >= _CLOSE for number in self._counts.values()):
            flow.leave()
        elif count <= _CLOSE:
            flow.enter()

    def _hold(self, optimizer: Any) -> list[_Parameter]:
        held: list[_Parameter] = []
        for tensor in [p for group in optimizer.param_groups for p in group["params"]]:
            bit, place = self._flow.bit_of(tensor), f"{len(held)} of {type(optimizer).__name__}"
            if bit not in self._held:
                unnamed = f"parameter {place}, of shape {tuple(tensor.shape)}"
                self._held[bit] = _Parameter(bit, weakref.ref(tensor), unnamed, id(optimizer))
                self._free.pop(bit, None)
            held.append(self._held[bit])
        return held

    def _look_at_free(self) -> None:
        """Name all parameters, and look at those that get gradients and that no optimiser holds."""
        for tensor, (name, owner) in _named(list(self._modules.values())).items():
            bit = self._flow.bit_of(tensor)
            if bit in self._held:
                self._held[bit].name = name
            elif tensor.grad is not None and tensor.requires_grad:
                free = self._free.setdefault(bit, _Parameter(bit, weakref.ref(tensor), name))
                free.name = name
                free.look()
                free.excused |= not owner.training


def watch_training(*modules: torch.nn.Module) -> TrainingWatch:
    """Watch how a program trains, and name each parameter that does not.

    Named are parameters that an optimiser holds and that are *cut* (used, but the gradient ends at
    an operation, whose file and line are given), *unused* (in no loss), *zero* (exactly, at every
    step), *not finite*; those that get gradients and are *not held* by any optimiser, though their
    module is in training mode and nobody else changes them; and those that were *replaced* after
    the optimiser was made. Nothing is said of what does not require gradients: it is frozen. What
    is compiled runs eagerly during the first three steps of each optimiser.

    Arguments:
        modules: models that exist already, so that their parameters have names even where the
            models are never called; others are met when they are made or called.

    Returns:
        A context manager that is also the result: iterate over it for `ParameterFinding`, print it,
        ask whether it is true (nothing is wrong). It never raises into the program.

    Example:
        >>> import torch
        >>> body, head = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        >>> with watch_training(body, head) as training:
        ...     for _ in range(3):
        ...         head(body(torch.randn(4, 2)).detach()).sum().backward()
        ...         optimizer.step()
        >>> [(finding.name, finding.kind, finding.operation) for finding in training]
        [('Linear#1.weight', 'cut', '.detach()')]
    """
    return TrainingWatch(*modules)


def _code_of(closure: Any) -> Any:
    while isinstance(closure, functools.partial):
        closure = closure.func
    return getattr(closure, "__code__", getattr(type(closure).__call__, "__code__", None))


def _dead(parameters: Iterable[_Parameter]) -> Iterator[_Parameter]:
    """Those that never had a gradient, but for what is routed: siblings come to life in turn."""
    siblings: dict[str, list[_Parameter]] = {}
    for parameter in parameters:
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", parameter.name)
        siblings.setdefault(pattern, []).append(parameter)
    for pattern, some in siblings.items():
        # Unless it lapsed, its steps without a gradient are those before its first with one.
        firsts = {step for p in some if p.alive for step in (p.first, p.steps - p.alive + 1)}
        if "*" not in pattern or len(firsts) < 2:
            yield from (p for p in some if not p.alive and not p.excused)


def _named(modules: list[Any]) -> dict[Any, tuple[str, Any]]:
    """Each parameter -> its name from the outermost module, and the module that holds it.

    Wrappers of a compiled or distributed model are left out; several models of one class have
    numbers: ``Net#2.layers.0.weight``.
    """
    inner = {part for module in modules for part in module.modules() if part is not module}
    roots = [module for module in modules if module not in inner]
    # As torch has it, whatever the author's own `parameters` gives.
    own = torch.nn.Module.parameters
    roots = [root for root in map(_unwrapped, roots) if next(own(root), None) is not None]
    kinds = [type(root).__name__ for root in roots]
    found: dict[Any, tuple[str, Any]] = {}
    for k, (root, kind) in enumerate(zip(roots, kinds, strict=True)):
        number = f"#{kinds[:k].count(kind) + 1}" if kinds.count(kind) > 1 else ""
        for path, module in root.named_modules(prefix=kind + number):
            for name, parameter in module.named_parameters(recurse=False):
                found.setdefault(parameter, (f"{path}.{name}", module))
    return found


def _unwrapped(module: Any) -> Any:
    while [name for name, _ in module.named_children()] in _WRAPPERS:
        [module] = module.children()
    return module
