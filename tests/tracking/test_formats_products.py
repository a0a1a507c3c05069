"""Every product of a simulated model is rounded or refused, however it is called or run again."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from pullback.errors import UnsupportedError
from pullback.tracking.formats import simulate_format

ATEN = torch.ops.aten


class Products(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, *factors):
        return self.product(*factors)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


A, B, V, W = (4, 3), (3, 5), (3,), (5, 3)
ROUNDED = {
    "linalg.matmul": (torch.linalg.matmul, A, B),
    "multi_dot of two": (lambda a, b: torch.linalg.multi_dot([a, b]), A, B),
    "vecdot": (torch.linalg.vecdot, A, A),
    "vdot": (torch.vdot, V, V),
    "vdot method": (lambda a, b: a.vdot(b), V, V),
    "addmv": (torch.addmv, (4,), A, V),
    "inner method": (lambda a, b: a.inner(b), A, W),
    "outer method": (lambda a, b: a.outer(b), V, V),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b), (4, 5), A, B),
    "addr": (torch.addr, (4, 5), (4,), (5,)),
    "kron": (torch.kron, A, B),
    "convolution": (
        lambda x, w: torch.convolution(x, w, None, (1,), (0,), (1,), False, (0,), 1),
        (2, 3, 8),
        (4, 3, 3),
    ),
    "reflected": (lambda a, b: b.__rmatmul__(a), A, B),
}
REFUSED = {
    "multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), A, B, W),
    "einsum of three": (lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), A, B, W),
    "matrix_power": (lambda a: torch.linalg.matrix_power(a, 3), (3, 3)),
    "sparse.mm": (lambda a, b: torch.sparse.mm(a.to_sparse(), b), A, B),
    "sparse": (lambda a, b: a.to_sparse() @ b, A, B),
    "packet": (ATEN.mm, A, B),
    "overload": (ATEN.mm.default, A, B),
    "aten.linear": (ATEN.linear, A, W),
    "aten.attention": (ATEN.scaled_dot_product_attention, (2, 4, 3), (2, 5, 3), (2, 5, 3)),
    "cdist": (torch.cdist, A, W),
    "cov": (torch.cov, A),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded(name):
    product, *shapes = ROUNDED[name]
    factors = [normal(*shape) for shape in shapes]
    got = simulate_format(Products(product), forward="E2M1")(*factors)
    assert not torch.allclose(got, product(*factors))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    product, *shapes = REFUSED[name]
    factors = [normal(*shape) for shape in shapes]
    with pytest.raises(UnsupportedError, match="simulate_format"):
        simulate_format(Products(product), forward="E2M1")(*factors)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        return cotangent @ b.T, a.T @ cotangent


def test_a_custom_function_multiplies_where_no_gradient_is_wanted():
    a, b = normal(*A), normal(*B)
    simulated = simulate_format(Products(Product.apply), forward="E2M1")
    assert not torch.allclose(simulated(a, b), a @ b)
    a.requires_grad_()
    with pytest.raises(UnsupportedError, match="inside of Product"):
        simulated(a, b)
    with torch.no_grad():
        assert not torch.allclose(simulated(a, b), a @ b)


@pytest.mark.filterwarnings("ignore:flex_attention called")
def test_scripted_parts_and_flex_attention_are_refused_by_name():
    scripted = nn.Sequential(torch.jit.script(nn.Linear(3, 3)))
    with pytest.raises(UnsupportedError, match="scripted module"):
        simulate_format(scripted, forward="E2M1")
    attend = simulate_format(Products(lambda x: flex_attention(x, x, x)), forward="E2M1")
    with pytest.raises(UnsupportedError, match="flex_attention"):
        attend(torch.randn(1, 2, 16, 16))


def test_what_is_changed_in_place_has_its_gradient_rounded():
    def change(c, a, b):
        c = c.clone()
        c.addmm_(a, b)
        return c

    c, a, b = (normal(*shape).requires_grad_() for shape in ((4, 5), A, B))
    results = []
    for product in (change, torch.addmm):
        y = simulate_format(Products(product), forward="E2M1", backward="E2M1")(c, a, b)
        results.append((y, *torch.autograd.grad(y.square().sum(), (c, a, b))))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_gradient_inside_of_forward_is_no_stray_product():
    def penalty(a, b):
        return torch.autograd.grad((a @ b).square().sum(), a, create_graph=True)[0]

    a, b = normal(*A).requires_grad_(), normal(*B)
    assert simulate_format(Products(penalty), forward="E4M3")(a, b).shape == a.shape


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.one, self.two, self.kind = nn.Linear(8, 8), nn.Linear(8, 8), kind

    def part(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x))) @ self.one.weight)

    def again(self, x):
        return checkpoint(self.part, x, use_reentrant=self.kind == "reentrant")

    def forward(self, x):
        if self.kind == "plain":
            return self.part(self.part(x))
        if self.kind == "nested":
            return checkpoint(lambda x: self.again(self.again(x)), x, use_reentrant=False)
        return self.again(self.again(x))


def gradients(kind, rounding, seeded):
    torch.manual_seed(0)
    block, x = Block(kind), torch.randn(4, 8, requires_grad=True)
    generator = torch.Generator().manual_seed(3) if seeded else None
    torch.manual_seed(5)
    simulated = simulate_format(
        block, forward="E4M3", backward="E5M2", rounding=rounding, generator=generator
    )
    simulated(x).square().sum().backward()
    return [x.grad, *(p.grad for p in block.parameters())]


@pytest.mark.parametrize("kind", ["checkpointed", "nested"])
@pytest.mark.parametrize(
    ("rounding", "seeded"), [("nearest", False), ("stochastic", False), ("stochastic", True)]
)
def test_what_a_checkpoint_computes_again_is_rounded_as_it_was(kind, rounding, seeded):
    expected = gradients("plain", rounding, seeded)
    for got, wanted in zip(gradients(kind, rounding, seeded), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_reentrant_checkpointing_is_refused():
    with pytest.raises(UnsupportedError, match="reentrant"):
        gradients("reentrant", "nearest", seeded=False)
