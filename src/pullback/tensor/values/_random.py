"""Generators of random numbers: known before a Function draws, put back when it runs again."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pullback.internal._generators import rewinds
from pullback.tensor.values._structure import HOLE, is_data

__all__ = ["States", "changed", "put_back", "replaying", "states"]

# Of each default generator that a call can draw from, by its device, and of each that it is given.
States = dict[Any, Any] | None


def states(tensors: Sequence[torch.Tensor | None], others: Sequence[Any] = ()) -> States:
    """The states of generators: the default ones of the CPU and of devices, and given ones.

    Arguments:
        tensors: the tensors among the arguments of a call.
        others: what else is among them.
    """
    found: dict[Any, Any] = {_CPU: torch.default_generator.get_state()}
    for tensor in tensors:
        if tensor is None or tensor.is_cpu or tensor.is_meta or tensor.device in found:
            continue
        found[tensor.device] = _get(tensor.device)
    for value in others:
        if value is not HOLE and not is_data(value) and (rewind := rewinds(value)) is not None:
            found[value] = rewind
    return found


_CPU = torch.device("cpu")


def changed(before: States) -> bool:
    """Whether random numbers have been drawn since; for that a generator is handed over."""
    return any(
        callable(state) or not torch.equal(_get(where), state)
        for where, state in (before or {}).items()
    )


@contextlib.contextmanager
def replaying(before: States) -> Iterator[None]:
    """Draw the same random numbers again, then go on as if nothing had been drawn."""
    now = {where: _get(where) for where in before or ()}
    try:
        put_back(before)
        yield
    finally:
        put_back(now)


def put_back(before: States) -> None:
    """Let the numbers that were drawn since be drawn again."""
    for where, state in (before or {}).items():
        if callable(state):
            state()
        else:
            _set(where, state)


def _get(where: Any) -> Any:
    if not isinstance(where, torch.device):
        return rewinds(where)
    if where.type == "cpu":
        return torch.default_generator.get_state()
    return torch.get_device_module(where).get_rng_state(where)


def _set(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
