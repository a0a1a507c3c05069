"""The same numbers at other places, what is added for written, and what a mask leaves out."""

import re

import pytest
import torch

from pullback.conformance import check

generator = torch.Generator().manual_seed(11)


def drawn(*shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


class Repeats(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.repeat_interleave(k, 0)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.k, -1, g.shape[-1]).sum(0), None  # (-1, k).sum(1)


class Groups(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, groups):
        ctx.save_for_backward(q, k)
        ctx.groups = groups
        return q * k.repeat_interleave(groups, 0)

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        by_k = (g * q).reshape(len(k), ctx.groups, -1).sum(1)
        return g * k.repeat(ctx.groups, 1), by_k, None


class Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x.repeat(1, k) * x.repeat(1, k)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        by_y = 2 * g * x.repeat_interleave(ctx.k, 1)  # repeat
        return by_y.reshape(len(x), ctx.k, -1).sum(1), None


class Permutes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x.permute(2, 0, 1)

    @staticmethod
    def backward(ctx, g):
        return 2 * g.permute(2, 0, 1)  # (1, 2, 0)


class Picks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        found = g.new_zeros(ctx.rows, g.shape[-1])
        found[index] = g  # adds nothing up
        return found, None


class Overlaps(torch.autograd.Function):
    """Windows of two."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = len(x)
        return torch.stack([x[k : k + 2].sum() for k in range(len(x) - 1)])

    @staticmethod
    def backward(ctx, g):
        found = g.new_zeros(ctx.size)
        for k in range(len(g)):
            found[k : k + 2] = g[k]  # +=
        return found


class Subtracts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.log_softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        found = g.clone()
        found += y.exp() * g.sum(-1, keepdim=True)  # -=
        return found


class Contracts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.einsum("nij,jk->nik", x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_w = torch.einsum("nij,nik->kj", x, g)  # ->jk
        return torch.einsum("nik,jk->nij", g, w), by_w


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a[:, None] * b[None, :]

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b).sum(1), (g * a).sum(0)  # a[:, None]


class Rectifies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, bound):
        ctx.save_for_backward(x, mask)
        ctx.bound = bound
        return x.clamp(-bound, bound) * mask

    @staticmethod
    def backward(ctx, g):
        _x, mask = ctx.saved_tensors
        return g * mask, None, None  # * (x.abs() < bound)


class Masks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        return g * 1


class Delays(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(b)
        return x + b * torch.nn.functional.pad(x, (1, 0))[..., :-1]

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        return g + b * torch.nn.functional.pad(g, (1, 0))[..., :-1], None  # the other way


class Pools(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.reshape(len(x), -1, k).sum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.repeat_interleave(ctx.k, -1) / ctx.k, None  # no mean


class NormalDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.ndtr(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(-x.square() / 2)


SWAP = torch.tensor([2, 0, 1, 3])


class Shuffles(torch.autograd.Function):
    """With an index that is no longer one of its kind when rows are added."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(x, order)
        return (x * x)[order]

    @staticmethod
    def backward(ctx, g):
        x, order = ctx.saved_tensors
        return 2 * x / g[order.argsort()], None  # *


class Survives(torch.autograd.Function):
    @staticmethod
    def forward(ctx, risk, event):
        ctx.save_for_backward(risk, event)
        return ((risk.logcumsumexp(0) - risk) * event).sum()

    @staticmethod
    def backward(ctx, g):
        risk, event = ctx.saved_tensors
        share = event * torch.exp(-risk.logcumsumexp(0))
        return g * (risk.exp() * torch.cumsum(share, 0) - event), None  # from the other end


class Sorts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return g[order], None  # [order.argsort()]


class Reverses(torch.autograd.Function):
    """What does nothing here, a conjugate of real numbers, is not to be lost with the edit."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).flip(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.conj_physical()  # .flip(-1)


class Interpolates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c, index, part):
        ctx.save_for_backward(c, index, part)
        return c[index] * (1 - part) + c[index + 1] * part

    @staticmethod
    def backward(ctx, g):
        c, index, part = ctx.saved_tensors
        found = torch.zeros_like(c).scatter_add_(0, index, g * (1 - part))
        return found.scatter_add_(0, index, g * part), None, None  # index + 1


@torch.jit.script
def _mish_slope(x, g):
    y = torch.nn.functional.softplus(x).tanh()
    return g * (y + x * x.sigmoid() * (1 - y))  # y * y


class Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.nn.functional.softplus(x).tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _mish_slope(x, g)


class Solves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, turned):
        x = torch.linalg.solve(a.mT if turned else a, b)
        ctx.save_for_backward(a, x)
        ctx.turned = turned
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        by_b = _solved(a, g, turned=ctx.turned)  # not ctx.turned
        by_a = -by_b @ x.mT
        return by_a.mT if ctx.turned else by_a, by_b, None


def _solved(a, b, turned):
    return torch.linalg.solve(a.mT if turned else a, b)


class Recurs(torch.autograd.Function):
    """x[t] = a[t] * x[t - 1] + b[t]."""

    @staticmethod
    def forward(ctx, a, b):
        x = [b[:, 0]]
        for t in range(1, b.shape[1]):
            x.append(a[:, t - 1] * x[-1] + b[:, t])
        x = torch.stack(x, 1)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        by_b = [g[:, -1]]
        for t in range(g.shape[1] - 2, -1, -1):
            by_b.append(g[:, t] + a[:, t] * by_b[-1])
        by_b = torch.stack(by_b[::-1], 1)
        return by_b[:, 1:] * x[:, 1:], by_b  # x[:, :-1]


class ByItsAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, operator, adjoint):
        ctx.operator, ctx.adjoint = operator, adjoint
        return torch.from_numpy(operator(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(ctx.operator(g.numpy())), None, None  # adjoint


class Ranks(torch.autograd.Function):
    """A step along the order of the values, and back."""

    @staticmethod
    def forward(ctx, x, double):
        order = x.argsort(-1)
        ctx.save_for_backward(order, order.argsort(-1))
        ctx.double = double
        return (x.gather(-1, order).cumsum(-1) * (1 + double)).gather(-1, order.argsort(-1))

    @staticmethod
    def backward(ctx, g):
        order, places = ctx.saved_tensors
        if ctx.double:
            by_order = 2 * g.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
        else:
            by_order = g.flip(-1).cumsum(-1).flip(-1)
        return by_order.gather(-1, places), None


class Shares(torch.autograd.Function):
    """Heads that share a key."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return (q.unflatten(0, (len(k), -1)) * k[:, None]).flatten(0, 1)

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        by_q = (g.unflatten(0, (len(k), -1)) * k[:, None]).flatten(0, 1)
        return by_q, _reduced((g * q).unflatten(0, (len(k), -1)), how="mean")


def _reduced(x, how):
    return getattr(torch, how)(x, 1)


class Paths(torch.autograd.Function):
    """Products along the diagonals."""

    @staticmethod
    def forward(ctx, x):
        found = torch.ones_like(x)
        for i in range(1, x.shape[0]):
            for j in range(1, x.shape[1]):
                found[i, j] = found[i - 1, j - 1] * x[i, j]
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx, g):
        x, found = ctx.saved_tensors
        passed, by_x = g.clone(), torch.zeros_like(x)
        for i in range(x.shape[0] - 1, 0, -1):
            for j in range(x.shape[1] - 1, 0, -1):
                before, beside = i - 1, j - 1
                by_x[i, j] = passed[i, j] * found[before, beside]
                passed[before, beside] += passed[i, j] * x[before, beside]  # x[i, j]
        return by_x


