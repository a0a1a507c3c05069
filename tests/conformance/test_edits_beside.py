"""What stands beside a fault, and hid its edit or named a wrong one."""

import pytest
import torch
from tests.scripts import printed_by
from torch import nn
from torch.nn import functional as F

from pullback.conformance import Verdict, check


class Sum(torch.autograd.Function):
    """Two layers whose weights reach backward as arguments, and forward through the modules."""

    @staticmethod
    def forward(ctx, x, first, second, *weights):
        ctx.first, ctx.second = first, second
        ctx.save_for_backward(x)
        with torch.no_grad():
            return first(x).tanh() + second(x).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.first(x).tanh() + ctx.second(x).sin()
            one, two = tuple(ctx.first.parameters()), tuple(ctx.second.parameters())
            dx, *rest = torch.autograd.grad(y, (x, *one, *two), g)
        by_first, by_second = tuple(rest[:2]), tuple(rest[2:])
        return (dx, None, None) + by_second + by_first  # noqa: RUF005 - as it is written


def test_an_edit_is_right_only_if_all_that_a_module_learns_is():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    weights = [*first.parameters(), *second.parameters()]
    x = torch.randn(5, 4, requires_grad=True)
    finding = check(Sum, x, first, second, *weights, clauses="derivative")["derivative"]
    assert "Backward is right with" in finding.detail
    assert "by_first + by_second`" in finding.hint or "tuple(rest[2:]), tuple(rest[:2])" in (
        finding.hint
    )


class OnAnInterval(torch.autograd.Function):
    """What its gradients have in common lacks a half; data need none."""

    @staticmethod
    def forward(ctx, x, table, width):
        u = (x / width + 1.0) * 0.5 * (len(table) - 1)
        cell = u.clamp(0.0, len(table) - 1.0).floor().clamp(max=len(table) - 2).long()
        ctx.save_for_backward(x, table, width, cell, u - cell)
        return table[cell] * (1 - u + cell) + table[cell + 1] * (u - cell)

    @staticmethod
    def backward(ctx, g):
        x, table, width, cell, share = ctx.saved_tensors
        rise = table[cell + 1] - table[cell]
        by_u = torch.stack([g, g]).unsqueeze(-1).mul(rise.unsqueeze(-1)).mean((0, -1))
        by_u = by_u * (x.abs() < width) * (len(table) - 1)
        by_table = torch.zeros_like(table)
        by_table.index_add_(0, cell.flatten(), (g * (1 - share)).flatten())
        by_table.index_add_(0, cell.flatten() + 1, (g * share).flatten())
        return by_u / width, by_table, (-by_u * x / width**2).sum(0)


@pytest.mark.slow
def test_an_edit_is_right_of_inputs_that_need_no_gradient_in_this_call_too():
    x = torch.rand(7, 3, dtype=torch.float64) * 2 - 1
    table = torch.randn(6, dtype=torch.float64).requires_grad_()
    width = torch.full((3,), 1.5, dtype=torch.float64).requires_grad_()
    finding = check(OnAnInterval, x, table, width, clauses="derivative")["derivative"]
    assert "rise" in finding.hint or "by_u * (" in finding.hint


class OneNumberASample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum((1, 2))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x  # whatever the cotangent


def test_a_lost_cotangent_of_one_number_a_sample_is_the_edit_and_makes_no_output_an_alias():
    x = torch.randn(6, 4, 5, dtype=torch.float64).requires_grad_()
    report = check(OneNumberASample, x, clauses=["derivative", "alias"])
    assert "`2 * x * grad[..., None, None]` for `2 * x`" in report["derivative"].hint
    assert report["alias"].verdict is Verdict.HOLDS


