"""Which step is at fault? Feedback on the result must blame the planted one."""

import random

from tests.text.planted import _always_true, blamed, draw

PIPELINES = 300


def test_a_right_step_keeps_its_rules():
    assert [found for found in _always_true() if found[2]] == []


def test_the_planted_step_is_blamed():
    dice = random.Random(20261122)
    drawn = [case for case in (draw(dice) for _ in range(PIPELINES * 2)) if case][:PIPELINES]
    assert len(drawn) == PIPELINES
    alone = silent = 0
    wrong = []
    for case in drawn:
        steps = blamed(*case)
        alone += steps == [case[1]]
        silent += steps == []
        if steps not in ([case[1]], []):
            wrong.append((case[:2], steps))
    assert alone >= 0.95 * PIPELINES, f"{alone} of {PIPELINES}, {silent} undecided, {wrong[:3]}"
    assert wrong == []  # no rule holds for the guilty and breaks for the innocent
