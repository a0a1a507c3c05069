"""Right Functions of arguments of a kind; outside of it they are silently something else."""

import math

import torch
from tests.specimens._specimen import Specimen, normal, positive
from torch.autograd.function import once_differentiable

__all__ = ["SPECIMENS", "definite", "one_hot", "orthogonal", "ring"]


def definite(count: int, *batch: int, seed: int = 3) -> torch.Tensor:
    """A positive definite matrix, symmetric up to rounding only, as products and inverses are."""
    a = normal(*batch, count, count, seed=seed).detach()
    return torch.linalg.inv(a @ a.mT + count * torch.eye(count)).requires_grad_()


def orthogonal(count: int) -> torch.Tensor:
    """An orthogonal matrix, which nobody differentiates."""
    return torch.linalg.qr(normal(count, count).detach())[0]


def ring(count: int) -> torch.Tensor:
    """The two neighbours of each of so many places on a ring."""
    places = torch.arange(count)
    return torch.stack([(places - 1) % count, (places + 1) % count], 1)


def one_hot(rows: int, count: int) -> torch.Tensor:
    """One 1.0 in each row."""
    return torch.nn.functional.one_hot(torch.arange(rows) % count, count).double()


def unit(*shape: int) -> torch.Tensor:
    """Rows of length one."""
    return torch.nn.functional.normalize(normal(*shape).detach(), dim=-1).requires_grad_()


class Rule(torch.autograd.Function):
    """Saves its inputs."""

    @classmethod
    def keep(cls, ctx, *inputs):
        ctx.save_for_backward(*inputs)


class TakesDistinct(Rule):
    """Chosen rows, no row twice, so that a gradient may be written where it would be added."""

    @staticmethod
    def forward(ctx, x, index):
        Rule.keep(ctx, x, index)
        return x[index]

    @staticmethod
    def backward(ctx, cotangent):
        x, index = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[index] = cotangent
        return found, None


class Shuffles(Rule):
    """Sines of rows in another order; backward goes back by the inverse permutation."""

    @staticmethod
    def forward(ctx, x, order):
        Rule.keep(ctx, x, order)
        return x.gather(-1, order).square()

    @staticmethod
    def backward(ctx, cotangent):
        x, order = ctx.saved_tensors
        return 2 * x * cotangent.gather(-1, order.argsort(-1)), None


class Swaps(Rule):
    """A permutation that is its own inverse, named by a list of partners."""

    @staticmethod
    def forward(ctx, x, partner):
        Rule.keep(ctx, partner)
        return x[partner] + 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        (partner,) = ctx.saved_tensors
        return cotangent[partner] + 2 * cotangent, None


class SegmentMean(Rule):
    """Means of so many rows each."""

    @staticmethod
    def forward(ctx, x, lengths):
        Rule.keep(ctx, x, lengths)
        ends = lengths.cumsum(0).tolist()
        return torch.stack(
            [x[b - n : b].sum(0) / n for b, n in zip(ends, lengths.tolist(), strict=True)]
        )

    @staticmethod
    def backward(ctx, cotangent):
        x, lengths = ctx.saved_tensors
        rows = (cotangent / lengths.unsqueeze(-1)).repeat_interleave(lengths, 0)
        found = torch.zeros_like(x)
        found[: len(rows)] = rows[: len(x)]
        if len(rows) < len(x):
            found[len(rows) :] = rows[-1:]
        return found, None


class PaddedMean(Rule):
    """The mean of the first so many rows of each item; the others are padding."""

    @staticmethod
    def forward(ctx, x, lengths):
        Rule.keep(ctx, x, lengths)
        return torch.stack([item[:n].mean(0) for item, n in zip(x, lengths.tolist(), strict=True)])

    @staticmethod
    def backward(ctx, cotangent):
        x, lengths = ctx.saved_tensors
        inside = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        return (inside / lengths.unsqueeze(1)).unsqueeze(2) * cotangent.unsqueeze(1), None


