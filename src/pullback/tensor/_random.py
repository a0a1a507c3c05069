"""Generators of random numbers: known before a Function draws, put back when it runs again."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

__all__ = ["changed", "put_back", "replaying", "states"]

# Of each default generator that a call can draw from, by its device.
States = dict[torch.device, torch.Tensor] | None


def states(tensors: Sequence[torch.Tensor | None]) -> States:
    """The states of the default generators of the CPU and of the tensors' devices."""
    found = {_CPU: torch.default_generator.get_state()}
    for tensor in tensors:
        if tensor is None or tensor.is_cpu or tensor.is_meta or tensor.device in found:
            continue
        found[tensor.device] = _get(tensor.device)
    return found


_CPU = torch.device("cpu")


def changed(before: States) -> bool:
    """Whether random numbers have been drawn since."""
    return any(not torch.equal(_get(device), state) for device, state in (before or {}).items())


@contextlib.contextmanager
def replaying(before: States) -> Iterator[None]:
    """Draw the same random numbers again, then go on as if nothing had been drawn."""
    now = {device: _get(device) for device in before or ()}
    try:
        put_back(before)
        yield
    finally:
        put_back(now)


def put_back(before: States) -> None:
    """Let the numbers that were drawn since be drawn again."""
    for device, state in (before or {}).items():
        _set(device, state)


def _get(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.default_generator.get_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
