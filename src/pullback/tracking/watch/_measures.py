"""`Measures`: statistics of one's own, taken on the device and read back with the others.

What blocks lose is measured so; `BlockAdvice` says which factors of products they serve badly.
"""

import functools
import glob
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal.torch import disable_current_modes, disable_torch_function
from pullback.tracking._outputs import is_floating
from pullback.tracking.formats._noise import BlockErrors, QuantisationNoise, measure_blocks
from pullback.tracking.formats._recipe import ROLES, ProductFormats, Recipe, Role
from pullback.tracking.formats._round import Named, ScaledFormat, find_format
from pullback.tracking.run._identity import ROOT, Key, Place
from pullback.tracking.run._log import Measured

__all__ = [
    "BlockAdvice",
    "Measure",
    "Measures",
    "advise_blocks",
    "block_measures",
    "channel_maximum",
    "errors_of",
    "factors_of",
]

Measure = Callable[[torch.Tensor], torch.Tensor]


@checked
def channel_maximum(dim: int = -1) -> Measure:
    """A statistic for `Tracker`: the largest ``|x|`` at each place along one dimension.

    Arguments:
        dim: the dimension of the channels: -1 for the features of a linear layer, 1 for the
            channels of a convolution. A tensor without it gives its largest ``|x|``.

    Example:
        >>> import torch
        >>> from pullback.tracking import channel_maximum
        >>> channel_maximum()(torch.tensor([[1.0, -2.0], [-3.0, 0.0]])).tolist()
        [3.0, 2.0]
    """

    def measure(values: torch.Tensor) -> torch.Tensor:
        size = values.abs()
        if not -size.dim() <= dim < size.dim():
            return size.amax() if size.numel() else size.new_zeros(())
        rows = size.movedim(dim, 0).flatten(1) if size.dim() > 1 else size.unsqueeze(1)
        return rows.amax(1) if rows.shape[1] else size.new_zeros(rows.shape[0])

    return measure


class Measures:
    """What functions of one's own made of each tensor, waiting on its device.

    ``blocks`` are the same, of what blocks lose of floating tensors, and of factors of products.
    """

    def __init__(
        self, functions: Mapping[str, Measure], blocks: Mapping[str, Measure] | None = None
    ) -> None:
        if not all(isinstance(name, str) and callable(of) for name, of in functions.items()):
            raise ArgumentTypeError(
                "Statistics are functions by name.",
                given=f"measures={dict(functions)!r}",
                expected="names as text, and functions of a tensor",
            )
        self.functions = dict(functions)
        self.blocks = dict(blocks or {})
        self._waiting: list[tuple[Key, Place, str, torch.Tensor]] = []
        self._shared: list[tuple[tuple[Key, Place], tuple[Key, Place]]] = []

    def share(self, first: tuple[Key, Place], other: tuple[Key, Place]) -> None:
        """Give what was measured of a tensor under its other name, too."""
        self._shared.append((first, other))

    def take(
        self,
        values: torch.Tensor,
        factor: float | torch.Tensor,
        key: Key,
        place: Place,
        functions: Mapping[str, Measure] | None = None,
    ) -> None:
        """Measure a tensor, by some of the functions or by all; nothing is read back."""
        if functions is None:
            own = self.functions
            functions = {**own, **self.blocks} if self.blocks and is_floating(values) else own
        if not functions:
            return
        # No mode sees what is measured: not as a function that the model calls, nor to round it.
        with torch.no_grad(), disable_torch_function(), disable_current_modes():
            plain = values.detach()
            plain = plain if isinstance(factor, float) and factor == 1.0 else plain * factor
            for name, function in functions.items():
                try:
                    found = function(plain)
                except Exception as error:  # of somebody's own function, which stays as it is
                    where = f"{key} [{key.direction}]"
                    error.add_note(f"This was raised by the statistic {name!r}, of {where}.")
                    raise
                if not isinstance(found, torch.Tensor) or found.is_complex():
                    raise ArgumentError(
                        f"The statistic {name!r} is not a real tensor.",
                        given=f"a {type(found).__name__} for {key}",
                        expected="a tensor on the device of its argument, such as x.abs().max()",
                    )
                # A view of the values would be read when these may have changed.
                self._waiting.append((key, place, name, found.detach().clone()))

    def flush(self) -> Measured:
        """Read all back, with one copy from each device."""
        waiting, self._waiting = self._waiting, []
        found: Measured = {}
        for device in {each[3].device for each in waiting}:
            here = [each for each in waiting if each[3].device == device]
            flat = torch.cat([each[3].to(torch.float64).reshape(-1) for each in here]).cpu().numpy()
            offset = 0
            for key, place, name, values in here:
                part = flat[offset : offset + values.numel()].reshape(tuple(values.shape))
                found.setdefault((key, place), {})[name] = part
                offset += values.numel()
        shared, self._shared = self._shared, []
        found.update((other, found[first]) for first, other in shared if first in found)
        return found


