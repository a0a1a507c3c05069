"""The autocast policy of a Function, declared in one attribute.

=================  ==================================================================
``"inherit"``      forward runs under the caller's autocast, backward under the same
``"ambient"``      each runs under whatever is in force when it runs, as torch does
``"disable"``      both run with autocast off; inputs keep their dtype
a `torch.dtype`    under autocast, floating inputs are cast to it; both run with it off
=================  ==================================================================
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import torch

from pullback.errors import DefinitionError
from pullback.internal.torch import is_any_autocast_enabled

__all__ = ["Policy", "State", "cast_inputs", "forward_state", "scope", "validate"]

Policy = Literal["inherit", "ambient", "disable"] | torch.dtype

# (device type, enabled, dtype) for each device type that a call touches; None: leave it alone.
State = tuple[tuple[str, bool, torch.dtype], ...] | None


def validate(name: str, policy: Any) -> None:
    """Refuse a policy that does not exist, when the class is defined."""
    if isinstance(policy, torch.dtype) and policy.is_floating_point:
        return
    if policy not in ("inherit", "ambient", "disable"):
        raise DefinitionError(
            f"{name} declares an unknown autocast policy.",
            given=f"autocast = {policy!r}",
            expected="'inherit', 'ambient', 'disable' or a floating torch.dtype",
        )


def forward_state(policy: Policy, tensors: Sequence[torch.Tensor]) -> State:
    """The autocast state that forward runs under; ``None`` where autocast is off."""
    if not is_any_autocast_enabled():
        return None
    devices = {tensor.device.type for tensor in tensors} or {"cpu"}
    keep = policy in ("inherit", "ambient")
    return tuple(
        (device, keep and torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in sorted(devices)
        if torch.amp.is_autocast_available(device)
    )


def cast_inputs(policy: Policy, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Cast floating tensors under autocast, differentiably, if the policy is a dtype."""
    if not isinstance(policy, torch.dtype) or not is_any_autocast_enabled():
        return tensors
    return [
        tensor.to(policy)
        if tensor.is_floating_point()
        and tensor.dtype is not torch.float64
        and torch.is_autocast_enabled(tensor.device.type)
        else tensor
        for tensor in tensors
    ]


def scope(state: State) -> contextlib.AbstractContextManager[Any]:
    """Enter the autocast state of forward again."""
    if state is None and not is_any_autocast_enabled():
        return _NOTHING
    stack = contextlib.ExitStack()
    for device, enabled, dtype in state or _off():
        stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
    return stack


def _off() -> tuple[tuple[str, bool, torch.dtype], ...]:
    return tuple(
        (device, False, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.amp.is_autocast_available(device)
    )


_NOTHING = contextlib.nullcontext()
