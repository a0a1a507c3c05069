"""The clause that needs a GPU, where there is none: see tests/gpu for all that one answers."""

from tests.specimens._specimen import normal
from tests.specimens.right.smooth import Cube

from pullback.conformance import Verdict, check


def test_inputs_elsewhere_are_not_moved_to_a_gpu():
    finding = check(Cube, normal(3), clauses="cuda-graph")["cuda-graph"]
    assert finding.verdict is Verdict.SKIPPED
    assert "CUDA" in finding.detail
