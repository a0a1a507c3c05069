"""Factors and terms that are forgotten are named: of several factors, with powers by an option."""

import pytest
import torch

from pullback.conformance import check
from pullback.conformance.source._names import Name, named_factors
from pullback.conformance.source._products import products

generator = torch.Generator().manual_seed(7)


def drawn(*shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def positive(*shape):
    found = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2
    return found.requires_grad_()


class Minkowski(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, r):
        ctx.save_for_backward(a, b)
        ctx.r = r
        return (a - b).abs().pow(r).sum()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        r, d, s = ctx.r, (a - b).abs(), (a - b).sign()
        return g * r * s * d.pow(r - 1), None, None


class Focal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, gamma):
        ctx.save_for_backward(p)
        ctx.gamma = gamma
        return -((1 - p) ** gamma) * p.log()

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        q = 1 - p
        return -g * q**ctx.gamma / p, None  # + g * gamma * q ** (gamma - 1) * p.log()


class PowerLaw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, beta, p):
        ctx.save_for_backward(v, beta)
        ctx.p = p
        return beta * v.abs() ** p

    @staticmethod
    def backward(ctx, g):
        (v, beta), p = ctx.saved_tensors, ctx.p
        return g * beta * p * v.sign(), (g * v.abs() ** p).sum(), None  # |v| ** (p - 1)


class ElasticNet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, l1, l2):
        ctx.save_for_backward(w)
        ctx.l1, ctx.l2 = l1, l2
        return (l1 * w.abs() + l2 * w.square()).sum()

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * ctx.l1 * w.sign(), None, None  # + 2 * g * l2 * w


class WeightNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, g):
        norm = v.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(v, g, norm)
        return g * v / norm

    @staticmethod
    def backward(ctx, grad):
        v, g, norm = ctx.saved_tensors
        by_g = (grad * v / norm).sum(-1, keepdim=True)
        return grad * g / norm, by_g  # - g * v * by_g / norm ** 2


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, m):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, w, m, s)
        return s * w * m + x * w

    @staticmethod
    def backward(ctx, g):
        x, w, m, s = ctx.saved_tensors
        return g * w, g * (s * m + x), g * s * w  # + g * w * m * s * (1 - s)


class Bounds:
    def __init__(self, high):
        self.high = high


class Scaled(torch.autograd.Function):
    """By what an object holds, and a dictionary."""

    @staticmethod
    def forward(ctx, x, bounds, low):
        ctx.save_for_backward(x)
        ctx.bounds, ctx.options = bounds, {"low": low}
        return (x * bounds.high).clamp(min=low)

    @staticmethod
    def backward(ctx, g):
        inside = ctx.saved_tensors[0] * ctx.bounds.high > ctx.options["low"]
        return g * inside, None, None


class Normalises(torch.autograd.Function):
    """With a number so small that it is not seen."""

    @staticmethod
    def forward(ctx, x, eps):
        away = x - x.mean(-1, keepdim=True)
        variance = away.square().mean(-1, keepdim=True)
        y = away / (variance + eps).sqrt()
        ctx.save_for_backward(y, variance)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, g):
        y, variance = ctx.saved_tensors
        away = g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)
        return away / (variance + ctx.eps), None  # its square root


class MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.unsqueeze(-1)


class OverVisible(torch.autograd.Function):
    """A mean over the entries that are seen; backward divides by how many there are."""

    @staticmethod
    def forward(ctx, x, seen):
        ctx.save_for_backward(x, seen)
        return (x.square() * seen).sum() / seen.sum()

    @staticmethod
    def backward(ctx, g):
        x, seen = ctx.saved_tensors
        return 2 * g * x * seen / seen.numel(), None


class Springs(torch.autograd.Function):
    """Pulls both ends of each edge; backward forgets one of them."""

    @staticmethod
    def forward(ctx, x, edges):
        ctx.save_for_backward(x, edges)
        return (x[edges[0]] - x[edges[1]]).square().sum()

    @staticmethod
    def backward(ctx, g):
        x, edges = ctx.saved_tensors
        first, second = edges  # noqa: RUF059 (the term of it is forgotten)
        pull = 2 * g * (x[first] - x[edges[1]])
        found = torch.zeros_like(x)
        found.index_add_(0, first, pull)
        return found, None