class Masked(torch.autograd.Function):
    """Its backward writes into the cotangent what stood there, where nothing lies outside."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.inside = x.abs() <= bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx, g):
        return g.mul_(ctx.inside), None


@pytest.mark.slow
def test_a_write_that_changes_no_number_is_named_where_the_second_derivative_is_refused():
    x = torch.randn(6, dtype=torch.float64).requires_grad_()
    finding = check(Masked, x, 100.0, gradient="surrogate")["cotangent"]
    assert "here by the numbers that stood there" in finding.detail
    assert "`g.mul(ctx.inside)` for `g.mul_(ctx.inside)`" in finding.detail


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        total = x.sum(-1, keepdim=True)
        x.div_(total)
        return (g - (g * x).sum(-1, keepdim=True)) / total


def test_a_write_of_backward_is_not_to_be_declared():
    x = (torch.rand(4, 5, dtype=torch.float64) + 0.1).requires_grad_()
    finding = check(Normalised, x, clauses="mutation")["mutation"]
    assert finding.detail.startswith("Backward changed args[0] in place. It holds with")
    assert "mark_dirty" not in f"{finding.detail} {finding.hint}"


class Rotated(torch.autograd.Function):
    """A gradient of its own kind for the first input, a wrong one for the second."""

    @staticmethod
    def forward(ctx, angle, points):
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        ctx.save_for_backward(angle, turn)
        return points @ turn.mT

    @staticmethod
    def backward(ctx, g):
        angle, turn = ctx.saved_tensors
        return g.sum((-1, -2)) * angle.sign() + 0.1 * g.abs().sum(), g @ turn.mT


def test_an_edit_of_another_input_is_told_before_what_has_none():
    angle = torch.randn(3, dtype=torch.float64).requires_grad_()
    points = torch.randn(3, 4, 2, dtype=torch.float64).requires_grad_()
    finding = check(Rotated, angle, points, clauses="derivative", gradient="exact")["derivative"]
    assert finding.detail.startswith("The gradient of args[1] is not")
    assert "That gradient alone is right with `turn` for `turn.mT`" in finding.detail
    assert finding.detail.endswith("So is that of args[0].")


class Branched(torch.autograd.Function):
    """Right where both need a gradient."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.sin() * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if ctx.needs_input_grad[0] and not ctx.needs_input_grad[1]:
            return g * weight * x.sin(), None
        return g * weight * x.cos(), g * x.sin()


def test_a_branch_that_computes_another_gradient_is_mended_in_its_line():
    x = torch.randn(5, dtype=torch.float64).requires_grad_()
    weight = torch.randn(5, dtype=torch.float64).requires_grad_()
    finding = check(Branched, x, weight, clauses="needs-input-grad")["needs-input-grad"]
    assert finding.verdict == "broken"
    assert "`x.cos()` for `x.sin()`" in finding.detail
    assert "ctx.needs_input_grad for" not in finding.hint  # the flags are asked as they should be


class Chosen(torch.autograd.Function):
    """A loss whose term of the target is forgotten."""

    @staticmethod
    def forward(ctx, scores, target):
        ctx.save_for_backward(scores)
        return scores.square().sum(-1) - scores.gather(-1, target[:, None])[:, 0]

    @staticmethod
    def backward(ctx, g):
        (scores,) = ctx.saved_tensors
        return g[:, None] * (scores + scores), None


def test_entries_that_an_index_names_are_named():
    scores = torch.randn(6, 4, dtype=torch.float64).requires_grad_()
    target = torch.tensor([0, 3, 1, 1, 2, 0])
    finding = check(Chosen, scores, target, clauses="derivative")["derivative"]
    assert "Right but for the entries that args[1] names, one in each row" in finding.detail


class Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        length = (x * x + y * y).sqrt()
        ctx.save_for_backward(x, y, length)
        return length

    @staticmethod
    def backward(ctx, g):
        x, y, length = ctx.saved_tensors
        return g * x / length, g * y / length


def test_a_size_is_not_blamed_for_a_kink_that_was_given():
    keep = torch.arange(12) < 8
    x, y = (torch.randn(12, dtype=torch.float64) * keep for _ in "xy")
    finding = check(Length, x.requires_grad_(), y.requires_grad_(), clauses="sizes")["sizes"]
    assert not finding.verdict.is_bad


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sparse, dense):
        ctx.sparse = sparse
        return torch.sparse.mm(sparse, dense)

    @staticmethod
    def backward(ctx, g):
        return None, torch.sparse.mm(ctx.sparse.t(), g)


def test_the_script_of_a_sparse_argument_that_is_changed_runs():
    sparse = torch.randn(4, 4, dtype=torch.float64).relu().to_sparse_coo().coalesce()
    dense = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    finding = check(Product, sparse, dense, clauses="stale")["stale"]
    assert finding.verdict == "broken"
    assert "ended with" not in finding.repro
    assert "after" in printed_by(finding.repro)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_what_is_not_linear_on_purpose_is_to_be_declared(factor):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-factor, factor)

    finding = check(Clipped, torch.randn(5).requires_grad_(), clauses="linear")["linear"]
    assert 'If it is on purpose, as of one that clips, declare gradient = "nonlinear".' in (
        finding.hint
    )


