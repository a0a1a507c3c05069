"""`watch_training`: name each parameter that trains no more while a program runs.

torch calls hooks around the step of every optimiser. At the first steps of each the program is
followed closely (`Flow`); later only the parameters that have had no gradient yet are looked at,
and all of them at the steps 4, 8, 16, 32, and every 64th. So an expert that is chosen rarely is
heard when it is, and the watch costs next to nothing.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from pullback.internal.torch import disable_torch_function
from pullback.recording.training._finding import KINDS, ParameterFinding
from pullback.recording.training._flow import Flow
from pullback.recording.training._parameters import Parameter, name_parameters, rarely_used

__all__ = ["TrainingWatch", "watch_training"]

_CLOSE = 3  # steps of each optimiser that are followed closely
_EVERY = 64


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
        self._modules = weakref.WeakKeyDictionary(dict.fromkeys(models))  # in their order
        self._known: dict[int, Parameter] = {}  # by their bits
        self._not_finite: list[ParameterFinding] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._suspects: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._opened = 0  # the step at which the newest optimiser made its first
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

    def __exit__(self, *reason: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Watch no more."""
        self._flow.leave()
        self._hooks.close()

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
        known = self._known.values()
        enough, _ = KINDS["not held"]
        free = [p for p in known if not (p.optimizer or p.excused) and p.alive >= enough]
        rare = rarely_used(known)
        yield from self._not_finite
        for parameter in known:
            if parameter.optimizer and not parameter.alive and parameter.pattern not in rare:
                yield from self._judge(parameter, free)
        for parameter in free:
            detail = f"at {parameter.alive} of the steps looked at"
            yield ParameterFinding(parameter.name, "not held", detail)

    def _judge(self, dead: Parameter, free: list[Parameter]) -> Iterator[ParameterFinding]:
        """What is to be said of a parameter that never had a gradient, if it is enough."""
        flow, detail = self._flow, f"at each of {dead.steps} steps"
        reached, cause = flow.reached & dead.bit, flow.cause(dead.bit)
        others = (p for p in self._known.values() if p.optimizer == dead.optimizer)
        if cause.operation and (dead.nothing == dead.steps or not reached):
            kind = "cut"
        elif dead.nothing < dead.steps:
            kind = "zero"
        elif any(p.nothing < p.steps for p in others):
            kind = "unused"
        else:
            kind = "no gradient"
        if dead.excused or dead.steps < KINDS[kind][0]:
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

    def _meet(self, module: Any, *how: Any) -> None:
        """Take a module that is called, or is given a parameter or another module."""
        self._modules.setdefault(module)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._flow.paused = True  # what it computes by itself is no training; its closure is

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if not self.fault:
                with disable_torch_function():  # what is looked at is no part of the program
                    self._stepped(optimizer)
        except Exception as error:  # the program must run on
            self.fault = f"{type(error).__name__}: {error}"
            self._flow.leave()
        finally:
            self._flow.paused = False

    def _stepped(self, optimizer: Any) -> None:
        self.steps += 1
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        suspects, flow = self._suspects.get(optimizer, []), self._flow
        if count <= _CLOSE or count & (count - 1) == 0 or count % _EVERY == 0:
            suspects = self._look_at_all(optimizer, count)
            self._looked()
        elif not suspects and not flow.entered:
            return  # as at almost every step of a sound program, in microseconds
        else:
            for parameter in suspects:
                parameter.look()
        self._suspects[optimizer] = [parameter for parameter in suspects if not parameter.alive]
        # Of those that a backward pass reached, and that had nothing of it: where does it stop?
        asked = {parameter.bit for some in self._suspects.values() for parameter in some}
        flow.wanted = flow.reached & sum(asked)
        flow.patience = math.inf
        # An optimiser that is never used again does not keep the watch awake.
        self._opened = self.steps if count == 1 else self._opened
        patient = self.steps - self._opened < 4 * _CLOSE * len(self._counts)
        if patient and any(number < _CLOSE for number in self._counts.values()):
            flow.enter()
        else:
            flow.leave()

    def _look_at_all(self, optimizer: Any, count: int) -> list[Parameter]:
        """Look at all that an optimiser holds, and at what none does; answers the former."""
        held: list[Parameter] = []
        for tensor in [p for group in optimizer.param_groups for p in group["params"]]:
            place = f"{len(held)} of {type(optimizer).__name__}"
            unnamed = f"parameter {place}, of shape {tuple(tensor.shape)}"
            held.append(self._know(tensor, unnamed, id(optimizer)))
        for tensor, (name, owner) in name_parameters(self._modules).items():
            known = self._know(tensor, name)
            known.name = name
            if tensor.grad is not None and tensor.requires_grad and not known.optimizer:
                known.look()
                known.excused |= not owner.training
        endless = [parameter for parameter in held if not math.isfinite(parameter.look())]
        found = [ParameterFinding(p.name, "not finite", f"at step {count}") for p in endless]
        self._not_finite = self._not_finite or found  # the first: soon all are, for their sake
        return held

    def _know(self, tensor: Any, name: str, optimizer: int = 0) -> Parameter:
        """What is known of a parameter; one that was not held by an optimiser is looked at anew."""
        bit = self._flow.bit_of(tensor)
        known = self._known.get(bit)
        if known is None or (optimizer and not known.optimizer):
            name = name if known is None else known.name
            known = self._known[bit] = Parameter(bit, weakref.ref(tensor), name, optimizer)
        return known


def watch_training(*modules: torch.nn.Module) -> TrainingWatch:
    """Watch how a program trains, and name each parameter that does not.

    Named are parameters that an optimiser holds and that are *cut* (used, but the gradient ends at
    an operation, whose file and line are given), *unused* (in no loss), *zero* (the gradient is
    exactly zero at every step), *not finite*; those that get gradients and are *not held* by any
    optimiser, though their module is in training mode and nobody else changes them; and those that
    were *replaced* after the optimiser was made. What does not require gradients is frozen, and
    nothing is said of it.

    The first three steps of each optimiser are followed closely; what is compiled runs eagerly
    there. A parameter is judged after two steps or more, a zero gradient after five.

    Arguments:
        modules: models that exist already, so that their parameters have names even where the
            models are never called; others are met when they are made or called.

    Returns:
        A context manager that is also the result: iterate over it for `ParameterFinding`, print it,
        ask whether it is true (nothing is wrong). It never raises into the program.

    Example:
        >>> import torch
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        ...     def forward(self, x):
        ...         return self.head(self.body(x).detach())
        >>> with watch_training() as training:
        ...     net = Net()
        ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ...     for _ in range(3):
        ...         net(torch.randn(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> [(finding.name, finding.operation) for finding in training]
        [('Net.body.weight', '.detach()'), ('Net.body.bias', '.detach()')]
    """
    return TrainingWatch(*modules)
