"""`BlockAdvice`: which factors of a model's products a format with blocks serves badly."""

import functools
import operator
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from pullback.tracking.formats._noise import BlockErrors, QuantisationNoise, measure_blocks
from pullback.tracking.formats._recipe import ROLES, ProductFormats, Recipe, Role
from pullback.tracking.formats._scaled import Named, ScaledFormat, find_format
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.watch._measures import Measure

__all__ = [
    "BlockAdvice",
    "advise_blocks",
    "block_measures",
    "errors_of",
    "factor_keys",
]

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


def block_measures(number_format: ScaledFormat) -> dict[str, Measure]:
    """What a tracker measures of each tensor."""
    return {NAME: functools.partial(measure_blocks, number_format=number_format)}


def errors_of(
    measured: Mapping[Key, deque[tuple[Place, dict[str, np.ndarray]]]],
) -> dict[Key, BlockErrors]:
    """What was measured of each tensor, its moments together."""
    sums = {
        key: sum(values[NAME] for _, values in moments if NAME in values)
        for key, moments in measured.items()
    }
    return {
        key: BlockErrors.from_sums(torch.as_tensor(each))
        for key, each in sums.items()
        if isinstance(each, np.ndarray)
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
    """

    number_format: ScaledFormat
    errors: Mapping[Factor, BlockErrors]
    keep: tuple[Factor, ...]

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
        modules = dict.fromkeys(module for module, _ in self.keep)
        rules: dict[str, ProductFormats | None] = {}
        for module in modules:
            kept = {role: higher for role in ROLES if (module, role) in self.keep}
            rules[module] = ProductFormats(**dict.fromkeys(ROLES, self.number_format) | kept)
        return Recipe({**rules, "*": ProductFormats(**dict.fromkeys(ROLES, self.number_format))})

    def noise(self) -> tuple[QuantisationNoise, ...]:
        """The same as reports draw it."""
        return tuple(
            QuantisationNoise(module, role, self.number_format.name, each.nonzero, each.decibels)
            for (module, role), each in self.errors.items()
        )


def advise_blocks(found: Mapping[Key, BlockErrors], number_format: ScaledFormat) -> BlockAdvice:
    """Sort what was measured by layers that multiply, and pick what the format serves badly."""
    errors: dict[Factor, BlockErrors] = {}
    modules = [key.name.removesuffix("[input]") for key in found if key.name.endswith("[input]")]
    for module in dict.fromkeys(modules):
        for role, wanted in factor_keys(module).items():
            calls = [each for key, each in found.items() if key._replace(call=0) == wanted]
            if calls:
                errors[module, role] = functools.reduce(operator.add, calls)
    usual = _error_of_normal_numbers(number_format)
    worst = sorted(errors, key=lambda factor: -errors[factor].error)
    keep = tuple(
        factor
        for factor in worst
        if errors[factor].error > EXCESS * usual or errors[factor].dominated_share > DOMINATED
    )
    return BlockAdvice(number_format, errors, keep)


def _figures(errors: BlockErrors) -> str:
    shown = f"{errors.decibels:.1f} dB"
    ruled = errors.dominated_share
    return f"{shown}, {ruled:.0%} of blocks ruled by an outlier" if ruled > DOMINATED else shown


@functools.cache
def _error_of_normal_numbers(number_format: ScaledFormat) -> float:
    numbers = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), device="cpu")
    return BlockErrors.from_sums(measure_blocks(numbers, number_format)).error
