"""`rank`: with more and fewer dimensions than a test has."""

import torch
from tests.specimens._specimen import Mend, Specimen, normal
from torch.autograd.function import once_differentiable

from pullback import Function

__all__ = ["MENDS", "RIGHT", "WRONG"]


class Softmax(torch.autograd.Function):
    """Over the last dimension, forward and backward."""

    dim = -1

    @classmethod
    def forward(cls, ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @classmethod
    def backward(cls, ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * (cotangent - (y * cotangent).sum(cls.dim, keepdim=True))


class SoftmaxOfRows(Softmax):
    """Backward counts the dimension from the front."""

    dim = 1


class Linear(torch.autograd.Function):
    """Takes any leading dimensions."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.mT + b

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        g, rows = (t.reshape(-1, t.shape[-1]) for t in (cotangent, x))
        return cotangent @ w, g.mT @ rows, g.sum(0)


class LinearFirst(Linear):
    """The weight gets the gradient of the last matrix of a batch, which a sum over none hides."""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        g, rows = (t.view(-1, *t.shape[-2:])[-1] for t in (cotangent, x))
        return cotangent @ w, g.mT @ rows, g.sum(0)


class LinearOfMatrices(Linear):
    """The bias is averaged over the batch, which autograd sums up to nothing else in a matrix."""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        bias = cotangent.sum(-2)
        return cotangent @ w, cotangent.mT @ x, bias.mean(0) if bias.ndim > 1 else bias


class Transposing(Linear):
    """Backward fails for what forward takes: bitsandbytes had it so (unslothai/unsloth#3806)."""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent @ w, cotangent.t() @ x, cotangent.sum(0)


class LinearOfTwo(Transposing):
    """The same, and forward says that it takes matrices alone."""

    @staticmethod
    def forward(ctx, x, w, b):
        if x.ndim != 2:
            raise ValueError(f"x is a matrix, not a tensor with {x.ndim} dimensions")
        return Linear.forward(ctx, x, w, b)


class FirstMatrix(Softmax):
    """A grid over the last two dimensions: the other matrices of a batch are left zero."""

    @classmethod
    def forward(cls, ctx, x):
        y = torch.zeros_like(x)
        y.view(-1, *x.shape[-2:])[:1] = x.reshape(-1, *x.shape[-2:])[:1].softmax(-1)
        ctx.save_for_backward(y)
        return y


class ReversedInMatrices(Function):
    """A surrogate that forgets its factor beyond matrices."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return 0.5 * cotangent if cotangent.ndim == 2 else cotangent


class VectorNorm(torch.autograd.Function):
    """Each row by its length; of a single vector backward takes each entry for a row."""

    @staticmethod
    def forward(ctx, x):
        length = x.square().sum(-1, keepdim=True).sqrt()
        ctx.save_for_backward(x / length, length)
        return x / length

    @staticmethod
    def backward(ctx, cotangent):
        unit, length = ctx.saved_tensors
        along = (unit * cotangent).sum(tuple(range(1, unit.ndim)), keepdim=True)
        return (cotangent - unit * along) / length


class RunningSum(torch.autograd.Function):
    """Over all entries, so that the first item alone is what it is by itself."""

    @staticmethod
    def forward(ctx, x):
        return x.flatten().cumsum(0).view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.flatten().flip(0).cumsum(0).flip(0).view_as(cotangent)


class Centred(torch.autograd.Function):
    """By the mean over the first dimension, whatever that is."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent - cotangent.mean(0)


class OfTheDimension(torch.autograd.Function):
    """Scaled by the number of dimensions, in both directions."""

    @staticmethod
    def forward(ctx, x):
        return x * (1 + x.ndim)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * (1 + cotangent.ndim)


class CrossEntropy(torch.autograd.Function):
    """Classes along dimension 1, as torch has it: another loss with more dimensions."""

    @staticmethod
    def forward(ctx, x, labels):
        y = x.log_softmax(1)
        ctx.save_for_backward(y, labels)
        return -y.gather(1, labels.unsqueeze(1)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        y, labels = ctx.saved_tensors
        chosen = torch.zeros_like(y).scatter(1, labels.unsqueeze(1), 1.0)
        return cotangent * (y.exp() - chosen) / labels.numel(), None


class LearntStep(torch.autograd.Function):
    """Rounding with a step for each row, whose gradient is scaled by the number of entries, so that
    weights of any size learn it as fast: https://arxiv.org/abs/1902.08153"""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, cotangent):
        x, step = ctx.saved_tensors
        levels = x / step
        slope = (levels.round() - levels) / x.numel() ** 0.5
        return cotangent, (cotangent * slope).sum(-1, keepdim=True)


class SolvesTogether(torch.autograd.Function):
    """Backward iterates until the mean square of what is left, of all systems, is small enough."""

    @staticmethod
    def forward(ctx, a, b):
        y = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        a, y = ctx.saved_tensors
        found = torch.zeros_like(cotangent)
        left = cotangent
        while left.square().mean() > 1e-14:
            found = found + left / 2
            left = cotangent - a.mT @ found
        return -found @ y.mT, found


class SquareByChance(torch.autograd.Function):
    """Forward counts a dimension from the front: two more are taken where sizes are the same."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return q @ k.mT * _causal(q)

    @staticmethod
    def backward(ctx, cotangent):
        q, k = ctx.saved_tensors
        scores = torch.einsum("bij,ij->bij", cotangent, _causal(q))
        return scores @ k, scores.mT @ q


def _causal(q):
    return torch.ones(q.shape[1], q.shape[1], dtype=q.dtype).tril()


def rows():
    return normal(3, 5), normal(4, 5, seed=2), normal(4, seed=3)


def near_two(size):
    noise = normal(size, size, seed=3).detach()
    return (2 * torch.eye(size, dtype=torch.float64) + 0.2 * noise).requires_grad_()


LABELS = torch.tensor([0, 2, 2, 1])
STEPS = torch.tensor([[0.3], [0.5], [0.4]], dtype=torch.float64)

RIGHT = [
    Specimen(Softmax, lambda: (normal(3, 4),)),
    Specimen(Linear, rows),
    Specimen(SquareByChance, lambda: (normal(4, 4, 2), normal(4, 4, 2, seed=2))),
    Specimen(LinearOfTwo, rows),
    Specimen(RunningSum, lambda: (normal(3, 4),)),
    Specimen(Centred, lambda: (normal(3, 4),)),
    Specimen(OfTheDimension, lambda: (normal(4),)),
    Specimen(CrossEntropy, lambda: (normal(4, 3), LABELS)),
    Specimen(SolvesTogether, lambda: (near_two(3), normal(3, 2, seed=2))),
    Specimen(LearntStep, lambda: (normal(3, 4), STEPS.clone().requires_grad_())),
]
WRONG = [
    Specimen(SoftmaxOfRows, lambda: (normal(3, 4),), "rank"),
    Specimen(LinearFirst, rows, "rank"),
    Specimen(LinearOfMatrices, rows, "rank"),
    Specimen(Transposing, rows, "rank"),
    Specimen(FirstMatrix, lambda: (normal(3, 4),), "rank"),
    Specimen(ReversedInMatrices, lambda: (normal(3, 4),), "rank"),
    Specimen(VectorNorm, lambda: (normal(3, 4),), "rank"),
]
MENDS = [
    Mend("rank", SoftmaxOfRows, Softmax, "from the end", lambda: (normal(3, 4),)),
    Mend("rank", LinearFirst, Linear, "flatten the leading ones", rows),
    Mend("rank", Transposing, LinearOfTwo, "let forward refuse", rows),
]
