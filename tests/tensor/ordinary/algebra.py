"""Products, solves and factors."""

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
linalg = torch.linalg
A = t([2.0, 0.4, -0.3], [0.1, 1.5, 0.7], [-0.5, 0.2, 1.1])
SPD = t([2.0, 0.4, -0.3], [0.4, 1.5, 0.2], [-0.3, 0.2, 1.1])
B = t([0.3, -0.7], [1.6, 0.2], [0.9, -0.4])
X = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
V = t(0.3, -0.7, 1.6)


@function("matrix product", torch.matmul, {"ordinary": (X, B), "zeros": (0 * X, B)})
class MatMul(F):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.T, a.T @ g


@function(
    "linear with bias", nn.linear, {"ordinary": (X, A[:2], V[:2]), "zeros": (X, 0 * A[:2], V[:2])}
)
class LinearFunction(F):
    @staticmethod
    def forward(x, weight, bias):
        output = x.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


@function("linear without bias", lambda x, w, b: x @ w.T, (X, A[:2], None))
class LinearNoBias(LinearFunction):
    pass


@function("batched product", torch.bmm, (torch.stack([A, SPD])[:, :2], torch.stack([B, B.cos()])))
class BMM(F):
    @staticmethod
    def forward(ctx, a, b):
        ctx.a, ctx.b = a, b
        return torch.bmm(a, b)

    @staticmethod
    def backward(ctx, g):
        return g.bmm(ctx.b.transpose(1, 2)), ctx.a.transpose(1, 2).bmm(g)


@function("bilinear", lambda x, w, y: (x @ w * y).sum(-1), (X, A, X.cos()), plain=False)
class Bilinear(F):
    @staticmethod
    def forward(ctx, x, w, y):
        xw = x @ w
        ctx.save_for_backward(x, w, y, xw)
        return (xw * y).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, w, y, xw = ctx.saved_tensors
        g = g.unsqueeze(-1)
        return g * (y @ w.T), x.T @ (g * y), g * xw


@function("outer product", torch.outer, {"ordinary": (V, V.cos()), "zeros": (0 * V, V)})
class Outer(F):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a[:, None] * b[None, :]

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g.mv(b), g.t().mv(a)


@function(
    "quadratic form", lambda x, a: x @ a @ x, {"ordinary": (V, A), "zeros": (0 * V, A)}, plain=False
)
class Quadratic(F):
    @staticmethod
    def forward(ctx, x, a):
        ax = a @ x
        ctx.save_for_backward(x, ax, a.T @ x)
        return x @ ax

    @staticmethod
    def backward(ctx, g):
        x, ax, atx = ctx.saved_tensors
        return g * (ax + atx), g * torch.outer(x, x)


@function("solve", linalg.solve, (A, B))
class Solve(F):
    @staticmethod
    def forward(ctx, a, b):
        x = linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        by_b = linalg.solve(a.T, g)
        return -by_b @ x.T, by_b


@function("solve that keeps its factors", linalg.solve, (A, B), plain=False)
class SolveLU(F):
    @staticmethod
    def forward(ctx, a, b):
        lu, pivots = linalg.lu_factor(a)
        x = linalg.lu_solve(lu, pivots, b)
        ctx.save_for_backward(lu, pivots, x)
        return x

    @staticmethod
    def backward(ctx, g):
        lu, pivots, x = ctx.saved_tensors
        by_b = linalg.lu_solve(lu, pivots, g, adjoint=True)
        return -by_b @ x.T, by_b


@function("cholesky", linalg.cholesky, (SPD,))
class Cholesky(F):
    @staticmethod
    def forward(ctx, a):
        factor = linalg.cholesky(a)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        inner = (factor.T @ g).tril()
        inner = inner - torch.diag(inner.diagonal()) / 2
        s = linalg.solve_triangular(factor.T, inner, upper=True)
        s = linalg.solve_triangular(factor, s, upper=False, left=False)
        return (s + s.T) / 2


@function(
    "eigenvalues of a symmetric matrix",
    lambda a: linalg.eigvalsh((a + a.T) / 2),
    (SPD,),
    plain=False,
)
class Eigvalsh(F):
    @staticmethod
    def forward(ctx, a):
        values, vectors = linalg.eigh((a + a.T) / 2)
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    def backward(ctx, g):
        (vectors,) = ctx.saved_tensors
        return vectors @ torch.diag_embed(g) @ vectors.mT


