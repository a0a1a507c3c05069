"""The clause `index-width`: what reaches beyond 2^31 entries takes a few pages of memory."""

import resource

import pytest
from tests.specimens._specimen import normal
from tests.specimens.clauses.index_width import Sine

from pullback.conformance.clauses import index_width
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare


@pytest.mark.parametrize("count", [1, 2, 5])
def test_memory_is_taken_for_the_pages_that_are_touched(count):
    """In kilobytes, as the system counts the peak of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finding = index_width._look(prepare(Subject.of(Sine), Arguments.of((normal(count, 4),)), 0))
    assert finding.verdict == "holds"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
