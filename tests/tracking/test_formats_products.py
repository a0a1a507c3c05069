"""Every product of a simulated model is rounded or refused, however it is called or run again."""

import contextlib
import threading
import types

import pytest
import torch
from tests.versions import refused_before
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from pullback.errors import UnsupportedError
from pullback.tracking.formats import (
    E2M1,
    ProductFormats,
    Recipe,
    round_values,
    simulate_format,
)
from pullback.tracking.formats._products import is_product

ATEN = torch.ops.aten


class Products(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, *factors):
        return self.product(*factors)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@torch.library.custom_op("stranger::fused_multiply", mutates_args=())
def fused_multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def multiply_unseen(a, b):
    with torch._C.DisableTorchFunction():
        return a @ b


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
    "smm": (lambda a, b: torch.smm(a.to_sparse(), b), A, B),
    "sampled_addmm": (
        lambda a, b: torch.sparse.sampled_addmm(torch.ones(4, 5).double().to_sparse_csr(), a, b),
        A,
        B,
    ),
    "aten.outer": (ATEN.outer, V, V),
    "aten.outer.default": (ATEN.outer.default, V, V),
    "aten.ger": (ATEN.ger, V, V),
    "aten.kron": (ATEN.kron, A, B),
    "aten.linalg_vecdot": (ATEN.linalg_vecdot, A, A),
    "another's operator": (fused_multiply, A, B),
    "nested": (lambda a, b: torch.nested.nested_tensor([a, a]) @ torch.stack([b, b]), A, B),
    "out": (lambda a, b: torch.mm(a.detach(), b.detach(), out=a.new_empty(4, 5)), A, B),
    "torch function disabled": (multiply_unseen, A, B),
    "cdist": (torch.cdist, A, W),
    "aten.cdist": (lambda a, b: ATEN.cdist(a, b, 2.0, None), A, W),
    "aten.linalg_matrix_exp": (ATEN.linalg_matrix_exp, (3, 3)),
    "affine_grid": (
        lambda theta: functional.affine_grid(theta, (1, 1, 4, 4), align_corners=False),
        (1, 2, 3),
    ),
    "ormqr": (torch.ormqr, (3, 3), V, B),
    "householder_product": (torch.linalg.householder_product, (3, 3), V),
    "orgqr": (torch.orgqr, (3, 3), V),
    "ormqr method": (lambda a, tau, b: a.ormqr(tau, b), (3, 3), V, B),
    "cov": (torch.cov, A),
}


if hasattr(ATEN, "_foreach_mm"):
    REFUSED["lists"] = (lambda a, b: ATEN._foreach_mm([a], [b])[0], A, B)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded(name):
    product, *shapes = ROUNDED[name]
    factors = [normal(*shape) for shape in shapes]
    got = simulate_format(Products(product), forward="E2M1")(*factors)
    assert not torch.allclose(got, product(*factors))


SINGLE = {
    **{
        equation: lambda x, equation=equation: torch.einsum(equation, x)
        for equation in ("ij->ji", "ii->i", "ij->i", "ij->ij")
    },
    "numbered": lambda x: torch.einsum(x, [0, 1], [1, 0]),
    "list": lambda x: torch.einsum("ij->ji", [x]),
    "chain": torch.chain_matmul,
}


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("known", ["E2M1", "MXFP4"])
@pytest.mark.parametrize("name", SINGLE)
def test_one_operand_alone_is_no_product(name, known):
    x, g = normal(3, 3).requires_grad_(), torch.randn(())
    simulated = simulate_format(Products(SINGLE[name]), forward=known, backward=known, measure=True)
    y, expected = simulated(x), SINGLE[name](x)
    assert torch.equal(y, expected)
    grads = [torch.autograd.grad((g * each).sum(), x)[0] for each in (y, expected)]
    assert torch.equal(*grads)
    assert simulated.noise() == []


