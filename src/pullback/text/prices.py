"""What models cost: a small table, which a file or a price of your own replaces."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pullback.internal._arguments import Amount, Natural, checked, reading

__all__ = ["Price", "price_of", "read_prices"]

VARIABLE = "PULLBACK_PRICES"


@checked
@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens.

    Arguments:
        input: for tokens of the messages.
        output: for tokens of the answer.
        cached: for tokens of the messages that the provider had cached; as `input` if None.

    Raises:
        ArgumentError: a price is negative or not finite.

    Example:
        >>> Price(2.5, 10.0, cached=1.25).cost(1_000_000, 100_000)
        3.5
    """

    input: Amount
    output: Amount
    cached: Amount | None = None

    def cost(
        self, input_tokens: Natural, output_tokens: Natural, cached_tokens: Natural = 0
    ) -> float:
        """US dollars for so many tokens; those that were cached are among the input."""
        cached = self.input if self.cached is None else self.cached
        full = max(input_tokens - cached_tokens, 0)
        total = full * self.input + cached_tokens * cached + output_tokens * self.output
        return total / 1_000_000


@checked
@cache
def read_prices(path: Path) -> dict[str, Price]:
    """A table of prices from a JSON file: ``{"models": {name: {"input": ..., "output": ...}}}``.

    Raises:
        ArgumentError: the file is no such table.
    """
    with reading("table of prices", path, '{"models": {"name": {"input": 1.0, "output": 2.0}}}'):
        table = json.loads(path.read_text("utf-8-sig"))
        models: Mapping[str, Mapping[str, float]] = table["models"]
        return {name: Price(**price) for name, price in models.items()}


@checked
def price_of(model: str) -> Price | None:
    """The price of a model by its name, or None where it is not known.

    Prices change: the table says of when it is and where they are from. It knows models with one
    price alone; one whose price depends on the length of a prompt, on writing to a cache or on
    searches is not in it. The environment variable ``PULLBACK_PRICES`` names a file whose prices go
    before it.

    Example:
        >>> price_of("gpt-4o-mini")
        Price(input=0.15, output=0.6, cached=0.075)
        >>> price_of("my-own-model") is None
        True
    """
    table = dict(read_prices(Path(__file__).with_name("prices.json")))
    if os.environ.get(VARIABLE):
        table |= read_prices(Path(os.environ[VARIABLE]))
    return table.get(model)