NAME = "block errors"  # among what a tracker measures

Factor = tuple[str, Role]
"""A module's name, and what of it is multiplied."""

EXCESS = 2.0  # times the error that the format leaves of normal numbers: 3 dB
DOMINATED = 0.1  # of the blocks; of normal numbers it is one in a thousand


def factor_keys(module: str) -> dict[Role, Key]:
    """As what the factors of a module's product are measured."""
    return {
        "weight": Key(f"{module}.weight", source="parameter"),
        "activation": Key(f"{module}[input]"),
        "gradient": Key(module, direction="backward", order=1),
    }


def factors_of(
    module: nn.Module, name: str, inputs: Sequence[Any], output: Any
) -> Iterator[tuple[Key, torch.Tensor]]:
    """What a layer multiplies: its first input, and a matrix of its own.

    To ask for a weight that is computed would compute it once more, with other random numbers or a
    further step of spectral normalisation: it is seen as what the parametrization returned.
    """
    owner = f".{name}".removesuffix(_PARAMETRIZED).lstrip(".") or ROOT
    if isinstance(module, ParametrizationList):
        if owner != name and _is_matrix(output):
            yield factor_keys(owner)["weight"], output
        return
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):  # of two dimensions: element by element
        return
    weight: Any = None if hasattr(type(module), "weight") else getattr(module, "weight", None)
    made_of = [weight]
    if is_parametrized(module, "weight"):
        made_of = [*module.get_submodule(_PARAMETRIZED[1:]).parameters()]
    values = inputs[0] if inputs else None
    if not (any(map(_is_matrix, made_of)) and isinstance(values, torch.Tensor)):
        return
    if values.is_floating_point():  # not an embedding
        keys = factor_keys(name)
        yield keys["activation"], values
        if weight is not None:
            yield keys["weight"], weight


_PARAMETRIZED = ".parametrizations.weight"  # what torch adds to the name of the module whose it is


