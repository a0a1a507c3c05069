"""Second derivatives where the operations of forward do not tell how its output changes.

What is right is a finite difference of the author's own gradient.
"""

import types

import pytest
import torch
from tests.specimens.right.smooth import Softmax

import pullback
from pullback.errors import UnsupportedError

X = torch.tensor([0.7, 1.3, 0.9], dtype=torch.float64)


class Function(torch.autograd.Function):
    @classmethod
    def completed(cls):
        return pullback.complete(cls).apply


class Crooked(Function):
    """The cube, with the backward of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g


class AppliesAnother(Function):
    """Its values change as those of the Function within do, and not as that one's rules say."""

    @staticmethod
    def forward(ctx, x):
        y = Crooked.apply(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return 3 * y / x * g


class Bisected(Function):
    """y with y**power + y = x, whose steps tell autograd of no derivative."""

    @staticmethod
    def forward(ctx, x, power=3):
        power = torch.tensor(power, dtype=x.dtype).expand(x.shape)
        low, high = torch.zeros_like(x), torch.full_like(x, 4.0)
        for _ in range(50):
            y = (low + high) / 2
            below = y**power + y < x
            low, high = torch.where(below, y, low), torch.where(below, high, y)
        ctx.power = power
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (ctx.power * y ** (ctx.power - 1) + 1), None


class WritesOut(Function):
    """A kernel that autograd does not take, and a backward that reads nothing of it."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        torch.mul(x, x.new_full((), 3.0), out=y)
        return y

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class InBlocks(Function):
    """A softmax by blocks, written into pieces of buffers, with running maxima."""

    @staticmethod
    @torch.no_grad()
    def forward(ctx, x):
        total, largest = torch.zeros(1, dtype=x.dtype), torch.full((1,), -1e9, dtype=x.dtype)
        for block in x.split(2):
            new = torch.maximum(block.amax(), largest)
            total.mul_(torch.exp(largest - new)).add_(torch.exp(block - new).sum())
            largest.copy_(new)
        y = torch.zeros_like(x)
        for block, piece in zip(x.split(2), y.split(2), strict=True):
            piece.add_(torch.exp(block - largest)).div_(total)
        ctx.save_for_backward(x, total.log() + largest)
        return y

    @staticmethod
    def backward(ctx, g):
        x, logarithm = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        y = torch.exp(x - logarithm)
        mean = (g * y).sum()
        for piece, block, change in zip(gradient.split(2), y.split(2), g.split(2), strict=True):
            piece.add_(block * (change - mean))
        return gradient


class DifferentiatesAGraph(Function):
    """Backward differentiates what forward has computed under enable_grad."""

    @staticmethod
    def forward(ctx, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = x.sin() * x
        ctx.save_for_backward(x, y)
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return torch.autograd.grad(y, x, g)[0]


def gradient(apply, x):
    leaf = x.detach().clone().requires_grad_()
    value = apply(leaf)
    return torch.autograd.grad((value + value**2 / 2).sum(), leaf)[0]


def measured(function, x, direction, step=1e-5):
    ends = [gradient(function.apply, x + sign * step * direction) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("function", [
    AppliesAnother, Bisected, WritesOut, InBlocks, DifferentiatesAGraph,
])  # fmt: skip
@pytest.mark.parametrize("way", ["reverse", "forward"])
def test_the_second_derivative_is_that_of_the_own_gradient(function, way):
    x = X
    direction = torch.tensor([0.3, -1.1, 0.6], dtype=torch.float64)
    apply = function.completed()
    if way == "forward":

        def first(x):
            value, pull = torch.func.vjp(apply, x)
            return pull(1 + value)[0]

        try:
            found = torch.func.jvp(first, (x,), (direction,))[1]
        except UnsupportedError:  # no level of reverse mode begins a private derivative there
            assert function is DifferentiatesAGraph
            return
    else:
        leaf = x.clone().requires_grad_()
        value = apply(leaf)
        once = torch.autograd.grad((value + value**2 / 2).sum(), leaf, create_graph=True)[0]
        found = torch.autograd.grad(once, leaf, direction)[0]
    torch.testing.assert_close(found, measured(function, x, direction), rtol=1e-5, atol=1e-7)


def hides(write):
    class Hides(Function):
        """As `Bisected`, with what backward uses hidden in what seems a constant."""

        @staticmethod
        def forward(ctx, x):
            y = Bisected.forward(types.SimpleNamespace(save_for_backward=id), x)
            ctx.slope = write(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g / ctx.slope

    return Hides.completed()


def by_a_view(y):
    buffer = torch.zeros(y.shape, dtype=y.dtype)
    buffer.view(-1).copy_((1 + 3 * y**2).view(-1))
    return buffer


def by_an_index(y):
    buffer = torch.zeros(y.shape, dtype=y.dtype)
    buffer[:] = 1 + 3 * y**2
    return buffer


def by_out(y):
    return torch.add(3 * y**2, torch.ones(y.shape, dtype=y.dtype), out=torch.empty(0).to(y))


def by_numbers(y):
    return torch.tensor([1 + 3 * number**2 for number in y.tolist()], dtype=y.dtype)


def by_numpy(y):
    return torch.from_numpy(1 + 3 * y.detach().numpy() ** 2)


@pytest.mark.parametrize("write", [by_a_view, by_an_index, by_out, by_numbers, by_numpy])
def test_what_forward_computed_is_no_constant(write):
    leaf = X.clone().requires_grad_()
    once = torch.autograd.grad(hides(write)(leaf).sum(), leaf, create_graph=True)[0]
    with pytest.raises(UnsupportedError):
        torch.autograd.grad(once.sum(), leaf)


def test_rounding_of_a_large_entry_does_not_hide_a_small_one():
    """Transposed at one basis tangent, what cancels is as large as the other entries."""

    generator = torch.Generator().manual_seed(3)
    x = 4 * torch.randn(12, 40, generator=generator)
    found = torch.func.jacfwd(pullback.complete(Softmax).apply)(x)
    torch.testing.assert_close(found, torch.func.jacrev(lambda x: x.softmax(-1))(x))


class BySlices(Function):
    """The square, written piece by piece."""

    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        y[:2] = x[:2] ** 2
        y[2:].add_(x[2:] ** 2)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        double = torch.zeros_like(x)
        double[:2] = 2 * x[:2]
        double[2:].add_(2 * x[2:])
        return double * g


def test_what_linearize_would_drop_is_refused():
    apply = BySlices.completed()
    torch.testing.assert_close(torch.func.jvp(apply, (X,), (X,))[1], 2 * X * X)
    with pytest.raises(UnsupportedError, match="linearize drops"):
        torch.func.linearize(apply, X)[1](X)
    with pytest.raises(UnsupportedError, match="linearize drops"):
        torch.func.linearize(torch.func.grad(lambda x: apply(x).sum()), X)[1](X)


class ByChanges(Function):
    """The sum of ``exp(x) - x``, with what backward reads changed in place as is told."""

    @staticmethod
    def forward(ctx, x, change):
        saved = x.exp()
        change(saved)
        ctx.save_for_backward(saved)
        return (x.exp() - x).sum()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return slope * g, None


def _by_index(saved):
    saved[torch.arange(len(saved))] -= 1


def _by_scatter(saved):
    saved.scatter_add_(0, torch.arange(len(saved)), -torch.ones_like(saved))


def _in_steps(saved):
    saved *= 2
    saved.sub_(1).sub_(1).div_(2)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("change", [_by_index, _by_scatter, _in_steps, lambda saved: saved.sub_(1)])
def test_what_linearize_returns_makes_no_change_again(change):
    apply = ByChanges.completed()
    _, tangent_of = torch.func.linearize(lambda x: apply(x, change), X)
    for tangent in (X, X.cos(), X):
        torch.testing.assert_close(tangent_of(tangent), ((X.exp() - 1) * tangent).sum())


class Complement(Function):
    """Reads a view and inverts it: an operator, and no change in place."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        never = x.new_zeros(2, 3, dtype=torch.bool)
        return torch.where(~never[0], 2 * x * g, 0.0)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_linearize_takes_operators_that_only_read_a_view():
    apply = Complement.completed()
    torch.testing.assert_close(torch.func.linearize(apply, X)[1](X), 2 * X * X)
    gradient = torch.func.grad(lambda x: apply(x).sum())
    torch.testing.assert_close(torch.func.linearize(gradient, X)[1](X), 2 * X)


def test_compiled_code_keeps_what_linearize_would_drop():
    apply = BySlices.completed()
    compiled = torch.compile(
        lambda x: torch.func.jvp(apply, (x,), (x,))[1], fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(X), 2 * X * X)