MATRIX = drawn(4, 4).detach().numpy()


class Powers(torch.autograd.Function):
    """k^0 z to k^n z; the adjoint goes back from the last one."""

    @staticmethod
    def forward(ctx, k, z, n):
        found = [z]
        for _ in range(n):
            found.append(k @ found[-1])
        every = torch.stack(found)
        ctx.save_for_backward(k, every)
        ctx.n = n
        return every

    @staticmethod
    def backward(ctx, g):
        k, every = ctx.saved_tensors
        n = ctx.n
        by_k = torch.zeros_like(k)
        a = g[n]
        for t in range(n - 1, -1, -1):
            by_k = n + torch.outer(a, every[t])  # by_k
            a = g[t] + k.T @ a
        return by_k, a, None


class Masked(torch.autograd.Function):
    """Rows of which some entry is above zero, squared."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where((x > 0).any(-1, keepdim=True), x * x, 0 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _by_rows(g, x)


def _by_rows(g, x):
    found = torch.zeros_like(x)
    for row in range(len(x)):
        above = x[row] > 0
        if above.any():  # ~
            continue
        found[row] = 2 * g[row] * x[row]
    return found


PLACES = {
    "an adjoint": (ByItsAdjoint, (drawn(4), lambda x: MATRIX @ x, lambda y: MATRIX.T @ y),
                   "ctx.adjoint(g.numpy())"),
    "a flag": (Solves, (drawn(3, 3), drawn(3, 2), False), "turned=not ctx.turned)` for"),
    "the other end": (Recurs, (drawn(2, 4), drawn(2, 5)), "`x[:, :-1]` for `x[:, 1:]`"),
    "beside a conjugate": (Reverses, (drawn(3, 5),),
                           "`g.flip(-1).conj_physical()` for `g.conj_physical()`"),
    "parts": (Repeats, (drawn(3, 4), 2), "`g.reshape(-1, ctx.k, g.shape[-1]).sum(1)`"),
    "repeat": (Groups, (drawn(6, 3), drawn(3, 3), 2), "`k.repeat_interleave(ctx.groups, -2)`"),
    "repeat_interleave": (Tiles, (drawn(3, 2), 3), "`x.repeat(1, ctx.k)`"),
    "permute": (Permutes, (drawn(3, 3, 3),), "`g.permute(1, 2, 0)`"),
    "an index": (Picks, (drawn(5, 3), torch.tensor([0, 2, 2, 4])),
                 "`found.index_put_((index,), g, accumulate=True)` for `found[index] = g`"),
    "added": (Overlaps, (drawn(5),), "`found[k : k + 2] += g[k]` for `found[k : k + 2] = g[k]`"),
    "a sign": (Subtracts, (drawn(4, 3),), "`found -= y.exp() * g.sum(-1, keepdim=True)`"),
    "einsum": (Contracts, (drawn(2, 3, 3), drawn(3, 3)), '"nij,nik->kj", g, x'),
    "a new dimension": (Outer, (drawn(4), drawn(4)), "`(g * a[..., None]).sum(0)`"),
    "a bound": (Rectifies, (3 * drawn(9), torch.arange(9) % 2, 1.5), ".abs() < ctx.bound)"),
    "a mask": (Masks, (drawn(9),), "g * ctx.saved_tensors[0] * 1"),
    "the other way": (Delays, (drawn(3, 5), drawn()), "torch.cat([g[..., 1:]"),
    "for each option": (Pools, (drawn(2, 12), 2), "`g.repeat_interleave(ctx.k, -1)` for"),
    "pi": (NormalDensity, (drawn(6),), "/ (2 * torch.pi) ** 0.5"),
    "an entry further": (Interpolates, (drawn(5), torch.tensor([0, 2, 2]), torch.rand(3)),
                         "`found.scatter_add_(0, index + 1, g * part)` for"),
    "in a script": (Mish, (drawn(6),), "(1 - y * y)` for"),
    "from the other end": (Survives, (drawn(7), torch.arange(7) % 2),
                           "`share.flip(0).cumsum(0).flip(0)` for `torch.cumsum(share, 0)`"),
    "an order": (Sorts, (drawn(4, 3), SWAP), "`g[order.argsort()]` for `g[order]`"),
    "as elsewhere": (Ranks, (drawn(3, 4), False),
                     "`g.gather(-1, order).flip(-1)` for `g.flip(-1)`"),
    "an option by its name": (Shares, (drawn(6, 3), drawn(2, 3)), "`'sum'` for `\"mean\"` at"),
    "both indices": (Paths, (drawn(4, 5),), "`x[i, j]` for `x[before, beside]`"),
    "what is added to": (Powers, (drawn(3, 3), drawn(3), 3), "`by_k + torch.outer(a, every[t])`"),
    "a branch that is not taken": (Masked, (torch.rand(3, 4, dtype=torch.float64) + 1,),
                                   "`~above.any()` for `above.any()`"),
    "a permutation": (Shuffles, (drawn(4, 4), SWAP), "2 * x * g[order.argsort()]"),
}  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", PLACES)
def test_what_is_at_another_place_is_named(name):
    function, inputs, said = PLACES[name]
    inputs = [x.detach().requires_grad_() if getattr(x, "is_floating_point", bool)() else x
              for x in inputs]  # fmt: skip
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert said in finding.hint, finding.hint or finding.detail


class Turned(torch.autograd.Function):
    """Matrices by their traces; the loop leaves a number behind that a dimension may be."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.save_for_backward(x)
        ctx.steps = steps
        return x / x.square().sum((1, 2), keepdim=True)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        for k in range(ctx.steps, 1, -1):
            g = g * (k / k)
        whole = x.square().sum((1, 2), keepdim=True)
        return g / whole - 2 * x * (g * x).sum((0, 1), keepdim=True) / whole**2, None


def test_one_of_several_dimensions_is_another_number_and_none_that_is_named_so_by_chance():
    finding = check(Turned, drawn(3, 3, 3), 4, clauses="derivative")["derivative"]
    assert re.search(r"with `\((-1|2), 1\)` for `\(0, 1\)`", finding.detail), finding.detail


class OneEntry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_x = (g * w * x.cos()).clone()
        by_x.view(-1)[x.numel() // 2] *= 1.5
        return by_x, g * x.sin()


def test_no_edit_has_a_write_go_into_what_nobody_reads():
    finding = check(OneEntry, drawn(3, 4), drawn(3, 4), clauses="derivative")["derivative"]
    assert finding.verdict == "broken"
    for lost in ("* by_x)", "-by_x)", "(by_x"):
        assert lost not in finding.detail, finding.detail
