"""A package offers how its own kind of function is judged, by an entry point."""

from importlib.metadata import EntryPoint

import pytest

from pullback import check
from pullback.conformance import Verdict, _check
from pullback.errors import PullbackError


class Doubles:
    """A function of no tensors, by somebody else."""


class Contract:
    """What judges it, offered by that somebody."""

    @staticmethod
    def takes(function):
        return function is Doubles

    @staticmethod
    def judge(function, inputs, gradient, clauses, seed):
        return "Doubles", gradient or "exact", [("broken", f"{clause}, {inputs}", "Mend it.")
                                                for clause in clauses]  # fmt: skip


@pytest.fixture
def offered(monkeypatch):
    def offer(value):
        entry = EntryPoint("theirs", value, "pullback.contracts")
        monkeypatch.setattr(_check, "entry_points", lambda group: [entry])
        _check._contracts.cache_clear()

    yield offer
    monkeypatch.undo()
    _check._contracts.cache_clear()


def test_the_contract_of_another_package_judges(offered):
    offered(f"{__name__}:Contract")
    report = check(Doubles, 3, clauses="linear, derivative")
    assert [finding.clause for finding in report] == ["derivative", "linear"]
    assert report["linear"].verdict is Verdict.BROKEN
    assert report["linear"].detail == "linear, (3,)"
    assert not report.ok


def test_a_contract_that_cannot_be_loaded_is_named(offered):
    offered("no_such_module_of_theirs")
    with pytest.raises(PullbackError, match="no_such_module_of_theirs"):
        check(Doubles, 3)
