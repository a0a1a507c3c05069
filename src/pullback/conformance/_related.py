"""Arguments that a program makes of one another: a matrix and its inverse, times and differences.

Nothing in a signature says so, and a backward may count on it: it answers for one of them with what
all of them change by, as that of a matrix does for its factor. Moved apart they are no arguments of
the Function. The one sign of it is an identity between the tensors that were given, which numbers
do not fulfil by chance. The control is to move them together, as the identity does.
"""

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from pullback.conformance._arguments import Arguments, is_continuous, is_uniform
from pullback.conformance._derivative import try_derivative
from pullback.conformance._probe import Probe, Tensors

__all__ = ["derived", "right_together"]

_Made = Mapping[int, tuple[int, str]]  # by the position of each that is derived: of which, and how

_MAPS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal to": torch.clone,
    "the negative of": torch.neg,
    "the reciprocal of": torch.reciprocal,
    "the square of": torch.square,
    "the root of": torch.sqrt,
    "the exponential of": torch.exp,
    "the logarithm of": torch.log,
    "the transpose of": lambda x: x.mT,
    "the inverse of": torch.linalg.inv,
    "the factor of": torch.linalg.cholesky,
    "its transpose times": lambda x: x @ x.mH,
    **{
        f"{name} along dimension {dim} of": lambda x, made=made, dim=dim: made(x, dim)
        for dim in (0, -1)
        for name, made in {
            "the differences": lambda x, dim: x.diff(dim=dim),
            "the running sums": torch.cumsum,
            "the sums": torch.sum,
            "the means": torch.mean,
            "the lengths": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
            "the directions": lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
            "the shares": torch.softmax,
        }.items()
    },
}
# Of so many entries an identity is none by chance, to the digits that float32 leaves of an inverse.
_FEWEST, _CLOSE = 3, 1e-4
_DIRECTIONS = 3


def derived(inputs: Arguments) -> _Made:
    """Which tensors are made of others among the arguments.

    Example:
        >>> a = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
        >>> derived(Arguments.of((a, torch.linalg.inv(a))))
        {1: (0, 'the inverse of')}
    """
    found: dict[int, tuple[int, str]] = {}
    told = [k for k, x in enumerate(inputs.values)
            if is_continuous(x) and x.numel() >= _FEWEST and not is_uniform(x)]  # fmt: skip
    for k, j in itertools.permutations(told, 2):
        if k in found or j in found:
            continue
        for name, made in _MAPS.items():
            with suppress(Exception):  # of another shape, or refused
                value, other = made(inputs.values[k]), inputs.values[j]
                least = _CLOSE * float(other.abs().max())
                if value.shape == other.shape and bool(((value - other).abs() <= least).all()):
                    found[j] = k, name
                    break
    return found


def right_together(probe: Probe) -> str:
    """What is made of what, where backward is right as long as it is so; an empty text elsewhere.

    All that is made of others moves as these do, what is no input of a derivative too: beside it
    backward may have answered for more than its share.
    """
    found = derived(probe.inputs)
    moving = sorted({*probe.inputs.differentiable, *found} - {*probe.inputs.owned})
    with suppress(Exception):  # refuses a gradient of one of them
        there = replace(probe, inputs=probe.inputs.with_differentiable(moving))
        steps = (_together(there, found, number) for number in range(_DIRECTIONS))
        if found and all(try_derivative(there, 0, step=s).match == "match" for s in steps):
            paths = probe.inputs.paths
            return " and ".join(f"{paths[j]} is {how} {paths[k]}" for j, (k, how) in found.items())
    return ""


def _together(probe: Probe, found: _Made, number: int) -> Tensors:
    """A direction along which what is derived moves as what it is derived from does."""
    step = probe.direction(f"together {number}")
    places = {k: place for place, k in enumerate(probe.inputs.differentiable)}
    for j, (k, name) in found.items():
        root = probe.inputs.values[k]
        moves = step[places[k]] if k in places else torch.zeros_like(root)
        step[places[j]] = torch.func.jvp(_MAPS[name], (root,), (moves,))[1]
    return step
