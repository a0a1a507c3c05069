"""The clause `distributed`: what others published is caught, the right version not accused."""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.specimens._specimen import normal
from tests.specimens.ranks import RIGHT, WRONG, AllReduce, OnRanks, ReduceFrom, total

import pullback
from pullback.conformance import CLAUSES, Ranks
from pullback.conformance.ranks._ranks import refuse_here
from pullback.errors import ArgumentError, ArgumentTypeError


def cases(table):
    """A few of each kind in every run, all in `make fuzz`."""
    return [
        pytest.param(one, id=f"{one.function.__name__}-{number}",
                     marks=() if one.quick else pytest.mark.slow)
        for number, one in enumerate(table)
    ]  # fmt: skip


def children():
    """The processes that this one has started."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def judged(specimen, **options):
    report = pullback.check(specimen.function, *specimen.inputs(), ranks=specimen.ranks, **options)
    return report["distributed"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("specimen", cases(RIGHT))
def test_a_right_function_is_not_accused(specimen):
    finding = judged(specimen)
    assert finding.verdict == "holds", finding
    assert specimen.says in finding.detail


@pytest.mark.sampled(3)
@pytest.mark.parametrize("specimen", cases(WRONG))
def test_a_published_fault_is_caught(specimen):
    finding = judged(specimen, timeout=1.0 if specimen.says.startswith("waits") else None)
    assert finding.verdict.is_bad, finding
    assert specimen.says in finding.detail
    assert finding.hint
    assert finding.why
    assert "specimens/ranks.py" in finding.source


def test_each_fault_names_its_thread():
    told = " ".join(one.function.__doc__ or "" for one in WRONG)
    threads = set(re.findall(r"https://github.com/\S+/\d+", told))
    assert len(threads) >= 12


class LeavesOut(AllReduce):
    """One rank leaves its collective out."""

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent) if dist.get_rank() else cotangent


def test_a_collective_left_out_is_named_with_the_ranks_and_leaves_no_process_behind():
    before = children()
    finding = pullback.check(LeavesOut, normal(2), ranks=2, timeout=0.5)["distributed"]
    assert finding.verdict == "crashes"
    assert "rank 1 waits in all_reduce" in finding.detail
    assert "rank 0 is through, after no collective" in finding.detail
    assert {*children()} <= {*before}  # of which some may have ended


class ReadsMemory(AllReduce):
    """Sums what lies in memory from the first entry of a cotangent on."""

    @staticmethod
    def backward(ctx, cotangent):
        return total(cotangent.as_strided(cotangent.shape, (1,)))


class ReadsShards(AllReduce):
    """Sums what lies in memory from the first entry of a shard on."""

    @staticmethod
    def forward(ctx, x):
        return total(x.as_strided(x.shape, (1,)))


@pytest.mark.parametrize(
    ("function", "what"), [(ReadsMemory, "cotangents"), (ReadsShards, "shards")]
)
def test_what_reads_memory_is_found_though_there_are_no_rows_to_be_transposed(function, what):
    finding = judged(OnRanks(function, lambda: (normal(4),), ranks=2), gradient="surrogate")
    assert finding.verdict == "broken"
    assert f"{what} that are every other entry" in finding.detail


class Dies(AllReduce):
    """One rank ends."""

    @staticmethod
    def forward(ctx, x):
        if dist.get_rank():
            os._exit(7)
        return total(x)


def test_a_rank_that_dies_is_the_cause_though_the_others_hear_of_it():
    finding = pullback.check(Dies, normal(2), ranks=2)["distributed"]
    assert finding.verdict == "crashes"
    assert "rank 1: The process ended with status 7" in finding.detail.replace("Rank", "rank")


class Refuses(AllReduce):
    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError("not on several ranks")


def test_a_refusal_is_lacking():
    assert pullback.check(Refuses, normal(2), ranks=2)["distributed"].verdict == "lacking"


def test_inputs_are_made_on_each_rank_with_its_groups():
    def inputs(rank):
        assert os.environ["RANK"] == str(rank)
        assert os.environ["WORLD_SIZE"] == str(dist.get_world_size()) == "2"
        return (torch.full((2,), 1.0 + rank, dtype=torch.float64, requires_grad=True),)

    assert pullback.check(ReduceFrom, ranks=Ranks(2, inputs, "replicated")).ok


def test_what_is_not_derived_is_taken_at_its_word():
    finding = pullback.check(
        ReduceFrom, normal(2), ranks=Ranks(2, loss="sum"), gradient="surrogate"
    )
    assert finding.ok
    assert "declared as surrogate" in finding["distributed"].detail


def test_a_check_without_ranks_says_how_they_are_asked_for():
    finding = pullback.check(torch.sin, normal(2), clauses="distributed")["distributed"]
    assert finding.verdict == "skipped"
    assert "ranks=2" in finding.detail


@pytest.mark.parametrize("given", [1, 17, 2.0, True])
def test_so_many_ranks_there_are_not(given):
    with pytest.raises(ArgumentError, match="2 to 16"):
        pullback.check(torch.sin, normal(2), ranks=given)


def test_the_other_options_of_ranks_are_validated():
    with pytest.raises(ArgumentError, match="'sum' or 'replicated'"):
        Ranks(2, loss="mean")
    with pytest.raises(ArgumentTypeError, match="a function"):
        Ranks(2, inputs=(torch.ones(2),))
    with pytest.raises(ArgumentError, match="distributed alone"):
        pullback.check(torch.sin, normal(2), clauses="linear, distributed", ranks=2)


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ArgumentError, match="a rank already"):
        refuse_here()


def test_it_is_a_clause():
    assert "distributed" in [clause.id for clause in CLAUSES]


X = torch.ones(2, requires_grad=True)
UNUSABLE = {
    "too few": ((), {"ranks": 2}),
    "keywords": ((X, X), {"ranks": 2, "kwargs": {"z": 1}}),
    "left out": ((X, X), {"ranks": 2, "without": "distributed"}),
    "twice": ((X, X), {"ranks": Ranks(2, inputs=lambda rank: (X, X))}),
    "no tuple": ((), {"ranks": Ranks(2, inputs=lambda rank: X)}),
    "another number": ((), {"ranks": Ranks(2, inputs=lambda rank: (X,) * (rank + 1))}),
    "raises": ((), {"ranks": Ranks(2, inputs=lambda rank: 1 / 0)}),
    "told": ((X, X), {"ranks": 2, "on_finding": 3}),
}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g, g


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_ranks_cannot_be_given_is_an_error_and_no_finding(name):
    inputs, given = UNUSABLE[name]
    before = children()
    with pytest.raises(ArgumentError):
        pullback.check(Product, *inputs, **given)
    assert {*children()} <= {*before}  # of which some may have ended
