"""Right Functions that are easily wronged: they refuse neighbours, solve roughly, save in vain."""

import torch
from tests.specimens._specimen import Specimen, normal
from torch.autograd.function import once_differentiable


class ValidatedRows(torch.autograd.Function):
    """Entropy of distributions; anything that does not sum to one is refused."""

    @staticmethod
    def forward(ctx, p):
        if not torch.allclose(p.sum(-1), torch.ones_like(p.sum(-1)), atol=1e-5) or (p < 0).any():
            raise ValueError("rows must be distributions")
        ctx.save_for_backward(p)
        return -(p * p.log()).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (p,) = ctx.saved_tensors
        return -(p.log() + 1) * cotangent.unsqueeze(-1)


class ValidatedOnce(torch.autograd.Function):
    """Takes the numbers 1, 2 and 3 alone."""

    @staticmethod
    def forward(ctx, x):
        if not torch.isin(x, torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)).all():
            raise ValueError("1, 2 or 3")
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


class ValidatedRotation(torch.autograd.Function):
    """The product of two rotations; what is no rotation is refused."""

    @staticmethod
    def forward(ctx, a, b):
        for r in (a, b):
            eye = torch.eye(r.shape[-1], dtype=r.dtype)
            if not torch.allclose(r @ r.mT, eye, atol=1e-3):
                raise AssertionError("not a rotation")
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        cotangent = cotangent.to(a.dtype)
        return cotangent @ b.mT, a.mT @ cotangent


class PositivePart(torch.autograd.Function):
    """Masked selection: the shape of the output depends on the numbers."""

    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x[mask]

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        return torch.zeros(mask.shape, dtype=cotangent.dtype).masked_scatter(mask, cotangent)


def conjugate_gradients(matrix, right, tolerance=1e-7):
    x = torch.zeros_like(right)
    residual = right - matrix @ x
    direction, size = residual, residual.dot(residual)
    for _ in range(10 * len(right)):
        if size.sqrt() <= tolerance * right.norm():
            break
        moved = matrix @ direction
        step = size / direction.dot(moved)
        x, residual = x + step * direction, residual - step * moved
        fresh = residual.dot(residual)
        direction, size = residual + fresh / size * direction, fresh
    return x


class SolveRoughly(torch.autograd.Function):
    """A x = b by conjugate gradients to 1e-7, and so in backward."""

    @staticmethod
    def forward(ctx, matrix, right):
        ctx.save_for_backward(matrix)
        return conjugate_gradients(matrix, right)

    @staticmethod
    def backward(ctx, cotangent):
        (matrix,) = ctx.saved_tensors
        return None, conjugate_gradients(matrix, cotangent)


class ReadsWhenNeeded(torch.autograd.Function):
    """Reads what it saved only for the input that asks."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x + w.detach() * 0 + x.detach() * 0

    @staticmethod
    def backward(ctx, cotangent):
        if ctx.needs_input_grad[1]:
            (w,) = ctx.saved_tensors
            return cotangent, torch.zeros_like(w)
        return cotangent, None


class SavesInVain(torch.autograd.Function):
    """A surrogate that saves its input and never reads it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class NullSpace(torch.autograd.Function):
    """An orthonormal basis of the null space: right up to a rotation of the basis."""

    @staticmethod
    def forward(ctx, a):
        rows = a.shape[0]
        _, _, vh = torch.linalg.svd(a, full_matrices=True)
        basis = vh[rows:].mT.contiguous()
        ctx.save_for_backward(a, basis)
        return basis

    @staticmethod
    def backward(ctx, cotangent):
        # d(basis) = -pinv(A) dA basis, up to basis times a skew matrix, which no loss may see.
        a, basis = ctx.saved_tensors
        return -torch.linalg.pinv(a).mT @ cotangent @ basis.mT


class LeastVectors(torch.autograd.Function):
    """The two right singular vectors of the smallest singular values: a basis of their span, which
    is everything where there are two. After kornia's five-point solver."""

    @staticmethod
    def forward(ctx, a):
        _, values, vh = torch.linalg.svd(a)
        vectors = vh.mT.contiguous()
        squares = values.new_zeros(a.shape[-1])
        squares[: len(values)] = values.square()
        ctx.save_for_backward(a, squares, vectors)
        return vectors[:, -2:].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        a, squares, vectors = ctx.saved_tensors
        others, kept = vectors[:, :-2], vectors[:, -2:]
        gaps = squares[-2:] - squares[:-2, None]
        turned = others @ (others.mT @ cotangent / gaps) @ kept.mT
        return a @ (turned + turned.mT)


class NullRows(torch.autograd.Function):
    """The same basis as rows, as `torch.linalg.svd` has it."""

    @staticmethod
    def forward(ctx, a):
        basis = torch.linalg.svd(a, full_matrices=True)[2][a.shape[0] :].contiguous()
        ctx.save_for_backward(a, basis)
        return basis

    @staticmethod
    def backward(ctx, cotangent):
        a, basis = ctx.saved_tensors
        return -torch.linalg.pinv(a).mT @ cotangent.mT @ basis


class FirstEigenvector(torch.autograd.Function):
    """One eigenvector, right up to its sign, which another size of the matrix may turn."""

    @staticmethod
    def forward(ctx, a):
        levels, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(levels, vectors)
        return vectors[:, 0].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        levels, vectors = ctx.saved_tensors
        gaps = levels[0] - levels
        inverse = torch.where(gaps == 0, 0, 1 / torch.where(gaps == 0, 1, gaps))
        moved = vectors @ (inverse * (vectors.mT @ cotangent))
        gradient = torch.outer(moved, vectors[:, 0])
        return (gradient + gradient.mT) / 2


