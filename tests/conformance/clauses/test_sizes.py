"""The clause `sizes`: every tail fault is found, whatever it counts in blocks."""

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.domains import TakesDistinct, definite, orthogonal
from tests.specimens.wrong.sizes import BLOCKS, FAULTS, PLACES, tail_fault

from pullback.conformance import check
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._structure import structures
from pullback.conformance.probing._resize import resizings


@pytest.mark.usefixtures("no_edits")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_fault_beyond_the_last_whole_block_is_found(block, place):
    fault = FAULTS[(BLOCKS.index(block) + PLACES.index(place)) % len(FAULTS)]
    shape = {"flat": (block,), "rows": (block, 2), "columns": (2, block)}[place]
    report = check(tail_fault(block, place, fault), normal(*shape), clauses="sizes")
    assert report["sizes"].verdict == "broken", f"seed {report.seed}\n{report}"


@pytest.mark.parametrize("block", [4, 128])
def test_a_fault_is_found_in_single_precision(block):
    inputs = normal(block, dtype=torch.float32)

    class OnlySingle(tail_fault(block, "flat", "zero")):
        @staticmethod
        def forward(ctx, x):
            if x.dtype != torch.float32:
                raise TypeError("only float32 is supported")
            ctx.save_for_backward(x)
            return x.sin()

    assert check(OnlySingle, inputs, clauses="sizes")["sizes"].verdict == "broken"


def test_an_argument_without_dimensions_may_stand_beside_what_is_wrong():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bound):
            ctx.save_for_backward(x, bound)
            return torch.minimum(x.relu(), bound)

        @staticmethod
        def backward(ctx, cotangent):
            x, bound = ctx.saved_tensors
            inside = (x > 0) & (x < bound)
            return cotangent * inside, (cotangent * (x > 0)).sum()

    bound = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    report = check(Clipped, normal(6, 4), bound, clauses=["derivative", "sizes"])
    assert report["derivative"].verdict == "broken"
    assert report["sizes"].verdict != "crashes", report


def test_the_function_is_right_at_the_size_that_it_is_given():
    report = check(tail_fault(8, "flat", "zero"), normal(2, 8), clauses=["derivative", "sizes"])
    assert report["derivative"].verdict == "holds"
    assert report["sizes"].verdict == "broken"
    assert "size" in report["sizes"].detail
    assert "torch" in report["sizes"].repro or not report["sizes"].repro


def test_what_is_wrong_at_every_size_is_left_to_derivative():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return ctx.saved_tensors[0] * cotangent

    assert check(Wrong, normal(4), clauses="sizes")["sizes"].verdict == "skipped"


def resized(*args):
    generator = torch.Generator().manual_seed(0)
    return {r.size: r for r in resizings(Arguments.of(args), 1027, 2**14, generator)}


def test_dimensions_of_one_size_change_together():
    found = resized(normal(3, 4), normal(4, 5), torch.ones(5, dtype=torch.bool))
    assert sorted(found) == [3, 4, 5]
    shapes = [tuple(value.shape) for value in found[4].at(7).values]
    assert shapes == [(3, 7), (7, 5), (5,)]
    assert found[4].where == "dimension 1 of args[0], dimension 0 of args[1]"


def test_a_smaller_size_is_a_part_of_a_larger_one_and_the_given_entries_stay():
    x = normal(5)
    made = resized(x)[5]
    small, given, large = (made.at(n).values[0] for n in (3, 5, 131))
    assert torch.equal(given, x.detach())
    assert torch.equal(small, large[:3])
    assert torch.equal(given, large[:5])
    assert len(torch.unique(large)) == 131
    assert bool((large.sign() == x.detach().repeat(27)[:131].sign()).all())


def test_a_size_that_a_number_may_stand_for_is_left_as_it_is():
    assert sorted(resized(normal(3, 4), 4)) == [3]
    assert sorted(resized(normal(6, 2), torch.tensor([0, 2, 3, 6]))) == []
    assert sorted(resized(normal(3, 5), torch.tensor([2, 0, 1, 1]))) == [3, 5]


def test_indices_fit_into_what_has_shrunk():
    made = resized(normal(6, 9), torch.tensor([5, 0, 3, 3]))[6].at(2)
    assert made.values[0].shape == (2, 9)
    assert bool((made.values[1] < 2).all())


@pytest.mark.parametrize("keep", [torch.tril, torch.triu])
def test_triangular_matrices_stay_triangular(keep):
    a = keep(normal(4, 4).detach())
    large = resized(a.requires_grad_())[4].at(65).values[0]
    assert torch.equal(large, keep(large))