def test_an_operand_of_integers_counts():
    a, b = normal(3, 3), torch.ones(3, 3, dtype=torch.int64)
    got = simulate_format(Products(lambda: torch.einsum("ij,ij->ij", a, b)), forward="E2M1")()
    assert torch.equal(got, round_values(a, E2M1))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:.*API of nested tensors")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    product, *shapes = REFUSED[name]
    factors = [normal(*shape) for shape in shapes]
    with pytest.raises(UnsupportedError, match="simulate_format"):
        simulate_format(Products(product), forward="E2M1")(*factors)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("mm.default", "_scaled_mm.default", "_trilinear.default")),
        *((name, True) for name in ("_flash_attention_forward.default", "convolution.default")),
        *(
            (name, True)
            for name in ("mkldnn_rnn_layer.default", "_native_multi_head_attention.out")
        ),
        *(
            (name, False)
            for name in ("mul.Tensor", "polygamma.default", "cummax.default", "sum.default")
        ),
        *(
            (name, False)
            for name in ("upsample_bilinear2d.default", "convolution_backward.default")
        ),
        *((name, True) for name in ("_euclidean_dist.default", "_cdist_forward.default")),
        *(
            (name, False)
            for name in ("_pdist_forward.default", "dist.default", "linalg_solve.default")
        ),
        *((name, False) for name in ("lgamma.default", "digamma.default", "_to_copy.default")),
    ],
)
def test_which_operators_multiply(name, expected):
    packet, overload = name.split(".")
    if hasattr(ATEN, packet):
        assert is_product(getattr(getattr(ATEN, packet), overload)) is expected


@pytest.mark.parametrize(("name", "expected"), [("deform_conv2d", True), ("nms", False)])
def test_which_operators_of_torchvision_multiply(name, expected):
    packet = types.SimpleNamespace(__name__=name)
    operator = types.SimpleNamespace(overloadpacket=packet, namespace="torchvision")
    assert is_product.__wrapped__(operator) is expected


def test_what_a_recipe_leaves_out_may_multiply_as_it_likes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.free, self.head = Products(self.products), nn.Linear(3, 3, dtype=torch.double)
            self.cell = nn.GRUCell(3, 3, dtype=torch.double)

        def products(self, x):
            return self.cell(ATEN.mm(fused_multiply(x, x), x))

        def forward(self, x):
            return self.head(self.free(x))

    formats = ProductFormats("E2M1", "E2M1")
    model, x = Model(), normal(3, 3)
    kept = Recipe({"free": None, "cell": None, "head": formats})
    got = simulate_format(model, recipe=kept)(x)
    torch.testing.assert_close(got, simulate_format(model.head, forward="E2M1")(model.free(x)))
    with pytest.raises(UnsupportedError, match=r"gru|GRU|stranger"):
        simulate_format(model, recipe=Recipe({"free": None, "*": formats}))(x)
    with pytest.raises(UnsupportedError, match="stranger"):
        simulate_format(model, recipe=Recipe({"cell": None, "*": formats}))(x)


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


@refused_before("2.8", "its modes see no such operator", match="no rule registered for HOP")
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


class Two(nn.Module):
    """Waits in the middle, and has a part whose hook, which runs before the part, may raise."""

    def __init__(self):
        super().__init__()
        self.kept, self.rounded, self.failing = (nn.Linear(3, 3) for _ in range(3))
        self.failing.register_forward_pre_hook(self.fail)
        self.own = nn.Parameter(torch.randn(3, 3))

    @staticmethod
    def fail(*_):
        raise ValueError("before the part")

    def forward(self, x, between=lambda: None):
        y = self.rounded(x)
        between()
        for _ in range(2):
            with contextlib.suppress(ValueError):
                self.failing(x)
        return self.kept(y) @ self.own


RULES = Recipe({"kept": None, "*": ProductFormats("E2M1", "E2M1", "E5M2")})


def test_the_formats_go_by_the_module_also_after_one_that_never_began():
    module, x = Two(), torch.randn(2, 3)
    y = module.kept(simulate_format(module.rounded, forward="E2M1")(x))
    expected = round_values(y, E2M1) @ round_values(module.own, E2M1)
    torch.testing.assert_close(simulate_format(module, recipe=RULES)(x), expected)


def test_the_formats_go_by_the_module_in_each_thread():
    module, x = Two(), torch.randn(2, 3)
    simulated = simulate_format(module, recipe=RULES)
    expected, found = simulated(x), []
    meeting = threading.Barrier(4, timeout=20)

    def run():
        found.append(simulated(x, meeting.wait))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(each, expected) for each in found)
