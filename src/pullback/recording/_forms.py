"""The forms that the domain of a Function may ask its numbers to have."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["forms"]


def forms(args: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The same arguments in the forms that a domain may ask for, those that differ from the given.

    Example:
        >>> [name for name, _ in forms((torch.tensor([2.0, 1.0]),))]
        ['positive', 'sorted', 'normalised', 'sorted and normalised']
    """
    for name, make in _FORMS.items():
        made = tuple(make(v) if _is_numbers(v) else v for v in args)
        changed = [not torch.equal(a, b) for a, b in zip(args, made, strict=True) if _is_numbers(a)]
        if any(changed):
            yield name, made


def _is_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 0


def _square(x: torch.Tensor) -> bool:
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2]


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    return (x + x.mT) / 2 if _square(x) else x


def _definite(x: torch.Tensor) -> torch.Tensor:
    if not _square(x):
        return x
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x.detach().abs() / x.detach().abs().sum(-1, keepdim=True).clamp_min(1e-30)


_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "symmetric": _symmetric,
    "symmetric and positive definite": _definite,
    "positive": lambda x: x.abs() + 0.1,
    "sorted": lambda x: x.sort(-1).values,
    "normalised": _normalised,
    "sorted and normalised": lambda x: _normalised(x).sort(-1).values,
}
