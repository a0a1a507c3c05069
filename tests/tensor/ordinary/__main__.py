"""Print the table of counts and refusals: ``python -m tests.tensor.ordinary [part of a name]``."""

import collections
import sys

from tests.tensor.ordinary.answers import ANSWERS, of
from tests.tensor.ordinary.table import ROWS

totals: collections.Counter[str] = collections.Counter()
by_question: dict[str, collections.Counter[str]] = {}
chosen = [row for row in ROWS if not sys.argv[1:] or sys.argv[1] in row.name]
for row in chosen:
    for answer in of(row):
        totals[answer.verdict] += 1
        by_question.setdefault(answer.question, collections.Counter())[answer.verdict] += 1
        if answer.verdict != "right":
            print(f"{answer}\n    {answer.why}")
print(f"\n{'':<20}{'right':>8}{'refused':>9}{'wrong':>8}{'foreign':>9}")
for name in ANSWERS:
    count = by_question.get(name, collections.Counter())
    print(
        f"{name:<20}{count['right']:>8}{count['refused']:>9}"
        f"{count['wrong']:>8}{count['foreign']:>9}"
    )
share = totals["right"] / max(totals.total(), 1)
print(f"{len(chosen)} Functions, {totals.total()} answers, {share:.2%} right: {dict(totals)}")
sys.exit(bool(totals["wrong"] or totals["foreign"]))
