"""Gathers, scatters, choices, sparse products, pooling and convolutions."""

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
X = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
TIES = t([1.0, 1.0, 1.0], [0.0, 0.0, 2.0])
V = t(0.3, -0.7, 1.6, -0.2)
AT = {"ordinary": (X,), "ties": (TIES,)}
INDEX = torch.tensor([[2, 0], [1, 1]])


@function("gather", lambda x, i: x.gather(1, i), {"ordinary": (X, INDEX), "zeros": (0 * X, INDEX)})
class Gather(F):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return torch.gather(x, 1, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(1, index, g), None


@function(
    "scatter with addition",
    lambda x, i: x.new_zeros(4).index_add(0, i, x),
    (V, torch.tensor([0, 2, 2, 1])),
)
class ScatterAdd(F):
    @staticmethod
    def forward(ctx, x, index):
        ctx.index = index
        out = torch.zeros(4, dtype=x.dtype)
        return out.scatter_add_(0, index, x)

    @staticmethod
    def backward(ctx, g):
        return g[ctx.index], None


@function("embedding", lambda i, w: nn.embedding(i, w, padding_idx=0), (torch.tensor([1, 0, 1]), X))
class Embedding(F):
    @staticmethod
    def forward(ctx, ids, weight, padding=0):
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding = weight.shape[0], padding
        return weight[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        g = g * (ids != ctx.padding).unsqueeze(-1)
        by_weight = torch.zeros(ctx.rows, g.shape[-1], dtype=g.dtype, device=g.device)
        return None, by_weight.index_add(0, ids, g), None


ROW, COLUMN = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 2, 1, 0])
DENSE = t([0.3, -0.7], [1.6, 0.2], [0.9, -0.4])


def _sparse(row, column, values, b):
    return values.new_zeros(3, 3).index_put((row, column), values) @ b


@function("sparse times dense", _sparse, (ROW, COLUMN, V, DENSE))
class SparseDense(F):
    @staticmethod
    def forward(ctx, row, column, values, b):
        ctx.save_for_backward(row, column, values, b)
        return torch.zeros(3, b.shape[1], dtype=b.dtype).index_add(
            0, row, values[:, None] * b[column]
        )

    @staticmethod
    def backward(ctx, g):
        row, column, values, b = ctx.saved_tensors
        by_values = (g[row] * b[column]).sum(-1)
        by_b = torch.zeros_like(b).index_add(0, column, values[:, None] * g[row])
        return None, None, by_values, by_b


