"""Runs on fake tensors, which end the process where a kernel reads memory that is not there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pullback.conformance.evidence._screen import died
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._probe import Probe
from pullback.conformance.process._failure import classify, describe, raised
from pullback.conformance.process._forked import ProcessDied, can_copy, forked
from pullback.internal.torch import (
    FakeTensor,
    FakeTensorMode,
    Observing,
    compile_in_one_thread,
    has_own_fake,
    pytree,
)
from pullback.report import Finding, Verdict

__all__ = ["Failed", "form_of", "survived", "trace"]

# A compiler may be at work.
_SECONDS = 300.0


@dataclass(frozen=True)
class Failed:
    """An error, judged where its traceback is."""

    verdict: Verdict
    told: str
    outputs: tuple[tuple[str, str], ...] = ()  # of forward, where it is backward that fails


def trace(probe: Probe) -> list[tuple[str, str]] | Failed:
    """The type and form of each output and gradient of a run on fake tensors, made in a copy.

    Raises:
        ProcessDied: the run ended the copy.
    """
    subject, found = _KNOWN.get(probe.inputs, (None, ""))
    if subject is not probe.subject:
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            converted = [mode.from_tensor(value) for value in probe.inputs.values]
        shadow = type(probe)(
            probe.subject, probe.inputs.with_values(converted), probe.original,
            outputs=probe.outputs, seed=probe.seed,
        )  # fmt: skip
        try:
            found = forked(lambda: _traced(shadow, mode))
        except ProcessDied as death:
            found = str(death)  # the exception holds the arguments, by its traceback
        _KNOWN[probe.inputs] = probe.subject, found
    if isinstance(found, str):
        raise ProcessDied(found)
    return found


# Several clauses ask, and a copy of the process costs as much as many calls.
_Known = list[tuple[str, str]] | Failed | str
_KNOWN: WeakKeyDictionary[Arguments, tuple[Subject, _Known]] = WeakKeyDictionary()


def survived(probe: Probe, test: Callable[[Probe], Finding]) -> Finding:
    """The finding of a clause whose test runs the function on fake tensors, whatever these do.

    A plain run on them is tried in a copy of the process. Only where it ends the copy the whole
    clause, which may take other paths, is run in one too.
    """
    # What is refused the clauses say how clearly.
    if not (can_copy() and isinstance(raised(lambda: trace(probe)), ProcessDied)):
        return test(probe)
    try:
        return forked(lambda: _alone(probe, test), _SECONDS)
    except ProcessDied as death:
        return died(probe, "A run on fake tensors ends the process.", death)


def _alone(probe: Probe, test: Callable[[Probe], Finding]) -> Finding:
    """In a copy, which has none of the threads of the original."""
    compile_in_one_thread()
    return test(probe)


class _Failing(Observing):
    """Notes the operator in which a run fails.

    Not where a tensor with numbers is among its arguments: torch refuses that before any rule.
    """

    op: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if self.op is None and all(isinstance(x, FakeTensor) for x in given):
                self.op = func
            raise


def _traced(shadow: Probe, mode: FakeTensorMode) -> list[tuple[str, str]] | Failed:
    made: list[torch.Tensor] = []
    with mode, _Failing() as failing:
        try:
            ghosts = [x.detach().clone().requires_grad_() for x in shadow.inputs.points()]
            made = list(shadow.unseeded(*ghosts))
            slopes = shadow.pull(ghosts, [torch.ones_like(y) for y in made], made)
        except Exception as error:  # judged by its type, and by whose operator it comes from
            written = has_own_fake(failing.op)
            verdict = classify(error, written=written)
            return Failed(verdict, describe(error), tuple(_forms(made)))
        return _forms([*made, *slopes])


def _forms(tensors: Sequence[torch.Tensor]) -> list[tuple[str, str]]:
    return [(type(t).__name__, form_of(t)) for t in tensors]


def form_of(tensor: torch.Tensor) -> str:
    """The shape and dtype of a tensor, in words."""
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}"