def test_definite_matrices_stay_definite():
    a = normal(4, 4).detach()
    a = a @ a.mT + torch.eye(4)
    large = resized(a.requires_grad_())[4].at(65).values[0]
    assert torch.equal(large, large.mT)
    assert bool((torch.linalg.eigvalsh(large) > 0).all())


@pytest.mark.parametrize("make", [definite, orthogonal])
def test_a_matrix_of_a_kind_stays_so_at_every_size(make):
    given = make(4).detach()
    [resizing] = resized(given).values()
    for size in (2, 3, 7, 65):
        made = resizing.at(size).values[0]
        assert {s.name for s in structures(given)} <= {s.name for s in structures(made)}


def test_rows_that_add_up_to_one_do_so_at_every_size():
    [by_row, by_column] = (resized(normal(3, 5).softmax(-1))[n] for n in (3, 5))
    for made in (by_row.at(7), by_column.at(2), by_column.at(64)):
        assert torch.allclose(made.values[0].sum(-1), torch.ones(made.values[0].shape[0]).double())


@pytest.mark.parametrize(
    ("inputs", "kept"),
    [
        ((normal(6, 2), torch.tensor([2, 3, 1])), 6),
        ((normal(6, 3), torch.tensor([[2, 2], [1, 2]])), 6),
        ((normal(6, 3), torch.tensor([0, 1, 1, 2, 2, 2])), 6),
    ],
)
def test_a_size_that_integers_make_up_is_left_as_it_is(inputs, kept):
    assert kept not in resized(*inputs)


def test_what_takes_no_index_twice_is_not_accused_for_indices_that_a_size_made():
    finding = check(TakesDistinct, normal(5), torch.tensor([3, 0, 1]), clauses="sizes")["sizes"]
    assert not finding.verdict.is_bad
    assert "another kind" in finding.detail


class LastRowTwice(torch.autograd.Function):
    """Any rows, in any order; wrong at an odd number of columns."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(x, index)
        return x[index]

    @staticmethod
    def backward(ctx, cotangent):
        x, index = ctx.saved_tensors
        found = torch.zeros_like(x).index_add(0, index, cotangent)
        if x.shape[-1] % 2:
            found[..., -1] *= 2
        return found, None


@pytest.mark.usefixtures("no_edits")
def test_what_takes_any_index_is_accused_all_the_same():
    finding = check(LastRowTwice, normal(5, 4), torch.tensor([3, 0, 1]), clauses="sizes")["sizes"]
    assert finding.verdict == "broken"


class LetsALittleMoreThrough(torch.autograd.Function):
    """A clamp whose gradient ends a little above it, as that of a quantised rectifier."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(max=1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * (x < 1.02)


def test_numbers_that_are_wrong_at_the_given_size_are_no_fault_of_another():
    """Larger arguments have some of them."""
    x = torch.linspace(-3, 0.5, 8, dtype=torch.float64)
    x[4] = 0.99
    report = check(LetsALittleMoreThrough, x.requires_grad_(), clauses=["derivative", "sizes"])
    assert report["derivative"].verdict == "holds"
    assert report["sizes"].verdict == "holds"
    assert "another kind" in report["sizes"].detail


class OfProbabilities(torch.autograd.Function):
    """The mean cross-entropy of probabilities, which forward refuses outside of [0, 1]."""

    @staticmethod
    def forward(ctx, p, target):
        ctx.save_for_backward(p, target)
        return torch.nn.functional.binary_cross_entropy(p, target)

    @staticmethod
    def backward(ctx, cotangent):
        p, target = ctx.saved_tensors
        return cotangent * (p - target) / (p * (1 - p)) / p.numel(), None


def test_what_is_refused_close_to_other_sizes_is_no_refusal_of_them():
    generators = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    p, target = (torch.rand(6, 4, generator=g, dtype=torch.float64) for g in generators)
    report = check(OfProbabilities, p.requires_grad_(), target, clauses="sizes")
    assert report["sizes"].verdict == "holds", report


class TakesPairsOnce(torch.autograd.Function):
    """Entries of a matrix by pairs of a row and a column, none twice: as of sparse labels."""

    @staticmethod
    def forward(ctx, x, pairs):
        ctx.save_for_backward(x, pairs)
        return x[pairs[0], pairs[1]].sin().sum()

    @staticmethod
    def backward(ctx, g):
        x, pairs = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[pairs[0], pairs[1]] += g * x[pairs[0], pairs[1]].cos()
        return found, None


def test_other_integers_that_point_past_the_end_tell_nothing_of_a_size():
    pairs = torch.tensor([[0, 0, 1, 2, 4, 5, 8], [1, 2, 0, 3, 0, 1, 3]])
    report = check(TakesPairsOnce, normal(9, 4), pairs, clauses="sizes")
    assert not report["sizes"].verdict.is_bad, report
