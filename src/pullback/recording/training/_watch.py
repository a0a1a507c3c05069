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
        self._held: dict[int, Parameter] = {}  # those that an optimiser holds, by their bits
        self._free: dict[int, Parameter] = {}  # those that none does
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
        enough, _ = KINDS["not held"]
        free = [p for p in self._free.values() if p.alive >= enough and not p.excused]
        rare = rarely_used(self._held.values())
        yield from self._not_finite
        for parameter in self._held.values():
            if not (parameter.alive or parameter.excused or parameter.pattern in rare):
                yield from self._judge(parameter, free)
        for parameter in free:
            detail = f"at {parameter.alive} of the steps looked at"
            yield ParameterFinding(parameter.name, "not held", detail)

    def _judge(self, dead: Parameter, free: list[Parameter]) -> Iterator[ParameterFinding]:
        """What is to be said of a parameter that never had a gradient, if it is enough."""
        flow, detail = self._flow, f"at each of {dead.steps} steps"
        reached, cause = flow.reached & dead.bit, flow.cause(dead.bit)
        others = (p for p in self._held.values() if p.optimizer == dead.optimizer)
        if cause.operation and (dead.nothing == dead.steps or not reached):
            kind = "cut"
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
        if all(number >= _CLOSE for number in self._counts.values()):
            flow.leave()
        elif count <= _CLOSE:
            flow.enter()

    def _look_at_all(self, optimizer: Any, count: int) -> list[Parameter]:
        """Look at all that an optimiser holds, and at what none does; answers the former."""
        held: list[Parameter] = []
        for tensor in [p for group in optimizer.param_groups for p in group["params"]]:
            bit, place = self._flow.bit_of(tensor), f"{len(held)} of {type(optimizer).__name__}"
            if bit not in self._held:
                unnamed = f"parameter {place}, of shape {tuple(tensor.shape)}"
                self._held[bit] = Parameter(bit, weakref.ref(tensor), unnamed, id(optimizer))
                self._free.pop(bit, None)
            held.append(self._held[bit])
        for tensor, (name, owner) in name_parameters(self._modules).items():
            bit = self._flow.bit_of(tensor)
            if bit in self._held:
                self._held[bit].name = name
            elif tensor.grad is not None and tensor.requires_grad:
                free = self._free.setdefault(bit, Parameter(bit, weakref.ref(tensor), name))
                free.name = name
                free.look()
                free.excused |= not owner.training
        endless = [parameter for parameter in held if not math.isfinite(parameter.look())]
        found = [ParameterFinding(p.name, "not finite", f"at step {count}") for p in endless]
        self._not_finite = self._not_finite or found  # the first: soon all are, for their sake
        return held


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