@function("special sparse product", _sparse, (ROW, COLUMN, V, DENSE), plain=False)
class SpecialSpmm(F):
    @staticmethod
    def forward(ctx, row, column, values, b):
        a = torch.sparse_coo_tensor(
            torch.stack([row, column]), values, (3, 3), check_invariants=False
        )
        ctx.save_for_backward(a, b)
        return torch.sparse.mm(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        indices = a._indices()
        by_values = (g @ b.T)[indices[0], indices[1]] if ctx.needs_input_grad[2] else None
        by_b = a.t().matmul(g) if ctx.needs_input_grad[3] else None
        return None, None, by_values, by_b


@function("largest of each row", lambda x: x.max(-1).values, AT, plain=False)
class Largest(F):
    @staticmethod
    def forward(ctx, x):
        value, index = x.max(-1, keepdim=True)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return value.squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter(-1, index, g.unsqueeze(-1))


@function("largest and where it is", lambda x: torch.max(x, -1), AT, outputs=(0,))
class LargestAndWhere(F):
    @staticmethod
    def forward(ctx, x):
        value, index = x.max(-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(x, index)
        return value, index

    @staticmethod
    def backward(ctx, g, _):
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).scatter_(-1, index.unsqueeze(-1), g.unsqueeze(-1))


@function("sort", lambda x: x.sort(dim=-1, stable=True).values, AT, plain=False)
class Sort(F):
    @staticmethod
    def forward(ctx, x):
        y, ctx.order = x.sort(dim=-1, stable=True)
        return y

    @staticmethod
    def backward(ctx, g):
        return torch.empty_like(g).scatter(-1, ctx.order, g)


@function("k largest", lambda x: x.topk(2, -1).values, AT, plain=False)
class TopK(F):
    @staticmethod
    def forward(ctx, x, k=2):
        values, index = torch.topk(x, k, -1)
        ctx.save_for_backward(index)
        ctx.n = x.shape[-1]
        return values

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return nn.one_hot(index, ctx.n).to(g).mul(g.unsqueeze(-1)).sum(-2), None


@function("mask and fill", lambda x, m: x.masked_fill(m, 0.5), (X, X > 0.2))
class MaskedFill(F):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.mask = mask
        out = x.clone()
        out[mask] = 0.5
        return out

    @staticmethod
    def backward(ctx, g):
        return g * ~ctx.mask, None


@function(
    "choice by values",
    lambda a, b: torch.where(a > b, a * b, a + b),
    {"ordinary": (X, X.cos()), "ties": (TIES, TIES)},
    plain=False,
)
class Choice(F):
    @staticmethod
    def forward(ctx, a, b):
        more = a > b
        ctx.save_for_backward(a, b, more)
        return torch.where(more, a * b, a + b)

    @staticmethod
    def backward(ctx, g):
        a, b, more = ctx.saved_tensors
        return torch.where(more, g * b, g), torch.where(more, g * a, g)


@function("roll", lambda x: x.roll(1, -1), (X,))
class Roll(F):
    @staticmethod
    def forward(ctx, x, by=1):
        ctx.by = by
        return torch.roll(x, by, -1)

    @staticmethod
    def backward(ctx, g):
        return torch.roll(g, -ctx.by, -1), None


@function(
    "segment sums",
    lambda x, i: x.new_zeros(2, 3).index_add(0, i, x.square()),
    (X, torch.tensor([1, 1])),
)
class Segments(F):
    @staticmethod
    def forward(x, index):
        return torch.zeros(2, 3, dtype=x.dtype).index_add(0, index, x * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, index = ctx.saved_tensors
        return 2 * x * g.index_select(0, index), None


IMAGE = t([[[0.3, -0.7, 1.6, 0.2], [0.2, 0.9, -0.4, 0.8]]]).reshape(1, 2, 4)


@function(
    "maximum pooling",
    lambda x: nn.max_pool1d(x, 2),
    {"ordinary": (IMAGE,), "ties": (torch.ones_like(IMAGE),)},
    plain=False,
)
class MaxPool(F):
    @staticmethod
    def forward(ctx, x):
        y, index = nn.max_pool1d(x, 2, return_indices=True)
        ctx.save_for_backward(index)
        ctx.size = x.shape[-1]
        return y

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(*g.shape[:-1], ctx.size).scatter_add(-1, index, g)


@function("mean pooling", lambda x: nn.avg_pool1d(x, 2), (IMAGE,))
class MeanPool(F):
    @staticmethod
    def forward(ctx, x, size=2):
        ctx.size = size
        return x.unfold(-1, size, size).mean(-1)

    @staticmethod
    def backward(ctx, g):
        return g.repeat_interleave(ctx.size, -1) / ctx.size, None


KERNEL = t([[0.5, -0.2], [0.1, 0.4]], [[-0.3, 0.6], [0.2, 0.7]])


@function("convolution", nn.conv1d, {"ordinary": (IMAGE, KERNEL), "zeros": (0 * IMAGE, KERNEL)})
class Conv(F):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return nn.conv1d(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        by_x = nn.conv_transpose1d(g, weight)
        by_weight = torch.nn.grad.conv1d_weight(x, weight.shape, g)
        return by_x, by_weight


@function("convolution of unfolded columns", nn.conv1d, (IMAGE, KERNEL), plain=False)
class Im2Col(F):
    @staticmethod
    def forward(ctx, x, weight):
        columns = x.unfold(2, weight.shape[2], 1)  # (batch, in, out length, kernel)
        ctx.save_for_backward(columns, weight)
        ctx.shape = x.shape
        return torch.einsum("bilk,oik->bol", columns, weight)

    @staticmethod
    def backward(ctx, g):
        columns, weight = ctx.saved_tensors
        by_weight = torch.einsum("bilk,bol->oik", columns, g)
        spread = torch.einsum("bol,oik->bilk", g, weight)
        by_x = g.new_zeros(ctx.shape)
        for k in range(weight.shape[2]):
            by_x = by_x + nn.pad(spread[..., k], (k, weight.shape[2] - 1 - k))
        return by_x, by_weight
