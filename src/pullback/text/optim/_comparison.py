"""Whether a version is better, or was lucky: two versions compared on the same items.

The items are the same, so each has a difference d of its own. If the new version is no better, a
difference is as likely to have the other sign, so the share of all choices of signs whose sum is at
least the one seen is the chance of that by luck alone: exact, whatever the scores are (Fisher 1935;
Good, "Permutation, parametric and bootstrap tests", 3.2).

That takes a loss to be as likely as a gain of its size. A version that is a little better as a rule
and fails once in a while is no better on average, and in a few items no failure may be seen: a
failure scores 0 at worst, or what the worst item scores. If items fail with chance q, each loses b,
all that it had, and others gain g, then the mean is no better where q b >= (1 - q) g, from q = g /
(g + b) on; and of n items k or fewer are then seen to fail with the chance that the binomial
distribution says (Clopper, Pearson, Biometrika 26, 1934), where k is what was lost in all, in units
of b. No loss at all is seen with (1 - q)^n. The larger of the two chances counts: the second has no
symmetry, the first knows how all differences scatter.

Who looks K times accepts each time at risk / K, and noise is accepted in at most `risk` of all runs
(Bonferroni).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

from pullback.errors import ArgumentError

__all__ = ["RISK", "Comparison", "check_items", "compare", "level_of"]

EXACT = 12  # differences: all 4,096 choices of signs are looked at
HITS = 100  # draws as good as what was seen, after which no more are drawn (Besag, Clifford 1991)
LEVEL = 0.95  # of intervals
RISK = 0.025  # half of the 5 % that are promised, which a count of a few hundred runs then shows


@dataclass(frozen=True)
class Comparison:
    """Two versions on the same items.

    Arguments:
        before: the mean score of the one.
        after: the mean score of the other.
        low, high: between these the mean gain lies, with 95 % confidence, over items like these;
            None where one item says nothing of others.
        chance: how likely so large a gain is by luck alone.
        items: how many there are.
    """

    before: float
    after: float
    low: float | None
    high: float | None
    chance: float
    items: int

    @property
    def gain(self) -> float:
        """The mean gain."""
        return self.after - self.before

    def __str__(self) -> str:
        told = f"{self.before:.4g}, then {self.after:.4g} on {self.items} items"
        if self.low is None or self.high is None:
            return told
        return f"{told} (gain {self.low:+.3g} to {self.high:+.3g})"


def compare(before: Sequence[float], after: Sequence[float], least: float = 1e-3) -> Comparison:
    """Compare two versions by their scores of the same items, in one order.

    Below `least` no chance matters, so that fewer signs would be looked at in vain.

    Example:
        >>> print(compare([0, 0, 0, 1, 0, 0], [1, 1, 0, 1, 1, 1]))
        0.1667, then 0.8333 on 6 items (gain +0.125 to +1.21)
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    count = len(differences)
    start, end = math.fsum(before) / count, math.fsum(after) / count
    gain = math.fsum(differences) / count
    low = high = None
    worst, best = min(0.0, *before, *after), max(1.0, *before, *after)
    if count > 1:
        spread = math.fsum((d - gain) ** 2 for d in differences) / (count - 1)
        width = _student(count - 1) * math.sqrt(spread / count)
        # And by what may fail, or succeed, as rarely as is not seen in so many items.
        unseen = 1 - ((1 - LEVEL) / 2) ** (1 / count)
        low = min(gain - width, gain - unseen * (end - worst))
        high = max(gain + width, gain + unseen * (best - end))
    chance = max(_chance(differences, least), _unseen(differences, start - worst))
    return Comparison(start, end, low, high, chance, count)


def level_of(risk: float, look: int, looks: int | None) -> float:
    """At which chance the look of this number accepts; all together accept noise with `risk`.

    Where nobody knows how many looks there will be, they share it by 1, 1/4, 1/9, ..., whose sum
    is pi^2 / 6.
    """
    if risk >= 1:
        return 1.0
    return risk / looks if looks else risk * 6 / (math.pi * look) ** 2


def check_items(count: int, risk: float, looks: int | None) -> None:
    """Refuse so few items that no gain at all could be told from luck: not even if all gained."""
    if not (isinstance(risk, int | float) and 0 < risk <= 1):
        raise ArgumentError("The risk is a share of runs.", given=f"risk={risk!r}",
                            expected="above 0, up to 1 to take whatever scores better")  # fmt: skip
    least = math.ceil(-math.log2(level_of(risk, 1, looks)))
    if count < least:
        raise ArgumentError(
            "So few held samples cannot tell a better text from luck.",
            given=f"{count} samples" + (f" for {looks} looks" if looks else ""),
            expected=f"at least {least}, at a risk of {risk:g}",
            mend="Hold more samples; or pass risk=1.0 to take whatever scores better.",
        )  # fmt: skip


def _chance(differences: Sequence[float], least: float) -> float:
    moved = [d for d in differences if d != 0]
    seen = math.fsum(moved)
    if not moved or seen <= 0:
        return 1.0
    limit = seen - 1e-12 * sum(map(abs, moved))  # equal sums may differ by their rounding
    # The sums of eight differences at a time: one look into a table stands for eight coins.
    tables = [_sums(moved[n : n + 8]) for n in range(0, len(moved), 8)]
    if len(moved) <= EXACT:
        hits = sum(sum(each) >= limit for each in product(*tables))
        return hits / 2 ** len(moved)
    draws = min(max(4000, math.ceil(20 / least)), 200_000)
    # Drawn anew for other scores: one set of signs for all would be wrong in one direction for all.
    dice = random.Random(repr(moved))  # noqa: S311  # the same scores give the same answer
    hits = 0
    for drawn in range(1, draws + 1):
        hits += sum([table[dice.getrandbits(8) % len(table)] for table in tables]) >= limit
        if hits == HITS:  # luck does it often: that many draws have shown it well enough
            return hits / drawn
    return (1 + hits) / (1 + draws)  # the seen one is among them, so it is never too small


def _unseen(differences: Sequence[float], whole: float) -> float:
    """How likely it is that no more was lost, where what fails loses all and the mean is no better.

    Arguments:
        differences: the gain of each item.
        whole: what an item has to lose, on average.
    """
    gains, losses = ([d for d in differences if (d >= 0) is up] for up in (True, False))
    if not gains or whole <= 0:
        return 0.0
    gain, count = math.fsum(gains) / len(gains), len(differences)
    fails, most = gain / (gain + whole), math.ceil(-math.fsum(losses) / whole)
    return math.fsum(_binomial(k, count, fails) for k in range(min(most, count) + 1))


def _binomial(hits: int, count: int, chance: float) -> float:
    """How likely so many hits are."""
    if not 0 < chance < 1:
        return float(hits == count * chance)
    ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return math.exp(ways + hits * math.log(chance) + (count - hits) * math.log1p(-chance))


def _sums(differences: Sequence[float]) -> list[float]:
    """The sum of a few differences for each choice of their signs."""
    return [math.fsum(map(math.prod, zip(signs, differences, strict=True)))
            for signs in product((1.0, -1.0), repeat=len(differences))]  # fmt: skip


def _student(freedom: int) -> float:
    """The quantile of Student's t for a two-sided interval (Abramowitz and Stegun 26.7.5)."""
    if freedom <= 2:  # where the series is too coarse; these have closed forms
        tail = (1 + LEVEL) / 2
        if freedom == 1:
            return math.tan(math.pi * (tail - 0.5))
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