def _root(a):
    values, vectors = linalg.eigh((a + a.T) / 2)
    return (vectors * values.sqrt()) @ vectors.T


@function("square root of a symmetric matrix", _root, (SPD,), plain=False)
class MatrixRoot(F):
    @staticmethod
    def forward(ctx, a):
        values, vectors = linalg.eigh((a + a.T) / 2)
        roots = values.sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors * roots) @ vectors.T

    @staticmethod
    def backward(ctx, g):
        roots, vectors = ctx.saved_tensors
        inner = vectors.T @ g @ vectors / (roots[:, None] + roots[None, :])
        by = vectors @ inner @ vectors.T
        return (by + by.T) / 2


@function("inverse", torch.inverse, (A,))
class Inverse(F):
    @staticmethod
    def forward(ctx, a):
        inverse = torch.inverse(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return -inverse.T @ g @ inverse.T


@function("log determinant", torch.logdet, (A,), plain=False)
class LogDet(F):
    @staticmethod
    def forward(ctx, a):
        ctx.inverse = torch.inverse(a)
        return linalg.slogdet(a).logabsdet

    @staticmethod
    def backward(ctx, g):
        return g * ctx.inverse.T


@function("determinant", linalg.det, (A,))
class Det(F):
    @staticmethod
    def forward(a):
        return linalg.det(a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        a, det = ctx.saved_tensors
        return g * det * torch.inverse(a).T


@function(
    "triangular solve", lambda a, b: linalg.solve_triangular(a.tril(), b, upper=False), (A, B)
)
class TriangularSolve(F):
    @staticmethod
    def forward(ctx, a, b):
        x = linalg.solve_triangular(a.tril(), b, upper=False)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        by_b = linalg.solve_triangular(a.tril().T, g, upper=True)
        return (-by_b @ x.T).tril(), by_b


@function("exponential of a matrix", torch.matrix_exp, (0.3 * A,))
class MatrixExp(F):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.matrix_exp(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        zero = torch.zeros_like(a)
        block = torch.cat([torch.cat([a.T, g], 1), torch.cat([zero, a.T], 1)])
        return torch.matrix_exp(block)[: len(a), len(a) :]


@function("distances", lambda x, y: (x[:, None] - y[None]).norm(dim=-1), (X, X.cos()))
class Distances(F):
    @staticmethod
    def forward(ctx, x, y):
        d = (x[:, None] - y[None]).square().sum(-1).sqrt()
        ctx.save_for_backward(x, y, d)
        return d

    @staticmethod
    def backward(ctx, g):
        x, y, d = ctx.saved_tensors
        by = (g / d).unsqueeze(-1) * (x[:, None] - y[None])
        return by.sum(1), -by.sum(0)


def _attention(q, k, v):
    return (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v


@function(
    "attention",
    _attention,
    {"ordinary": (X, X.cos(), B[:2]), "zeros": (0 * X, X, B[:2])},
    plain=False,
)
class Attention(F):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.scale = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.T * ctx.scale, -1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        by_p = g @ v.T
        by_s = p * (by_p - (by_p * p).sum(-1, keepdim=True)) * ctx.scale
        return by_s @ k, by_s.T @ q, p.T @ g


@function(
    "attention that recomputes",
    _attention,
    {"ordinary": (X, X.cos(), B[:2]), "zeros": (0 * X, X, B[:2])},
    plain=False,
)
class FlashAttention(F):
    """Keeps the logarithm of the sums and the output."""

    @staticmethod
    def forward(ctx, q, k, v):
        s = q @ k.T / q.shape[-1] ** 0.5
        log = s.logsumexp(-1)
        out = (s - log[:, None]).exp() @ v
        ctx.save_for_backward(q, k, v, out, log)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, log = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        p = (q @ k.T * scale - log[:, None]).exp()
        by_s = p * (g @ v.T - (g * out).sum(-1, keepdim=True)) * scale
        return by_s @ k, by_s.T @ q, p.T @ g
