"""Right Functions at the edges: kinks, gauges, randomness, views, in place, declared surrogates."""

import numpy as np
import torch
from tests.specimens._specimen import Specimen, normal, positive
from torch.autograd.function import once_differentiable

from pullback import Function


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * (x > 0)


class Absolute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.sign() * cotangent


class MaximumWithIndex(torch.autograd.Function):
    """An integer output, marked."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(x, indices)
        return values, indices

    @staticmethod
    def backward(ctx, cotangent, unused):
        x, indices = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, indices.unsqueeze(-1), cotangent.unsqueeze(-1))


class SortedValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(-1)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx, cotangent):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(cotangent).scatter(-1, order, cotangent)


class Eigenvalues(torch.autograd.Function):
    """Eigenvalues and eigenvectors: signs are free, the gradient follows the ones returned."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def backward(ctx, values_cotangent, vectors_cotangent):
        values, vectors = ctx.saved_tensors
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        gaps = torch.where(gaps == 0, torch.inf, gaps)
        inner = vectors.mT @ vectors_cotangent / gaps + torch.diag_embed(values_cotangent)
        gradient = vectors @ inner @ vectors.mT
        return (gradient + gradient.mT) / 2


class Dropout(torch.autograd.Function):
    """Draws from torch's default generator."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) < 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        return cotangent * mask


class NoiseFromGenerator(torch.autograd.Function):
    """Draws from a generator that it is given."""

    @staticmethod
    def forward(ctx, x, generator):
        noise = torch.rand(x.shape, dtype=x.dtype, generator=generator)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, cotangent):
        (noise,) = ctx.saved_tensors
        return cotangent * noise, None


class IdentityView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Transposed(torch.autograd.Function):
    """The output is a view of the input."""

    @staticmethod
    def forward(ctx, x):
        return x.transpose(0, 1)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.transpose(0, 1)


class DoubleInPlace(torch.autograd.Function):
    """Changes its input, and says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


class NumpyCumulative(torch.autograd.Function):
    """Linear, so that a second derivative of zero is right, even where torch is silent."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.cumsum(x.numpy(force=True), axis=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        reverse = np.flip(cotangent.numpy(force=True), -1)
        return torch.from_numpy(np.flip(np.cumsum(reverse, axis=-1), -1).copy())


class OnceLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(-1) * 3

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        return cotangent.flip(-1) * 3


class OnceCube(Function):
    """Nonlinear and once_differentiable: pullback.Function is loud everywhere."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent


class ReverseGradient(torch.autograd.Function):
    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return -ctx.factor * cotangent, None


class StraightThrough(torch.autograd.Function):
    """Undeclared, and seen to be a surrogate: forward is constant almost everywhere."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class ClipDeclared(torch.autograd.Function):
    gradient = "nonlinear"

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-0.5, 0.5)


class SurrogateSpike(Function):
    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent / (1 + (torch.pi * x) ** 2)


class Gather(torch.autograd.Function):
    """An integer input."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        empty = cotangent.new_zeros((ctx.rows, *cotangent.shape[1:]))
        return empty.index_add(0, index, cotangent), None


class CholeskyFactor(torch.autograd.Function):
    """A symmetric input."""

    @staticmethod
    def forward(ctx, a):
        lower = torch.linalg.cholesky(a)
        ctx.save_for_backward(lower)
        return lower

    @staticmethod
    def backward(ctx, cotangent):
        (lower,) = ctx.saved_tensors
        inner = (lower.mT @ cotangent).tril()
        inner = inner - 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
        left = torch.linalg.solve_triangular(lower.mT, inner, upper=True)
        gradient = torch.linalg.solve_triangular(lower, left, upper=False, left=False)
        return (gradient + gradient.mT) / 2


class NothingSaved(torch.autograd.Function):
    """Nothing depends on a value, so that a second backward may answer."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x.sum(0)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.expand(ctx.rows, *cotangent.shape)


def symmetric(n: int) -> torch.Tensor:
    x = normal(n, n).detach()
    return (x @ x.mT + n * torch.eye(n, dtype=x.dtype)).requires_grad_()


SPECIMENS = [
    Specimen(Relu, lambda: (torch.tensor([-1.0, 0.0, 2.0, 1e-9], requires_grad=True),)),
    Specimen(Relu, lambda: (torch.zeros(3, dtype=torch.float64, requires_grad=True),)),
    Specimen(Absolute, lambda: (torch.tensor([-1.0, 0.0, 2.0]).double().requires_grad_(),)),
    Specimen(MaximumWithIndex, lambda: (normal(3, 4),)),
    Specimen(
        MaximumWithIndex, lambda: (torch.ones(2, 3, dtype=torch.float64, requires_grad=True),)
    ),
    Specimen(SortedValues, lambda: (normal(2, 5),)),
    Specimen(Eigenvalues, lambda: (symmetric(4),)),
    Specimen(Dropout, lambda: (normal(5, 4),)),
    Specimen(NoiseFromGenerator, lambda: (normal(5), torch.Generator().manual_seed(3))),
    Specimen(IdentityView, lambda: (normal(3),)),
    Specimen(Transposed, lambda: (normal(3, 2),)),
    Specimen(DoubleInPlace, lambda: (normal(3),)),
    Specimen(NumpyCumulative, lambda: (normal(2, 3),)),
    Specimen(OnceLinear, lambda: (normal(4),)),
    Specimen(OnceCube, lambda: (positive(3),)),
    Specimen(ReverseGradient, lambda: (normal(3), 0.7)),
    Specimen(StraightThrough, lambda: (normal(4),)),
    Specimen(ClipDeclared, lambda: (normal(3),)),
    Specimen(SurrogateSpike, lambda: (normal(4),)),
    Specimen(Gather, lambda: (normal(3, 2), torch.tensor([0, 2, 2, 1]))),
    Specimen(CholeskyFactor, lambda: (symmetric(3),)),
    Specimen(NothingSaved, lambda: (normal(3, 2),)),
]
