"""Whose exception: raised in a rule that the author wrote it is a crash, for a missing one no."""

import pytest
import torch
from tests.specimens._specimen import normal

from pullback.conformance import check

pytestmark = pytest.mark.usefixtures("no_edits")


class Scales(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent * w, cotangent * x


def of_rules(name, rule):
    return type(f"With{name.title()}", (Scales,), {name: staticmethod(rule)})


def first_only(info, in_dims, x, w):
    if in_dims != (0, 0):
        raise IndexError("in_dims")
    return Scales.apply(x, w), 0


def looks_up(info, in_dims, x, w):
    return Scales.apply(x, w), {(0, 0): 0}[in_dims]


def moves(info, in_dims, x, w):
    return Scales.apply(x, w.movedim(in_dims[1] + 5, 0)), 0


def refuses(info, in_dims, x, w):
    raise NotImplementedError("vmap")


def helper(x):
    raise ValueError("no such shape")


def through_a_helper(info, in_dims, x, w):
    return helper(x)


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (first_only, "crashes"),
        (looks_up, "crashes"),
        (moves, "crashes"),
        (through_a_helper, "crashes"),
        (refuses, "lacking"),
    ],
)
def test_of_a_vmap_rule(rule, verdict):
    function = of_rules("vmap", rule)
    report = check(function, normal(3, 4), normal(3, 4, seed=2), clauses="vmap")
    assert report["vmap"].verdict == verdict, str(report)


def test_of_a_missing_vmap_rule():
    report = check(Scales, normal(3, 4), normal(3, 4, seed=2), clauses=["vmap", "forward"])
    assert [f.verdict for f in report] == ["lacking", "lacking"]


def wrong_tangent(ctx, x_t, w_t):
    return x_t @ ctx.saved_tensors[1]


def raising_tangent(ctx, x_t, w_t):
    raise ValueError("tangents")


@pytest.mark.parametrize("rule", [wrong_tangent, raising_tangent])
def test_of_a_jvp(rule):
    report = check(of_rules("jvp", rule), normal(3, 4), normal(3, 4, seed=2), clauses="forward")
    assert report["forward"].verdict == "crashes", str(report)


def operator(name, fake):
    @torch.library.custom_op(f"pullback_whose::{name}", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy()).sin()

    if fake is not None:
        sine.register_fake(fake)

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return sine(x)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return x.cos() * cotangent.view(x.shape)

    return Sine


def raising(x):
    raise ValueError("no shape")


def indexing(x):
    return x.new_empty(x.shape[7])


@pytest.mark.parametrize(
    ("name", "fake", "verdict"),
    [
        ("raising", raising, "crashes"),
        ("indexing", indexing, "crashes"),
        ("flat", lambda x: x.new_empty(x.numel()), "broken"),
        ("longer", lambda x: x.new_empty(2 * x.shape[0], *x.shape[1:]), "broken"),
        ("missing", None, "lacking"),
    ],
)
def test_of_a_fake_rule(name, fake, verdict):
    report = check(operator(name, fake), normal(3, 4), clauses="fake")
    assert report["fake"].verdict == verdict, str(report)


def test_a_tensor_that_a_function_brings_itself_is_refused_by_torch_and_no_fault_of_a_fake_rule():
    @torch.library.custom_op("pullback_whose::product", mutates_args=())
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w

    product.register_fake(lambda x, w: torch.empty_like(x))
    weight = torch.full((3, 4), 2.0, dtype=torch.float64)

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return product(x, weight)

        @staticmethod
        def backward(ctx, cotangent):
            return product(cotangent, weight)

    report = check(Weighted, normal(3, 4), clauses="fake")
    assert report["fake"].verdict == "lacking", str(report)