class HardSwish(torch.autograd.Function):
    """Its lower threshold is another one; no entry given is beyond the right one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(min=0, max=6) / 6

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = torch.ones_like(x) * (x >= 3.0)
        return g * torch.where((x >= 0.0) & (x <= 3.0), x / 3.0 + 0.5, slope)


class Entropy(torch.autograd.Function):
    """The second output is for display, and nothing says so."""

    @staticmethod
    def forward(ctx, x):
        p = x.softmax(-1)
        ctx.save_for_backward(p)
        entropy = -(p * p.log()).sum(-1)
        return p, entropy

    @staticmethod
    def backward(ctx, g, g_entropy):
        (p,) = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True))


class SegmentMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.save_for_backward(lengths)
        return torch.stack([part.mean(0) for part in x.split(lengths.tolist())])

    @staticmethod
    def backward(ctx, g):
        (lengths,) = ctx.saved_tensors
        return g.repeat_interleave(lengths, 0), None  # / lengths


FORGOTTEN = {
    "how many each stands for": (SegmentMeans, (drawn(6, 4), torch.tensor([2, 1, 3])),
                                 "(g / lengths[..., None]).repeat_interleave(lengths, 0)"),
    "of a name that nobody reads": (
        Springs, (drawn(5, 2), torch.tensor([[0, 0, 1, 2, 3], [1, 2, 2, 4, 4]])),
        "`found.index_add_(0, first, pull); found.index_add_(0, second, -pull)` for",
    ),
    "beyond all that is given": (HardSwish, (drawn(4, 5),), "`x >= -3.0` for `x >= 0.0`"),
    "those that count": (OverVisible, (drawn(4, 3), (torch.arange(12).view(4, 3) % 3 > 0).double()),
                         "`seen.sum()` for `seen.numel()`"),
    "another input's": (Minkowski, (drawn(5, 3), drawn(5, 3), 3.0), "-(g * r * s * d.pow(r - 1))"),
    "a power by an option": (Focal, (torch.linspace(0.1, 0.9, 8).requires_grad_(), 2.5),
                             "* q ** (ctx.gamma - 1)"),
    "of what the rule computes": (PowerLaw, (drawn(7), positive(), 1.5),
                                  "g * beta * p * v.sign() * v.abs() ** (p - 1)"),
    "three numbers": (ElasticNet, (drawn(6), 0.3, 0.7), "+ 2 * w * g * ctx.l2"),
    "four factors": (WeightNorm, (drawn(4, 3), positive(4, 1)), "- v * g * by_g / norm ** 2"),
    "three values": (Gated, (drawn(4, 3), drawn(4, 3), drawn(4, 3)), "* (1 - s)"),
    "held by an object": (Scaled, (drawn(9), Bounds(1.7), -0.4), "g * ctx.bounds.high * inside"),
    "a small number": (Normalises, (drawn(4, 5), 1e-5), "(variance + ctx.eps).sqrt()"),
    "what is not marked": (Entropy, (drawn(4, 3),), "`ctx.mark_non_differentiable(entropy)`"),
    "the last dimension": (MeanPool, (drawn(4, 5),), ".shape[-1]"),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_is_forgotten_is_named(name):
    function, inputs, said = FORGOTTEN[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert said in finding.hint, finding.hint or finding.detail


def test_products_of_four_are_found_without_making_them():
    names = [Name(c, torch.rand(12, generator=generator) + 0.5) for c in "abcdefgh"]
    a, b, c, d = (name.value.double() for name in names[2:6])
    assert next(products(a * b / c * d**2, names, [])).split(" ") == [
        "c", "*", "d", "*", "f", "**", "2", "/", "e",
    ]  # fmt: skip


def test_sums_of_products_along_any_dimension_are_found():
    names = [Name(c, torch.randn(3, 5, generator=generator)) for c in "abc"]
    a, b = (name.value.double() for name in names[:2])
    assert next(products((a * b).sum(0), names, [])) == "(a * b).sum(0)"
    assert next(products((a * b).sum(1, keepdim=True), names, [])) == (
        "(a * b).sum(-1, keepdim=True)"
    )


def test_the_sign_of_a_number_counts():
    known = [Name("a", -0.7), Name("b", 0.3)]
    found = [how for _, how in named_factors(2 * -0.7 * 0.3, known)]
    assert found
    for how in found:
        value = eval(how.format("1.0"), {"a": -0.7, "b": 0.3})
        assert value == pytest.approx(-0.42, rel=1e-3)


class AverageInChunks(torch.autograd.Function):
    """It forgets in one statement of a loop the factor that another one has."""

    @staticmethod
    def forward(ctx, q, k, v, chunk):
        scores = q @ k.mT
        sums = scores.sum(-1)
        out = scores @ v / sums[..., None]
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.chunk = chunk
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, out, sums = ctx.saved_tensors
        chunk = ctx.chunk
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (do * out).sum(-1)
        for i in range(0, q.shape[2], chunk):
            some = q[:, :, i : i + chunk]
            rest = delta[:, :, i : i + chunk]
            given = do[:, :, i : i + chunk]
            s = some @ k.transpose(-1, -2)
            ds = (given @ v.transpose(-1, -2) - rest[..., None]) / sums[:, :, i : i + chunk, None]
            dv += s.transpose(-1, -2) @ given
            dq[:, :, i : i + chunk] += ds @ k
            dk += (some.transpose(-1, -2) @ ds).transpose(-1, -2)
        return dq, dk, dv, None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", [3, 6])
def test_a_factor_that_stands_elsewhere_in_a_loop_is_named_as_it_stands_there(chunk):
    report = check(AverageInChunks, *(positive(1, 1, 6, 4) for _ in range(3)), chunk,
                   clauses="derivative")  # fmt: skip
    assert "s / sums[:, :, i : i + chunk, None]" in report["derivative"].hint


class OverSums(torch.autograd.Function):
    """Its factor goes with what it divides by a size of one, too, in another way."""

    @staticmethod
    def forward(ctx, x, sums):
        _batch, _heads, _rows, _columns = x.shape
        ctx.sums = sums
        return x / sums[..., None]

    @staticmethod
    def backward(ctx, g):
        return g.clone(), None


def test_an_edit_that_goes_together_by_sizes_of_one_alone_is_none():
    report = check(OverSums, positive(1, 1, 6, 4), positive(1, 1, 6).detach(),
                   clauses="derivative")  # fmt: skip
    assert "g / ctx.sums[..., None]" in report["derivative"].hint


class Pooled(torch.autograd.Function):
    """A number for each channel is forgotten, beside which two dimensions more are."""

    @staticmethod
    def forward(ctx, x, beta):
        weight = (x * beta.view(1, -1, 1, 1)).softmax(2)
        pooled = (weight * x).sum(2, keepdim=True)
        ctx.save_for_backward(x, weight, pooled, beta)
        return pooled

    @staticmethod
    def backward(ctx, g):
        x, weight, pooled, beta = ctx.saved_tensors
        centred = x - pooled
        by_beta = (g * (weight * centred.square()).sum(2, keepdim=True)).sum((0, 2, 3))
        return g * weight * (1 + centred), by_beta.to(beta)


def test_a_number_for_each_channel_is_given_the_dimensions_that_it_lacks():
    found = check(Pooled, drawn(2, 3, 4, 5), positive(3), clauses=["derivative"])["derivative"]
    assert "beta[..., None, None]` for " in found.hint


class Scan(torch.autograd.Function):
    """Each entry goes on from the one before, whose state the slope of its gate is."""

    @staticmethod
    def forward(ctx, gate, x):
        states, state = [], torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = gate[:, t] * state + x[:, t]
            states.append(state)
        ctx.save_for_backward(gate, torch.stack(states, 1))
        return torch.stack(states, 1)

    @staticmethod
    def backward(ctx, g):
        gate, states = ctx.saved_tensors  # noqa: RUF059  # which it does not read is the fault
        by_x = g.clone()
        for t in range(g.shape[1] - 2, -1, -1):
            by_x[:, t] += gate[:, t + 1] * by_x[:, t + 1]
        by_gate = torch.zeros_like(gate)
        by_gate[:, 1:].add_(by_x[:, 1:])
        return by_gate, by_x


class Rises(torch.autograd.Function):
    """Weighted differences of second order."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return (x[2:] - 2 * x[1:-1] + x[:-2]) * weight[2:]

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        by_x = weight.new_zeros(weight.shape)
        slope = 1 * g
        by_x[2:] += slope
        by_x[1:-1] -= 2 * slope
        by_x[:-2] += slope
        return by_x, None


