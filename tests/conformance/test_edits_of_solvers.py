"""Solvers: fixed points, factorisations, flags that are texts, rules that loop."""

import ast

import pytest
import torch

from pullback.conformance import check
from pullback.conformance.source._sources import written
from pullback.conformance.source._vain import is_vain
from pullback.conformance.source._written import Expression


def _reduced(values, index, size, reduce):
    made = values.new_zeros(size).index_add(0, index, values)
    if reduce == "total":
        return made
    if reduce == "average":
        return made / torch.bincount(index, minlength=size).clamp(min=1)
    raise ValueError(reduce)


class Gathers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(x, index)
        return x[index] ** 2

    @staticmethod
    def backward(ctx, g):
        x, index = ctx.saved_tensors
        return _reduced(2 * g * x[index], index, len(x), "average"), None


class Spectrum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.fft.fft(x)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g, norm="backward")


class Real(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.real

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * torch.imag(w), ((x.conj() * g).imag + 0j)


G = torch.Generator().manual_seed(3)
X = torch.randn(7, dtype=torch.float64, generator=G)
Z = torch.randn(7, dtype=torch.complex128, generator=G)
INDEX = torch.tensor([0, 0, 2, 2, 2, 5, 6])


@pytest.mark.parametrize(
    ("function", "args", "edit"),
    [
        (Gathers, (X, INDEX), "`'total'` for `\"average\"`"),
        (Spectrum, (Z,), "`'forward'` for `\"backward\"`"),
        (Real, (Z, Z + 1), "`torch.real(w)` for `torch.imag(w)`"),
    ],
)
def test_a_flag_that_is_a_text_and_a_part_of_complex_numbers_are_named(function, args, edit):
    args = [a.clone().requires_grad_(a.dtype != torch.int64) for a in args]
    assert edit in check(function, *args, clauses="derivative")["derivative"].hint


class Transport(torch.autograd.Function):
    """Entropic transport between marginals, with the implicit gradient: equal shares hide none."""

    @staticmethod
    def forward(ctx, cost, a, b):
        kernel, v = (-cost).exp(), torch.ones_like(b)
        for _ in range(300):
            u = a / (kernel @ v)
            v = b / (kernel.mT @ u)
        plan = u[:, None] * kernel * v
        ctx.save_for_backward(plan, a, b)
        return plan

    @staticmethod
    def backward(ctx, g):
        plan, a, b = ctx.saved_tensors
        rows, columns = (g * plan).sum(1), (g * plan).sum(0)
        both = torch.diag(b) - plan.mT @ (plan / a[:, None]) + torch.ones(len(b), len(b)).to(b)
        by_b = torch.linalg.solve(both, columns - plan.mT @ (rows / a))
        by_a = (rows - plan @ by_b) / a
        return plan * (by_a[:, None] + by_b - g), None, None


def test_marginals_that_are_equal_stay_marginals():
    cost = torch.rand(5, 4, dtype=torch.float64, generator=G).requires_grad_()
    a, b = (torch.full((n,), 1 / n, dtype=torch.float64) for n in (5, 4))
    assert check(Transport, cost, a, b, clauses="derivative")["derivative"].verdict == "holds"


class Fades(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y.exp()).sin()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y.exp() * x.exp().atan(),) * 2


def test_a_wrong_gradient_of_no_dimensions_is_told():
    x, y = (torch.tensor(v, dtype=torch.float64).requires_grad_() for v in (0.3, 0.7))
    assert check(Fades, x, y, clauses="derivative")["derivative"].verdict == "broken"


class Euler(torch.autograd.Function):
    """Two steps of a learnt field, and their adjoint; the second of these is taken at the end."""

    @staticmethod
    def forward(ctx, field, y, *weights):
        with torch.no_grad():
            middle = y + field(y)
            end = middle + field(middle)
        ctx.field = field
        ctx.save_for_backward(y, middle, end, *weights)
        return end

    @staticmethod
    def backward(ctx, g):
        y, middle, end, *weights = ctx.saved_tensors  # noqa: RUF059 - one is forgotten
        learnt = [torch.zeros_like(w) for w in weights]
        for begin in (end, y):
            with torch.enable_grad():
                at = begin.detach().requires_grad_()
                by_y, *more = torch.autograd.grad(ctx.field(at), [at, *weights], g)
            g, learnt = g + by_y, [a + b for a, b in zip(learnt, more, strict=True)]
        return None, g, *learnt


def test_what_a_module_learns_is_judged_however_deep_its_layers_lie():
    field = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double()
    for _ in range(4):
        field = torch.nn.Sequential(field)
    args = [field, torch.randn(2, 3).double(), *field.parameters()]
    found = check(Euler, *args, clauses="derivative")["derivative"]
    assert found.verdict == "broken"
    assert "`(middle, y)` for `(end, y)`" in found.hint


class StartsAnywhere(torch.autograd.Function):
    """A linear system by steps that start at random numbers, and its adjoint."""

    @staticmethod
    def forward(ctx, b):
        return _solved(b)

    @staticmethod
    def backward(ctx, g):
        return _solved(g)