class Levels(Rule):
    """Maps of several sizes one after the other; each is weighted by its number of pixels."""

    @staticmethod
    def forward(ctx, x, shapes):
        Rule.keep(ctx, shapes)
        first = int(shapes[0].prod())
        return torch.stack([x[:first].sum(0) / first, x[first:].mean(0)])

    @staticmethod
    def backward(ctx, cotangent):
        (shapes,) = ctx.saved_tensors
        pixels = shapes.prod(-1)
        return (cotangent / pixels.unsqueeze(1)).repeat_interleave(pixels, 0), None


class Laplacian(Rule):
    """Differences to neighbours on a graph without directions: it is its own transpose."""

    @staticmethod
    def apply_to(x, neighbours):
        return neighbours.shape[1] * x - x[neighbours].sum(1)

    @staticmethod
    def forward(ctx, x, neighbours):
        Rule.keep(ctx, neighbours)
        return Laplacian.apply_to(x, neighbours)

    @staticmethod
    def backward(ctx, cotangent):
        return Laplacian.apply_to(cotangent, *ctx.saved_tensors), None


class SymmetricSolve(Rule):
    """X with A X = B, where A is symmetric and so its own transpose."""

    @staticmethod
    def forward(ctx, b, a):
        x = torch.linalg.solve(a, b)
        Rule.keep(ctx, a, x)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        a, x = ctx.saved_tensors
        lam = torch.linalg.solve(a, cotangent)
        outer = lam @ x.mT
        return lam, -(outer + outer.mT) / 2


class ConjugateGradients(Rule):
    """The same without a factor, and without a limit: it ends where the matrix is definite."""

    @staticmethod
    def solve(given, right):
        a, b = given.double(), right.double()
        x, residual = torch.zeros_like(b), b.clone()
        step, size = residual, residual.square().sum()
        end = 1e-24 * b.square().sum()
        while not size <= end:
            image = a @ step
            length = size / (step * image).sum()
            x, residual = x + length * step, residual - length * image
            size, before = residual.square().sum(), size
            step = residual + size / before * step
        return x.to(right.dtype)

    @staticmethod
    def forward(ctx, a, b):
        x = ConjugateGradients.solve(a, b)
        Rule.keep(ctx, a, x)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        a, x = ctx.saved_tensors
        lam = ConjugateGradients.solve(a, cotangent)
        outer = torch.outer(lam, x)
        return -(outer + outer.mT) / 2, lam


class LogDeterminant(Rule):
    """Of a positive definite matrix, whose inverse is symmetric."""

    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a)
        ctx.save_for_backward(factor)
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (factor,) = ctx.saved_tensors
        return cotangent[..., None, None] * torch.cholesky_inverse(factor)


class MatrixRoot(Rule):
    """The square root of a positive definite matrix; rounding below zero is cut off."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        roots = values.clamp(min=0).sqrt()
        Rule.keep(ctx, roots, vectors)
        return (vectors * roots.unsqueeze(-2)).matmul(vectors.mT).to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        roots, vectors = ctx.saved_tensors
        inside = vectors.mT @ cotangent.to(vectors.dtype) @ vectors
        inside = inside / (roots.unsqueeze(-1) + roots.unsqueeze(-2))
        found = vectors @ inside @ vectors.mT
        return (found + found.mT) / 2


class Unrotates(Rule):
    """X with Q X = B, where Q is orthogonal, so that Q is the inverse of its transpose."""

    @staticmethod
    def forward(ctx, b, q):
        Rule.keep(ctx, q)
        return torch.linalg.solve(q, b)

    @staticmethod
    def backward(ctx, cotangent):
        (q,) = ctx.saved_tensors
        return q @ cotangent, None


class Cosine(Rule):
    """x . w / |x|, differentiated where |x| is one."""

    @staticmethod
    def forward(ctx, x, w):
        Rule.keep(ctx, x, w)
        return (x * w).sum(-1) / x.norm(dim=-1)

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (w - x * (x * w).sum(-1, keepdim=True)), None


class CrossEntropy(Rule):
    """Of targets that add up to one."""

    @staticmethod
    def forward(ctx, logits, target):
        Rule.keep(ctx, logits, target)
        return logits.logsumexp(-1) * 1.0 - (logits * target).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        logits, target = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (logits.softmax(-1) - target), None


class WeightedEntropy(CrossEntropy):
    """The same, with the sum of the targets in forward, where it is one."""

    @staticmethod
    def forward(ctx, logits, target):
        Rule.keep(ctx, logits, target)
        return (target * -logits.log_softmax(-1)).sum(-1)


class LeftHanded(Rule):
    """Kullback-Leibler divergence of probabilities from log-probabilities; no log of zero."""

    @staticmethod
    def forward(ctx, log_q, p):
        Rule.keep(ctx, log_q, p)
        return p * (p.clamp(min=1e-12).log() - log_q)

    @staticmethod
    def backward(ctx, cotangent):
        log_q, p = ctx.saved_tensors
        return -p * cotangent, cotangent * (p.clamp(min=1e-12).log() + 1 - log_q)


class BinaryCrossEntropy(Rule):
    """Of probabilities, kept from zero and from one."""

    @staticmethod
    def forward(ctx, p, target):
        Rule.keep(ctx, p, target)
        q = p.clamp(1e-12, 1 - 1e-12)
        return -(target * q.log() + (1 - target) * (1 - q).log())

    @staticmethod
    def backward(ctx, cotangent):
        p, target = ctx.saved_tensors
        q = p.clamp(1e-12, 1 - 1e-12)
        return cotangent * (q - target) / (q * (1 - q)), None


class LogOfPositive(Rule):
    """The logarithm, with what is below the smallest number kept there."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.clamp(min=1e-30).log()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent / x.clamp(min=1e-30)


