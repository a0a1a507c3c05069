"""A sweep over varied arguments: what is refused, said and kept, and where it ends."""

import time

from pullback.conformance import Finding, NoEnd, Verdict
from pullback.conformance.evidence._screen import RIGHT, Sweep


def over(sweep, answers):
    """Each answer is raised by the run or given by the judge."""

    def run(answer):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return sweep.over(((str(k), answer) for k, answer in enumerate(answers)), run,
                      lambda name, made, ran: ran)  # fmt: skip


UNTIDY, BROKEN = (Finding("sizes", verdict, "") for verdict in (Verdict.UNTIDY, Verdict.BROKEN))


def test_a_refusal_is_said_and_the_first_fault_ends_it():
    sweep = Sweep()
    found = over(sweep, [RIGHT, ValueError("no"), "", "not told", UNTIDY, BROKEN, RIGHT])
    assert found is BROKEN
    assert sweep.said == {"0": RIGHT, "1": "refused (ValueError: no)", "3": "not told"}
    assert sweep.right == ["0"]
    assert sweep.untidy == [UNTIDY]
    assert not sweep.ended


def test_a_call_that_does_not_end_ends_it_for_what_is_swept_next_too():
    sweep = Sweep()
    assert over(sweep, [RIGHT, NoEnd("still there"), BROKEN]) is None
    assert over(sweep, [BROKEN]) is None
    assert sweep.ended == "a call does not end"
    assert list(sweep.said) == ["0", "1"]


def test_nothing_is_tried_once_time_is_over():
    sweep = Sweep(time.process_time() - 1)
    assert over(sweep, [BROKEN]) is None
    assert sweep.ended == "calls are slow"