def _solved(b):
    x = torch.randn_like(b)
    for _ in range(80):
        x = x - 0.5 * (1.3 * x + 0.1 * x.roll(1) + 0.1 * x.roll(-1) - b)
    return x


def test_a_solver_that_starts_at_random_numbers_is_linear():
    args = [X.clone().requires_grad_()]
    report = check(StartsAnywhere, *args, clauses="linear,derivative,undefined")
    assert (report.gradient, list(report.problems)) == ("exact", [])


class BesideItsNull(torch.autograd.Function):
    """The solution of a singular system, without its null vector, from a random start."""

    @staticmethod
    def forward(ctx, a, b, null):
        x = torch.randn_like(b)
        x = x - (null @ x) * null
        for _ in range(120):
            x = x - 0.5 * (a @ x - b)
        ctx.save_for_backward(a, null, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, null, x = ctx.saved_tensors
        by_b = BesideItsNull.apply(a, g - (null @ g) * null, null)
        return -by_b[:, None] * x, by_b, -x * (null @ g)


def test_what_random_numbers_move_beside_the_arguments_alone_is_no_gradient():
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=G))[0]
    a = (basis * torch.tensor([0.0, 0.6, 1.0, 1.4])) @ basis.mT
    null = basis[:, 0].clone().requires_grad_()
    b = basis[:, 1:].sum(1)
    report = check(BesideItsNull, a, b, null, clauses="derivative")
    assert [str(finding) for finding in report.problems] == []


class PicksPairs(torch.autograd.Function):
    """The entries that pairs of indices name, each once: rows of less than there are columns."""

    @staticmethod
    def forward(ctx, x, pairs):
        ctx.save_for_backward(x, pairs)
        return x[pairs[0], pairs[1]].exp()

    @staticmethod
    def backward(ctx, g):
        x, pairs = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[pairs[0], pairs[1]] = g * x[pairs[0], pairs[1]].exp()
        return found, None


def test_indices_that_no_other_order_fits_are_no_fault_of_a_size():
    x = torch.randn(3, 6, dtype=torch.float64, generator=G).requires_grad_()
    pairs = torch.tensor([[0, 0, 1, 2], [1, 5, 4, 0]])
    report = check(PicksPairs, x, pairs, clauses="sizes,derivative")
    assert [str(finding) for finding in report.problems] == []


def _of_unit_norm(solve, g):
    scale = g.norm()
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return solve(g / safe)  # not `* scale` again


class SolvesAtUnitNorm(torch.autograd.Function):
    """The adjoint of a solver with an absolute tolerance, of a cotangent of its size."""

    @staticmethod
    def forward(ctx, matrix, b):
        u = torch.linalg.solve(matrix, b)
        ctx.save_for_backward(matrix, u)
        return u

    @staticmethod
    def backward(ctx, g):
        matrix, u = ctx.saved_tensors
        by_b = _of_unit_norm(lambda rhs: torch.linalg.solve(matrix.mT, rhs), g)
        return -by_b[:, None] * u, by_b


class RowsOfUnitNorm(torch.autograd.Function):
    """The same of several right-hand sides, each of its size, in backward itself."""

    @staticmethod
    def forward(ctx, b, matrix):
        ctx.save_for_backward(matrix)
        return torch.linalg.solve(matrix, b)

    @staticmethod
    def backward(ctx, g):
        (matrix,) = ctx.saved_tensors
        size = g.norm(dim=-2, keepdim=True).clamp(min=1e-30)
        by_b = torch.linalg.solve(matrix.mT, g.div(size))
        return by_b, None


@pytest.mark.parametrize("clause", ["linear", "derivative"])
def test_a_norm_that_is_divided_by_is_to_be_multiplied_by_in_the_end(clause):
    matrix = 5 * torch.eye(7, dtype=torch.float64) + X.cos() * X[:, None]
    given = [t.clone().requires_grad_() for t in (matrix, X)]
    found = check(SolvesAtUnitNorm, *given, clauses=clause)[clause]
    assert "`solve(g / safe) * safe` for `solve(g / safe)`" in found.hint, found.hint
    rows = torch.stack([X, X.flip(0), X.exp()], 1).requires_grad_()
    found = check(RowsOfUnitNorm, rows, matrix, clauses=clause)[clause]
    assert "`by_b * size, None` for `by_b, None`" in found.hint, found.hint


class Thresholds(torch.autograd.Function):
    """Whatever the norm is, no more than a hundredth of the cotangent."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        scale = g.norm()
        return torch.where(scale > 0, 0.01 * g, g) * weight, None


@pytest.mark.parametrize("edit", ["scale > scale", "scale - scale", "scale.gt(scale)", "g / g"])
def test_nothing_is_compared_with_itself_or_divided_by_itself(edit):
    rule = written(Thresholds.backward).rule
    (compared,) = rule.nodes(ast.Compare)
    assert is_vain({Expression(rule, compared): edit})
    assert is_vain({Expression(rule, compared.comparators[0]): "scale"})
    assert not is_vain({Expression(rule, compared): "scale >= 0"})


def test_an_edit_that_compares_something_with_itself_is_none():
    found = check(Thresholds, X.clone().requires_grad_(), X.exp(), clauses="derivative")
    assert "`g` for `0.01 * g`" in found["derivative"].hint