def test_what_a_scan_lacks_is_all_but_the_last_of_what_it_went_through():
    found = check(Scan, positive(3, 5), drawn(3, 5), clauses=["derivative"])["derivative"]
    assert "Write `by_x[:, 1:] * states[:, :-1]` for `by_x[:, 1:]`" in found.hint


def test_what_a_difference_lacks_is_all_but_the_first_of_its_weights():
    found = check(Rises, drawn(7), positive(7).detach(), clauses=["derivative"])["derivative"]
    assert "weight[2:]` for `" in found.hint


class Snake(torch.autograd.Function):
    """A term of a quotient rule is lost, of which forward alone computes a part."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x + torch.sin(a * x).square() / a

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        double = torch.sin(2 * a * x)
        return g * (1 + double), g * (double * x / a)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shape", "summed"), [((5, 8), ""), ((8,), ".sum(0)"), ((1, 8), ".sum(0, keepdim=True)")]
)
def test_a_term_is_made_of_what_forward_computes_also_where_torch_sums(shape, summed):
    found = check(Snake, drawn(5, 8), positive(*shape), clauses=["derivative"])["derivative"]
    lost = f"(g * torch.sin(a * x) ** 2 / a ** 2){summed}" if summed else (
        "g * torch.sin(a * x) ** 2 / a ** 2")  # fmt: skip
    assert f" - {lost}` for `g * (double * x / a)`" in found.hint


def test_of_multiples_of_one_tensor_the_one_that_needs_no_number_is_named():
    u, scale = drawn(12).detach(), 1.5
    operands = [Name("(u * scale)", scale * u), Name("u", u)]
    assert next(products(-u, operands, [Name("scale", scale)])) == "-u"