def _is_matrix(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2


def block_measures(number_format: ScaledFormat) -> dict[str, Measure]:
    """What a tracker measures of each tensor."""
    return {NAME: functools.partial(measure_blocks, number_format=number_format)}


def errors_of(
    measured: Mapping[Key, deque[tuple[Place, dict[str, np.ndarray]]]],
) -> dict[Key, BlockErrors]:
    """What was measured of each tensor, its moments together."""
    found = {
        key: [values[NAME] for _, values in moments if NAME in values]
        for key, moments in measured.items()
    }
    return {
        key: BlockErrors.from_sums(torch.as_tensor(sum(sums)))
        for key, sums in found.items()
        if sums
    }


@dataclass(frozen=True)
class BlockAdvice:
    """What to keep in higher precision where a model's products run in a format with blocks.

    ``str(advice)`` is one sentence.

    Arguments:
        number_format: the format.
        errors: what it loses of each factor: of each layer's weight, of its input
            (``"activation"``) and of the gradient of its result.
        keep: the factors of which it loses more than twice what it loses of normal numbers, or in
            which an outlier sets the scale of a tenth of the blocks: what stands beside an outlier
            is small, so that its loss hardly shows in a sum of squares. The worst first.
        names: of each module, all that it has in the model, as a recipe takes them.
    """

    number_format: ScaledFormat
    errors: Mapping[Factor, BlockErrors]
    keep: tuple[Factor, ...]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        name, found = self.number_format.name, len(self.errors)
        if not found:
            return f"No layer that multiplies was measured, so there is nothing to say of {name}."
        if not self.keep:
            return f"All {found} factors can be in {name}: of none it loses more than usual."
        named = ", ".join(
            f"the {role} of {module} ({_figures(self.errors[module, role])})"
            for module, role in self.keep
        )
        return (
            f"Keep {named} in higher precision, and the other {found - len(self.keep)} in {name}."
        )

    def recipe(self, higher: Named | None = None) -> Recipe:
        """The advice as `simulate_format` takes it.

        Arguments:
            higher: the format of what is kept; ``None`` leaves it as it is.

        Raises:
            ArgumentError: an unknown format.
        """
        higher = None if higher is None else find_format(higher)  # also where nothing is kept
        everywhere = dict.fromkeys(ROLES, self.number_format)
        outer = [f"{name}." for module, _ in self.keep for name in self._names(module)]
        rules: dict[str, ProductFormats | None] = {}
        for module in dict.fromkeys(module for module, _ in self.errors):
            kept = {role: higher for role in ROLES if (module, role) in self.keep}
            for name in self._names(module):
                if kept or name.startswith(tuple(outer)):
                    rules[glob.escape(name)] = ProductFormats(**everywhere | kept)
        # A rule holds for all within a module, unless one before it does.
        inner_first = dict(sorted(rules.items(), key=lambda rule: -len(rule[0])))
        return Recipe({**inner_first, "*": ProductFormats(**everywhere)})

    def _names(self, module: str) -> Sequence[str]:
        return self.names.get(module, [module])

    def noise(self) -> tuple[QuantisationNoise, ...]:
        """The same as reports draw it."""
        return tuple(
            QuantisationNoise(module, role, self.number_format.name, each.nonzero, each.decibels)
            for (module, role), each in self.errors.items()
        )


def advise_blocks(
    found: Mapping[Key, BlockErrors],
    number_format: ScaledFormat,
    names: Mapping[str, Sequence[str]],
) -> BlockAdvice:
    """Sort what was measured by layers that multiply, and pick what the format serves badly."""
    errors: dict[Factor, BlockErrors] = {}
    # What training shows, or evaluation where nothing was trained.
    trained = {key: each for key, each in found.items() if key.phase == "training"}
    kept = trained or found
    modules = [key.name.removesuffix("[input]") for key in kept if key.name.endswith("[input]")]
    for module in dict.fromkeys(modules):
        for role, wanted in factor_keys(module).items():
            calls = [each for key, each in kept.items() if _is_of(key, wanted)]
            if calls:
                errors[module, role] = functools.reduce(operator.add, calls)
    usual = _error_of_normal_numbers(number_format)
    worst = sorted(errors, key=lambda factor: -errors[factor].error)
    keep = tuple(
        factor
        for factor in worst
        if errors[factor].error > EXCESS * usual or errors[factor].dominated_share > DOMINATED
    )
    return BlockAdvice(number_format, errors, keep, names)


def _is_of(key: Key, factor: Key) -> bool:
    """Whether what was measured is a factor, at whatever call, visit or pass.

    Reentrant checkpointing leaves a gradient to what it computes again.
    """
    return (key.name, key.direction, key.order) == (factor.name, factor.direction, factor.order)


def _figures(errors: BlockErrors) -> str:
    shown = f"{errors.decibels:.1f} dB"
    ruled = errors.dominated_share
    return f"{shown}, {ruled:.0%} of blocks ruled by an outlier" if ruled > DOMINATED else shown


@functools.cache
def _error_of_normal_numbers(number_format: ScaledFormat) -> float:
    numbers = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), device="cpu")
    return BlockErrors.from_sums(measure_blocks(numbers, number_format)).error
