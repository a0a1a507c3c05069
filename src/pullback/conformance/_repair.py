"""One edit of a wrong rule that makes it right, in the author's source.

The rule is called again and again with expressions replaced (`_search`), on the context that
forward has left; what it answers is compared with the numbers expected. An edit that is right there
is written into the source, compiled, and judged as any Function is, at other points, sizes and
options: what is printed has been run.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pullback.conformance._changes import Difference, Pair
from pullback.conformance._derivative import judge
from pullback.conformance._place import Rewrite
from pullback.conformance._probe import Probe
from pullback.conformance._rule import Rule
from pullback.conformance._search import NAMELESS, IsRight, Search
from pullback.conformance._written import Written, written

__all__ = ["EDIT", "Right", "right_edit"]

EDIT = "Write `"
"""How each edit begins."""
_LONGEST = 15.0  # seconds by the clock
_SEVERAL = 12  # edits that are not right in all ways, before one of them is told


class Right(NamedTuple):
    """What makes a rule right."""

    said: str = ""  # one sentence; empty where nothing was found
    mend: str = ""  # what to do
    whole: bool = False  # whether all answers are right then


@dataclass(frozen=True)
class _Repair:
    """Writes edits into the source."""

    search: Search

    def told(self, rewrite: Rewrite, gap: float = 0.0) -> Right:
        """The edit in words, once it is written into the source, compiled and judged."""
        search = self.search
        for loose in (False, True):
            texts = {e.node: f"({t})" if loose else t for e, t in rewrite.texts.items()}
            rules = {e.node: e.rule for e in rewrite.texts}
            with suppress(Exception):  # no code, or none that runs
                (owner,) = {id(rule): rule for rule in rules.values()}.values()
                function = search.source.replaced(owner, texts)
                answers = search.rule.call(function)
                near = search.gap(answers) <= max(gap, search.pair.difference.close)
                if answers is None or not near:
                    continue
                right, general = (True, True) if gap else self.judged(function)
                if right:
                    others = (k for k in range(len(answers)) if k != search.only)
                    whole = all(search.is_right(k, answers[k]) for k in others)
                    told = self.words(owner, texts, gap, whole=whole)
                    # Whoever made an edit that is right here alone would be led astray.
                    alone = f"{told.said[:-1]}, with these arguments alone."
                    return told if general else told._replace(said=alone, mend="")
        return Right()

    def judged(self, function: Callable[..., Any]) -> tuple[bool, bool]:
        """Whether the Function with another rule has no wrong derivative here, and elsewhere."""
        rule = self.search.rule
        there = rule.with_rule(function)
        if rule.does == "jvp" or there is None:
            return there is not None, there is not None
        alone = [there.inputs.with_differentiable([k]) for k in there.inputs.differentiable]
        general = all(self.is_right_at(there.at(inputs)) for inputs in rule.elsewhere)
        return self.is_right_at(there), general and all(self.runs(there.at(i)) for i in alone)

    def runs(self, probe: Probe) -> bool:
        """Whether backward runs where one input alone needs a gradient."""
        with suppress(Exception):
            leaves = probe.leaves()
            outputs = probe.evaluate(leaves)
            probe.pull(leaves, probe.cotangents(outputs), outputs)
            return True
        return False

    def is_right_at(self, probe: Probe) -> bool:
        """Whether the derivative is right with some arguments."""
        with suppress(Exception):  # refused there
            return not judge(probe, self.search.only).is_wrong
        return False

    def words(self, owner: Written, texts: Mapping[Any, str], gap: float, *, whole: bool) -> Right:
        """An edit as it is told."""
        rule = self.search.rule
        called = rule.called if whole else f"That {rule.answered} alone"
        but = f", but for {100 * gap:.2g} % of the largest entry," * (gap > 0)
        shown: dict[Any, dict[Any, str]] = {}
        for node, text in texts.items():
            shown.setdefault(owner.shown(node), {})[node] = text
        edits = [
            (_line(owner.spliced(inner, node)), _line(owner.text(node)), owner.where(node))
            for node, inner in shown.items()
        ]
        said = " and ".join(f"`{new}` for `{old}` at {where}" for new, old, where in edits)
        return Right(f"{called} is right{but} with {said}.", f"{EDIT}{said[1:]}.", whole)


def _line(text: str) -> str:
    return " ".join(text.split())


def right_edit(
    rules: Sequence[Rule], only: int, difference: Difference, is_right: IsRight, until: float
) -> Right:
    """Name the edit after which a Function is right.

    Of an edit that leaves another answer wrong, which is that of another fault then, it says so;
    one that makes another answer wrong is none.

    Arguments:
        rules: those that may be wrong, the likeliest first.
        only: the position of the input whose gradient that is, or of the output whose tangent.
        difference: what was expected and got.
        is_right: tells whether a tensor is the answer at a position.
        until: when time is over, in seconds of the process.

    Returns:
        What is to be edited; empty where no edit that was tried makes the rule right.
    """
    pair = Pair.of(difference)
    if pair is None:
        return Right()
    nearest, nearly, found = math.inf, None, [Right()]
    late = time.monotonic() + _LONGEST  # a rule may wait, or write much
    for search, rewrite in _edits(rules, only, pair, is_right, until):
        over = time.process_time() > until or time.monotonic() > late
        if over or len(found) > _SEVERAL:
            break
        answers = search.answers(rewrite)
        gap = search.gap(answers)
        near = rewrite.rank < NAMELESS and gap < min(nearest, search.nearly)
        # What becomes of the other answers is asked last: it takes finite differences.
        if answers is None or not (gap <= difference.close or near) or not search.keeps(answers):
            continue
        if gap <= difference.close:
            right = _Repair(search).told(rewrite)
            if right.whole and right.mend:
                return right
            found += [right] * bool(right.said)
        else:
            nearest, nearly = gap, (search, rewrite)
    best = max(found, key=lambda right: (bool(right.said), bool(right.mend), right.whole))
    if best.said or nearly is None:
        return best
    return _Repair(nearly[0]).told(nearly[1], nearest)


def _edits(
    rules: Sequence[Rule], only: int, pair: Pair, is_right: IsRight, until: float
) -> Iterator[tuple[Search, Rewrite]]:
    """The edits of all rules; what takes several factors at once, last."""
    searches = []
    for rule in rules:
        source = written(rule.method) if rule.is_had() else None
        search = Search(rule, source, only, pair, is_right) if source is not None else None
        if search is not None and search.starts():
            searches.append(search)
            yield from ((search, rewrite) for rewrite in search.every())
    for search in searches:
        yield from ((search, rewrite) for rewrite in search.fitted(until))