class Standardised(Rule):
    """x / s, where s is a scale and so positive; forward takes its size all the same."""

    @staticmethod
    def forward(ctx, x, s):
        Rule.keep(ctx, x, s)
        return x / s.abs()

    @staticmethod
    def backward(ctx, cotangent):
        x, s = ctx.saved_tensors
        return cotangent / s, -cotangent * x / (s * s)


class Running(Rule):
    """The largest so far of what rises: the entry itself."""

    @staticmethod
    def forward(ctx, x, w):
        Rule.keep(ctx, x, w)
        return x.cummax(-1).values * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent * w, cotangent * x


class LogSumExp(Rule):
    """Of one entry it is that entry."""

    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(-1)
        Rule.keep(ctx, x, y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp()


class SumOfSquares(Rule):
    """Of one entry it is its square."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.square().sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent.unsqueeze(-1)


def only_bfloat16(function):
    """A Function that takes nothing else, computes in float32 and answers in bfloat16."""

    class Only(Rule):
        @staticmethod
        def forward(ctx, *inputs):
            if any(x.dtype != torch.bfloat16 for x in inputs):
                raise TypeError("only bfloat16 is supported")
            Rule.keep(ctx, *inputs)
            return function(*[x.float() for x in inputs]).bfloat16()

        @staticmethod
        def backward(ctx, cotangent):
            inputs = [x.float() for x in ctx.saved_tensors]
            _, pull = torch.func.vjp(function, *inputs)
            return tuple(g.bfloat16() for g in pull(cotangent.float()))

    Only.__name__ = Only.__qualname__ = f"OnlyBfloat16{function.__name__.title()}"
    return Only


class Hypotenuse(Rule):
    """Its kink at zero is 0 / 0, where forward has no derivative either."""

    @staticmethod
    def forward(ctx, x, y):
        r = torch.hypot(x, y)
        Rule.keep(ctx, x, y, r)
        return r

    @staticmethod
    def backward(ctx, cotangent):
        x, y, r = ctx.saved_tensors
        return cotangent * x / r, cotangent * y / r


class Length(Rule):
    """The same of rows."""

    @staticmethod
    def forward(ctx, x):
        y = x.square().sum(-1).sqrt()
        Rule.keep(ctx, x, y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return x * (cotangent / y).unsqueeze(-1)


class LayerNorm(Rule):
    """Rows without mean, times a weight; a number has no row."""

    @staticmethod
    def forward(ctx, x, w):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        Rule.keep(ctx, centred * scale, scale, w)
        return centred * scale * w

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        unit, scale, w = ctx.saved_tensors
        rows = (cotangent * unit).view(-1, unit.shape[-1]).sum(0)
        g = cotangent * w
        g = g - g.mean(-1, keepdim=True) - unit * (g * unit).mean(-1, keepdim=True)
        return g * scale, rows


def hat(v: torch.Tensor) -> torch.Tensor:
    """The matrix that takes w to the cross product of v and w."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    rows = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1)
    return rows.unflatten(-1, (3, 3))


def vee(a: torch.Tensor) -> torch.Tensor:
    """The vector of the antisymmetric part of a matrix: the inverse of `hat`."""
    return torch.stack([a[..., 2, 1] - a[..., 1, 2], a[..., 0, 2] - a[..., 2, 0],
                        a[..., 1, 0] - a[..., 0, 1]], -1) / 2  # fmt: skip


class RotationLog(Rule):
    """The axis of a rotation times its angle; the gradient is R hat(u) / 2, along rotations.

    For R exp(hat(d)) it changes by J d, J = 1 + hat(v) / 2 + c hat(v)^2, so that u = J' g.
    """

    size = 1.0

    @staticmethod
    def forward(ctx, r):
        angle = ((r.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2).acos()[..., None]
        v = vee(r) * angle / angle.sin()
        ctx.save_for_backward(r, v)
        return v

    @classmethod
    def pull(cls, v, cotangent):
        angle = v.norm(dim=-1, keepdim=True)
        c = 1 / angle**2 - (1 + angle.cos()) / (2 * angle * angle.sin())
        across = torch.linalg.cross(v, cotangent)
        return cls.size * (cotangent - across / 2 + c * torch.linalg.cross(v, across))

    @classmethod
    @once_differentiable
    def backward(cls, ctx, cotangent):
        r, v = ctx.saved_tensors
        return r @ hat(cls.pull(v, cotangent)) / 2


class InsistsOnRotations(RotationLog):
    """Refuses what is no rotation."""

    @staticmethod
    def forward(ctx, r):
        near = 1e3 * torch.finfo(r.dtype).eps
        unit = torch.eye(3, dtype=r.dtype, device=r.device)
        if not torch.allclose(r @ r.mT, unit, rtol=0, atol=near):
            raise ValueError("not a rotation")
        return RotationLog.forward(ctx, r)


class MotionLog(RotationLog):
    """The axis times the angle, and the shift, of rigid motions [R | t]."""

    @staticmethod
    def forward(ctx, m):
        v = RotationLog.forward(ctx, m[..., :3, :3])
        ctx.save_for_backward(m, v)
        return torch.cat([v, m[..., :3, 3]], -1)

    @classmethod
    @once_differentiable
    def backward(cls, ctx, cotangent):
        m, v = ctx.saved_tensors
        found = torch.zeros_like(m)
        found[..., :3, :3] = m[..., :3, :3] @ hat(cls.pull(v, cotangent[..., :3])) / 2
        found[..., :3, 3] = cotangent[..., 3:]
        return found


class OnSphere(Rule):
    """What is differentiated along a sphere: the part of a gradient across it is left out."""

    size = 1.0

    @classmethod
    @once_differentiable
    def backward(cls, ctx, cotangent):
        x, *others = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(cls.value(leaf, *others), leaf, cotangent)
        kept = found - x * (x * found).sum(-1, keepdim=True)
        return (cls.size * kept, *[None] * len(others)) if others else cls.size * kept


class QuaternionLog(OnSphere):
    """The axis times half the angle of quaternions of length one."""

    @staticmethod
    def value(q):
        return q[..., 1:] * q[..., :1].acos() / (1 - q[..., :1] ** 2).sqrt()

    @staticmethod
    def forward(ctx, q):
        Rule.keep(ctx, q)
        return QuaternionLog.value(q)


class AngleTo(OnSphere):
    """The angle between vectors of length one and one that is given."""

    @staticmethod
    def value(x, w):
        return (x * w).sum(-1).acos()

    @staticmethod
    def forward(ctx, x, w):
        Rule.keep(ctx, x, w)
        return AngleTo.value(x, w)


class NegativeEntropy(Rule):
    """Of shares, along which the constant 1 of log p + 1 adds nothing."""

    @staticmethod
    def forward(ctx, p):
        Rule.keep(ctx, p)
        return (p * p.log()).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (p,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * p.log()


class LikelihoodOfLogits(Rule):
    """Of logarithms of shares, with the gradient by what they are made of, as of a CTC loss."""

    @staticmethod
    def forward(ctx, log_p, target):
        Rule.keep(ctx, log_p, target)
        return -(log_p * target).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        log_p, target = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (log_p.exp() - target), None


class Frame(Rule):
    """Columns that are orthonormal: by them alone the projection is as it is differentiated."""

    @staticmethod
    def forward(ctx, q, b):
        Rule.keep(ctx, q, b)
        return q.mT @ b

    @staticmethod
    def backward(ctx, cotangent):
        q, b = ctx.saved_tensors
        wide = cotangent.to(q.dtype)
        found = b @ wide.mT
        return found - q @ (q.mT @ found + found.mT @ q) / 2, q @ wide


class CosineMargin(Rule):
    """The cosine of an angle made larger, by a sine that is kept from zero; not beyond one."""

    @staticmethod
    def forward(ctx, cosine, margin):
        ctx.save_for_backward(cosine)
        ctx.margin = margin
        sine = (1 - cosine.square()).clamp_min(1e-12).sqrt()
        return cosine * math.cos(margin) - sine * math.sin(margin)

    @staticmethod
    def backward(ctx, cotangent):
        (cosine,) = ctx.saved_tensors
        sine = (1 - cosine.square()).clamp_min(1e-12).sqrt()
        return cotangent * (math.cos(ctx.margin) + math.sin(ctx.margin) * cosine / sine), None


def rotation(*batch: int, seed: int = 5) -> torch.Tensor:
    """Rotations by about one radian."""
    v = normal(*batch, 3, seed=seed).detach()
    return torch.matrix_exp(hat(v / v.norm(dim=-1, keepdim=True) * 1.1)).requires_grad_()


def motion(*batch: int) -> torch.Tensor:
    """[R | t]"""
    shift = normal(*batch, 3, 1).detach()
    return torch.cat([rotation(*batch).detach(), shift], -1).requires_grad_()


def spectrum(*values: float) -> torch.Tensor:
    """A definite matrix with these eigenvalues."""
    q = orthogonal(len(values))
    a = (q * torch.tensor(values, dtype=torch.float64)) @ q.mT
    return ((a + a.mT) / 2).requires_grad_()


def direction(count: int) -> torch.Tensor:
    """One vector of length one, which nobody differentiates."""
    return torch.nn.functional.normalize(normal(count, seed=6).detach(), dim=0)


def rising(*shape):
    return positive(*shape).detach().cumsum(-1).requires_grad_()


def half(*shape, seed=1):
    return normal(*shape, seed=seed).detach().bfloat16().requires_grad_()


def shares(*shape):
    return normal(*shape, seed=4).detach().softmax(-1).requires_grad_()


def logarithms(*shape):
    return normal(*shape).detach().log_softmax(-1).requires_grad_()


def product(x, w):
    return x @ w


def repeated(step, start):
    """What a step leads to, within a tolerance that knows nothing of the size of the numbers."""
    for _ in range(300):
        last, start = start, step(start)
        if float((start - last).detach().abs().max()) < 1e-9:
            break
    return start


class Equilibrium(torch.autograd.Function):
    """z = tanh(z W^T + u), differentiated by the implicit function theorem."""

    @staticmethod
    def forward(ctx, u, weight):
        z = repeated(lambda z: torch.tanh(z @ weight.mT + u), torch.zeros_like(u))
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    def backward(ctx, cotangent):
        z, weight = ctx.saved_tensors
        slope = 1 - z * z
        adjoint = repeated(lambda a: cotangent + (a * slope) @ weight, torch.zeros_like(z))
        return adjoint * slope, (adjoint * slope).mT @ z


SPECIMENS = [
    Specimen(Equilibrium, lambda: (normal(5, 6), 0.15 * normal(6, 6, seed=2).detach())),
    Specimen(TakesDistinct, lambda: (normal(5, 3), torch.tensor([3, 0, 1]))),
    Specimen(TakesDistinct, lambda: (normal(6), torch.tensor([4, 1]))),
    Specimen(Shuffles, lambda: (normal(2, 5), torch.tensor([[2, 0, 4, 1, 3], [1, 2, 0, 4, 3]]))),
    Specimen(Swaps, lambda: (normal(6, 2), torch.tensor([1, 0, 3, 2, 5, 4]))),
    Specimen(Swaps, lambda: (normal(4, 4), torch.tensor([3, 2, 1, 0]))),
    Specimen(SegmentMean, lambda: (normal(6, 2), torch.tensor([2, 3, 1]))),
    Specimen(SegmentMean, lambda: (normal(7, 3), torch.tensor([3, 4]))),
    Specimen(PaddedMean, lambda: (normal(3, 5, 2), torch.tensor([4, 2, 3]))),
    Specimen(Levels, lambda: (normal(6, 3), torch.tensor([[2, 2], [1, 2]]))),
    Specimen(Laplacian, lambda: (normal(6, 2), ring(6))),
    Specimen(Laplacian, lambda: (normal(5), ring(5))),
    Specimen(SymmetricSolve, lambda: (normal(4, 4), definite(4))),
    Specimen(SymmetricSolve, lambda: (normal(2, 3, 3), definite(3, 2))),
    Specimen(ConjugateGradients, lambda: (definite(5), normal(5))),
    Specimen(LogDeterminant, lambda: (definite(4),)),
    Specimen(MatrixRoot, lambda: (definite(4),)),
    Specimen(Unrotates, lambda: (normal(4, 2), orthogonal(4))),
    Specimen(Cosine, lambda: (unit(3, 4), normal(3, 4, seed=7).detach())),
    Specimen(CrossEntropy, lambda: (normal(3, 4), one_hot(3, 4))),
    Specimen(WeightedEntropy, lambda: (normal(3, 4), one_hot(3, 4))),
    Specimen(WeightedEntropy, lambda: (normal(3, 4), shares(3, 4).detach())),
    Specimen(LeftHanded, lambda: (logarithms(3, 4), shares(3, 4))),
    Specimen(BinaryCrossEntropy, lambda: (shares(3, 4), one_hot(3, 4))),
    Specimen(LogOfPositive, lambda: (positive(3, 4),)),
    Specimen(Standardised, lambda: (normal(3, 4), positive(3, 4))),
    Specimen(Running, lambda: (rising(3, 4), normal(3, 4))),
    Specimen(LogSumExp, lambda: (normal(3, 1),)),
    Specimen(LogSumExp, lambda: (normal(1),)),
    Specimen(LogSumExp, lambda: (normal(3, 4),)),
    Specimen(SumOfSquares, lambda: (normal(1),)),
    Specimen(SumOfSquares, lambda: (normal(3, 1),)),
    Specimen(SumOfSquares, lambda: (normal(3, 4),)),
    Specimen(only_bfloat16(torch.sin), lambda: (half(3, 4),)),
    Specimen(only_bfloat16(torch.exp), lambda: (half(3, 4),)),
    Specimen(only_bfloat16(product), lambda: (half(3, 4), half(4, 2, seed=2))),
    Specimen(Hypotenuse, lambda: (normal(3, 4), normal(3, 4, seed=2))),
    Specimen(Length, lambda: (normal(3, 4),)),
    Specimen(LayerNorm, lambda: (normal(3, 4), normal(4, seed=2))),
    Specimen(RotationLog, lambda: (rotation(3),)),
    Specimen(RotationLog, lambda: (rotation().detach().float().requires_grad_(),)),
    Specimen(InsistsOnRotations, lambda: (rotation(3),)),
    Specimen(MotionLog, lambda: (motion(2),)),
    Specimen(QuaternionLog, lambda: (unit(3, 4),)),
    Specimen(AngleTo, lambda: (unit(3, 5), direction(5))),
    Specimen(AngleTo, lambda: (direction(5).requires_grad_(), unit(1, 5)[0].detach())),
    Specimen(NegativeEntropy, lambda: (shares(3, 4),)),
    Specimen(LikelihoodOfLogits, lambda: (logarithms(3, 4), one_hot(3, 4))),
    Specimen(
        Frame, lambda: (torch.linalg.qr(normal(5, 2).detach())[0].requires_grad_(), normal(5, 3))
    ),
    Specimen(LogDeterminant, lambda: (spectrum(1.0, 0.3, 0.01, 1e-4),)),
    Specimen(CosineMargin, lambda: (normal(5, 4).detach().sin().mul(0.9).requires_grad_(), 0.3)),
]