class SquaresCotangent(torch.autograd.Function):
    """As one with constants of its own, it takes nothing but float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.mul(x.sin(), 2, out=torch.empty(x.shape, dtype=torch.float32))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x.cos() * g * g


def test_what_is_not_linear_of_a_forward_with_a_derivative_is_a_wrong_derivative():
    report = check(SquaresCotangent, torch.randn(5), clauses=("linear", "derivative"))
    assert report.gradient == "exact"
    (cause,) = report.causes
    assert cause.clause == "derivative"
    assert cause.hint.startswith("Write `(2 * x.cos())` for `2 * x.cos() * g`")
    assert 'declare gradient = "nonlinear"' in cause.hint


def test_the_edit_of_what_is_not_linear_is_found_in_the_precision_that_forward_takes():
    finding = check(SquaresCotangent, torch.randn(5), clauses="linear")["linear"]
    assert finding.hint.startswith("Write `(2 * x.cos())` for `2 * x.cos() * g`")


class UpperTriangle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.index = torch.triu_indices(*a.shape)
        return a[tuple(ctx.index)]

    @staticmethod
    def backward(ctx, g):
        by_a = torch.zeros(3, 3, dtype=g.dtype)
        by_a[tuple(ctx.index)] = -g
        return by_a


def test_entries_of_a_symmetric_matrix_are_said_to_move_together():
    a = torch.randn(3, 3, dtype=torch.float64)
    finding = check(UpperTriangle, (a + a.mT).requires_grad_(), clauses="derivative")["derivative"]
    assert "`g` for `-g`" in finding.detail
    assert finding.detail.endswith("a structure ties move together, and are told as one.")


class Plan:
    """What a call is told beside its tensors, among it a number that is no size."""

    def __init__(self, neighbours):
        self.neighbours, self.most = neighbours, 200_000_000


class Gathered(torch.autograd.Function):
    """It saves its output in the place of an input."""

    @staticmethod
    def forward(ctx, data, weights, neighbours):
        ctx.plan = Plan(neighbours)
        out = data[neighbours].flatten(1) @ weights.flatten(0, 1)
        ctx.save_for_backward(out, weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        data, weights = ctx.saved_tensors
        neighbours = ctx.plan.neighbours
        part = (grad @ weights.flatten(0, 1).t()).view(len(neighbours), 3, -1)
        by_data = torch.zeros_like(data).index_add(0, neighbours.flatten(), part.flatten(0, 1))
        rows = data.new_zeros(len(neighbours), 3, data.shape[1])
        rows[:] = data[neighbours]
        return by_data, (rows.flatten(1).t() @ grad).view(weights.shape), None


def test_a_large_number_that_is_no_size_takes_no_time_from_the_search():
    generator = torch.Generator().manual_seed(0)
    data, weights = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((6, 2), (3, 2, 2))
    )
    neighbours = torch.randint(6, (6, 3), generator=generator)
    report = check(Gathered, data, weights, neighbours, clauses="derivative")
    assert "`ctx.save_for_backward(data, weights)` for" in report["derivative"].detail


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.affine = (len(x), 1, 1)
        return x - x.mean((1, 2), keepdim=True)

    @staticmethod
    def backward(ctx, g):
        return g - 2 * g.mean((1, 2), keepdim=True)


def test_a_factor_is_dropped_rather_than_named_after_something_that_is_one():
    x = torch.randn(3, 4, 5, dtype=torch.float64).requires_grad_()
    finding = check(Centred, x, clauses="derivative")["derivative"]
    assert finding.hint.startswith("Write `")
    assert "ctx.affine" not in finding.hint


class BoundedMean(torch.autograd.Function):
    """A geometric mean whose slopes are bounded on purpose, and taken along another dimension."""

    @staticmethod
    def forward(ctx, x, dim, bound):
        ctx.save_for_backward(x)
        ctx.dim, ctx.bound = dim % x.ndim, bound
        product = x.prod(dim)
        return product.sign() * product.abs().sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        product = x.prod(ctx.dim - 1, keepdim=True)
        mean = product.sign() * product.abs().sqrt()
        slope = 0.5 * mean / x
        if ctx.bound is not None:
            slope = torch.clamp(slope, -ctx.bound, ctx.bound)
        return g.unsqueeze(ctx.dim) * slope, None, None


class BoundedExponential(torch.autograd.Function):
    """An exponential whose slope is bounded on purpose, and of another angle."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin().exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grown = x.cos().exp()
        return g * F.hardtanh(x.cos() * grown, -0.5, 0.5)


@pytest.mark.parametrize(
    ("function", "inputs", "slip", "bound"),
    [
        (BoundedMean, (torch.randn(8, 4, 2), 2, 1.0), "`ctx.dim` for `ctx.dim - 1`", "slope"),
        (BoundedExponential, (torch.randn(12),), "`x.sin()` for `x.cos()`", "(x.cos() * grown)"),
    ],
)
def test_a_bound_that_is_meant_hides_no_slip(function, inputs, slip, bound):
    inputs = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in inputs]
    finding = check(function, *inputs, clauses="derivative")["derivative"]
    said, _, also = finding.detail.partition("Backward is right with ")[2].partition(" and ")
    assert said.startswith(slip)
    assert also.startswith(f"`{bound}` for")
