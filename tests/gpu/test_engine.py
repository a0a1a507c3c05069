"""The contract on a card: random numbers, autocast, streams, compiled code, two devices."""

import pytest
import torch
from tests.tensor.cases import Combined, Residual, Split

import pullback


class Noisy(torch.autograd.Function):
    """x^2 times a mask of random numbers, drawn on the card."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x)
        ctx.save_for_backward(x, mask)
        return x * x * mask

    @staticmethod
    def backward(ctx, cotangent):
        x, mask = ctx.saved_tensors
        return 2 * x * mask * cotangent


def test_random_numbers_are_those_of_the_call():
    noisy = pullback.complete(Noisy)
    x = torch.randn(5, device="cuda", dtype=torch.float64, requires_grad=True)
    y = noisy.apply(x)
    mask = (y / (x * x)).detach()
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * x.detach() * mask)
    (curvature,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(curvature, 2 * mask)


@pytest.mark.parametrize("function", [Split, Combined, Residual])
def test_every_transform(function):
    x = torch.randn(4, device="cuda", dtype=torch.float64)
    torch.testing.assert_close(
        torch.func.hessian(lambda x: function.apply(x).sum())(x), torch.diag(6 * x)
    )
    _, tangent = torch.func.jvp(function.apply, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, 3 * x**2)
    each = torch.func.vmap(torch.func.grad(lambda x: function.apply(x).sum()))(x[:, None])
    torch.testing.assert_close(each, 3 * x[:, None] ** 2)


@pytest.mark.parametrize("function", [Split, Combined, Residual])
def test_compiled_to_the_card(function):
    x = torch.randn(4, device="cuda", requires_grad=True)
    compiled = torch.compile(lambda x: function.apply(x).sum(), fullgraph=True)
    (gradient,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(gradient, 3 * x.detach() ** 2)


class Bare(torch.autograd.Function):
    """A product that autocast computes in half precision."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        cotangent = cotangent.to(x.dtype)
        return cotangent @ x.mT + x.mT @ cotangent


def test_autocast_is_that_of_the_bare_function():
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    found = []
    for function in (Bare, pullback.complete(Bare)):
        with torch.autocast("cuda", torch.bfloat16):
            y = function.apply(x)
        found.append((y, torch.autograd.grad(y.float().sum(), x)))
    assert found[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_on_a_stream_of_ones_own():
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = Residual.apply(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(curvature, 6 * x.detach())


class Crossing(torch.autograd.Function):
    """Takes a tensor on the CPU and one on the card."""

    @staticmethod
    def forward(ctx, host, there):
        ctx.save_for_backward(host, there)
        return host.to(there.device) * there**2

    @staticmethod
    def backward(ctx, cotangent):
        host, there = ctx.saved_tensors
        return (cotangent * there**2).cpu(), 2 * host.to(there.device) * there * cotangent


def test_inputs_on_two_devices():
    host = torch.randn(3, dtype=torch.float64, requires_grad=True)
    there = torch.randn(3, dtype=torch.float64, device="cuda", requires_grad=True)
    crossing = pullback.complete(Crossing)
    first = torch.autograd.grad(crossing.apply(host, there).sum(), (host, there), create_graph=True)
    assert [g.device.type for g in first] == ["cpu", "cuda"]
    total = first[0].sum() + first[1].sum().cpu()
    got = torch.autograd.grad(total, (host, there))
    h, t = host.detach(), there.detach().cpu()
    torch.testing.assert_close(got[0], 2 * t)
    torch.testing.assert_close(got[1].cpu(), 2 * t + 2 * h)


def test_a_loop_of_steps_holds_no_memory():
    x = torch.randn(1 << 16, device="cuda", requires_grad=True)
    held = []
    for _ in range(30):
        torch.autograd.grad(Residual.apply(x).square().sum(), x)
        held.append(torch.cuda.memory_allocated())
    assert len(set(held[5:])) == 1