class Levels(torch.autograd.Function):
    """Outputs are whole numbers that bfloat16 does not hold."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return (x * count).round()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.count, None


class GatherRows(torch.autograd.Function):
    """Rows by index: without rows there is nothing to gather."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x[index] if len(x) else x.new_zeros(len(index), *x.shape[1:])

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        return cotangent.new_zeros(ctx.shape).index_add(0, index, cotangent), None


def distributions():
    return (normal(3, 4).detach().softmax(-1).requires_grad_(),)


def rotations():
    return tuple(
        torch.linalg.matrix_exp(s - s.mT).requires_grad_()
        for s in (normal(3, 3, seed=k).detach() for k in (1, 2))
    )


def system():
    x = normal(12, 12).detach()
    return x @ x.mT + 12 * torch.eye(12, dtype=x.dtype), normal(12, seed=2)


class NonZero(torch.autograd.Function):
    """How many entries it returns depends on their values."""

    @staticmethod
    def forward(ctx, x):
        index = x.nonzero()[:, 0]
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.count = len(x)
        return x[index], index

    @staticmethod
    def backward(ctx, cotangent, _):
        (index,) = ctx.saved_tensors
        return cotangent.new_zeros(ctx.count).index_put((index,), cotangent)


class LargerThanMean(torch.autograd.Function):
    """The entries above the mean: a small step lets one in, or out."""

    @staticmethod
    def forward(ctx, x):
        mask = x.abs() > x.abs().mean()
        ctx.save_for_backward(mask)
        return x[mask]

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        gradient = cotangent.new_zeros(mask.shape)
        gradient[mask] = cotangent
        return gradient


def symmetric(count):
    x = normal(count, count).detach()
    return (x + x.mT).requires_grad_()


class FillsWhatItAllocates(torch.autograd.Function):
    """What is allocated is written in parts, forward and backward; NaN stays where x is NaN."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        half = len(x) // 2
        y[:half], y[half:] = x[:half].sin(), x[half:].sin()
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = torch.empty_like(x)
        return torch.mul(x.cos(), cotangent, out=gradient)


class RefusesDeterminism(torch.autograd.Function):
    """As a kernel that adds in any order does."""

    @staticmethod
    def forward(ctx, x):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("no deterministic implementation")
        ctx.save_for_backward(x)
        return torch.where(x > 0, x.square(), x * 3)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * torch.where(x > 0, 2 * x, torch.full_like(x, 3))


class NearestRow(torch.autograd.Function):
    """A row of a table, passed straight through: its numbers of float32 were never computed."""

    @staticmethod
    def forward(ctx, x, table):
        return table[torch.cdist(x, table).argmin(-1)]

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None


def table():
    return normal(6, 4, dtype=torch.float32), normal(5, 4, seed=2, dtype=torch.float32).detach()


class Ranked(torch.autograd.Function):
    """Gives places beside numbers, and marks these."""

    @staticmethod
    def forward(ctx, x):
        found, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return found, places

    @staticmethod
    def backward(ctx, cotangent, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(cotangent).scatter(-1, places, cotangent)


class HandsOnTheNumbers(torch.autograd.Function):
    """What a Function within has marked, it does not return."""

    @staticmethod
    def forward(ctx, x):
        found, places = Ranked.apply(x)
        ctx.save_for_backward(places)
        return found.clone()

    @staticmethod
    def backward(ctx, cotangent):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(cotangent).scatter(-1, places, cotangent)


SPECIMENS = [
    Specimen(HandsOnTheNumbers, lambda: (normal(3, 4),)),
    Specimen(NearestRow, table),
    Specimen(RefusesDeterminism, lambda: (normal(5, 3),)),
    Specimen(FillsWhatItAllocates, lambda: (normal(5, 3),)),
    Specimen(ValidatedRows, distributions),
    Specimen(ValidatedOnce, lambda: (torch.tensor([1.0, 3.0, 2.0]).double().requires_grad_(),)),
    Specimen(ValidatedRotation, rotations),
    Specimen(PositivePart, lambda: (normal(6),)),
    Specimen(PositivePart, lambda: (normal(40, 3),)),
    Specimen(SolveRoughly, system),
    Specimen(ReadsWhenNeeded, lambda: (normal(3), normal(3, seed=2))),
    Specimen(ReadsWhenNeeded, lambda: (normal(3), normal(3, seed=2).detach())),
    Specimen(SavesInVain, lambda: (normal(7),)),
    Specimen(NullSpace, lambda: (normal(2, 5),)),
    Specimen(LeastVectors, lambda: (normal(3, 5),)),
    Specimen(NullRows, lambda: (normal(2, 5),)),
    Specimen(FirstEigenvector, lambda: (symmetric(4),)),
    Specimen(Levels, lambda: (normal(20), 1000)),
    Specimen(NonZero, lambda: (torch.tensor([1.0, 0, 2, 0, 3]).double().requires_grad_(),)),
    Specimen(LargerThanMean, lambda: (normal(30),)),
    Specimen(GatherRows, lambda: (normal(4, 2), torch.tensor([0, 3, 3]))),
]
