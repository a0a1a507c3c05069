"""What reaches backward from forward comes through operations that autograd differentiates.

Or the second derivative is refused: nothing is measured, and the structure alone decides.
"""

import pytest
import torch
import torch.distributed as dist

import pullback
from pullback.errors import UnsupportedError

LIBRARY = torch.library.Library("pullback_alone", "DEF")
LIBRARY.define("write(Tensor(a!) out, Tensor x) -> ()")
LIBRARY.impl("write", lambda out, x: (out.copy_(3 * x * x), None)[1], "CPU")
LIBRARY.define("slope(Tensor x) -> Tensor")
LIBRARY.impl("slope", lambda x: 3 * x * x, "CPU")


def as_text(ctx, x):
    ctx.kept = str((3 * x * x).tolist())


def as_texts(ctx, x):
    ctx.kept = [str(value) for value in (3 * x * x).tolist()]


def as_bytes(ctx, x):
    ctx.kept = (3 * x * x).detach().double().numpy().tobytes()


def as_bits(ctx, x):
    bits = (3 * x * x).double().view(torch.int64)
    ctx.save_for_backward(bits)


def written(ctx, x):
    kept = torch.empty_like(x)
    torch.ops.pullback_alone.write(kept, x)
    ctx.save_for_backward(kept)


def written_by_an_overload(ctx, x):
    kept = torch.empty_like(x)
    torch.ops.pullback_alone.write.default(out=kept, x=x)
    ctx.save_for_backward(kept)


def late(ctx, x):
    ctx.save_for_backward(x)


PLACES = (as_text, as_texts, as_bytes, as_bits, written, written_by_an_overload, late)


def make(place, way, *, communicates=False):
    class Cube(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if communicates and dist.is_initialized():
                dist.all_reduce(x.clone())
            ctx.mode = "nearest"  # a text that the code has
            place(ctx, x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return SLOPES[place](ctx).to(g.dtype) * g

    return pullback.complete(Cube) if way == "complete" else Cube


SLOPES = {
    as_text: lambda ctx: torch.tensor([float(word) for word in ctx.kept.strip("[]").split(",")]),
    as_texts: lambda ctx: torch.tensor([float(word) for word in ctx.kept]),
    as_bytes: lambda ctx: torch.frombuffer(bytearray(ctx.kept), dtype=torch.float64),
    as_bits: lambda ctx: ctx.saved_tensors[0].view(torch.float64),
    written: lambda ctx: ctx.saved_tensors[0],
    written_by_an_overload: lambda ctx: ctx.saved_tensors[0],
    late: lambda ctx: torch.ops.pullback_alone.slope(ctx.saved_tensors[0]),
}


def hessian(f, x):
    return torch.func.hessian(lambda t: f(t).sum())(x)


def reverse_twice(f, x):
    return torch.func.jacrev(torch.func.jacrev(f))(x)


def forward_twice(f, x):
    return torch.func.jacfwd(torch.func.jacfwd(f))(x)


def reverse_of_forward(f, x):
    return torch.func.jacrev(torch.func.jacfwd(f))(x)


def double(f, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(gradient.sum(), x)[0]


@pytest.mark.parametrize("ask", [hessian, reverse_twice, forward_twice, reverse_of_forward, double])
@pytest.mark.parametrize("communicates", [True, False])
@pytest.mark.parametrize("way", ["Function", "complete"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_what_structure_does_not_show_is_refused(place, way, communicates, ask):
    function = make(place, way, communicates=communicates)
    x = torch.tensor([1.5, 0.5], dtype=torch.float64)
    with pytest.raises((UnsupportedError, RuntimeError)) as refused:
        ask(function.apply, x)
    seen = refused.value
    while seen is not None and not isinstance(seen, UnsupportedError):
        seen = seen.__cause__ or seen.__context__
    assert seen is not None, refused.value
    leaf = x.clone().requires_grad_()
    function.apply(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, 3 * x * x)


@pytest.mark.parametrize("way", ["Function", "complete"])
def test_a_text_of_the_code_or_of_an_argument_is_known(way):
    class Scaled(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, mode):
            ctx.mode, ctx.how = mode, ("nearest", "even")
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 3)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g, None

    function = pullback.complete(Scaled) if way == "complete" else Scaled
    x = torch.tensor([1.5, 0.5], dtype=torch.float64)
    torch.testing.assert_close(double(lambda t: function.apply(t, "exact"), x), 6 * x)
