"""What a Function keeps on its class, in a module or on an object: one cause, and a true mend."""

import functools
from typing import ClassVar

import pytest
import torch
from tests.scripts import printed_by, prints_numbers

from pullback.conformance import check

A = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
STEP = torch.full((3, 1), 0.4, dtype=torch.float64)


class Quantizer:
    bits = 4
    grid = torch.arange(-3.0, 4.0, dtype=torch.float64)


class OfAnObject(torch.autograd.Function):
    """The numbers come from an object, the ends as tensors."""

    @staticmethod
    def forward(ctx, x, step, quantizer):
        ctx.bits = quantizer.bits
        low, high = quantizer.grid.min(), quantizer.grid.max()
        ctx.save_for_backward(x, step)
        OfAnObject.other = x.numel() ** -0.5, low, high
        y = (x / step).round().clamp(low, high) * step
        return y  # noqa: RET504 (as its edits are told)

    @staticmethod
    def backward(ctx, g):
        if ctx.bits >= 16:
            return g, None, None
        x, step = ctx.saved_tensors
        scale, low, high = OfAnObject.other
        q = x / step
        small, big = (q < low).to(q), (q > high).to(q)
        middle = 1.0 - small - big
        by_step = (small * low + big * high + middle * (q.round() - q)) * g * scale
        return middle * g, by_step.sum(-1, keepdim=True), None


def test_what_an_object_gives_is_kept_by_the_call():
    args = [A.clone().requires_grad_(), STEP.clone().requires_grad_(), Quantizer()]
    report = check(OfAnObject, *args, clauses=["state", "saved"])
    finding = report["state"]
    assert finding.detail.startswith("What forward leaves on the class is read by backward.")
    assert finding.hint.count("`ctx.other` for `OfAnObject.other`") == 2
    assert "`saved` is to be mended next" in finding.detail


class OnTheClass(torch.autograd.Function):
    """No edit that is tried mends it: it is read by another name."""

    @staticmethod
    def forward(ctx, x):
        OnTheClass.other = x.numel() ** -0.5
        y = x.round()
        return y  # noqa: RET504 (as its edits are told)

    @staticmethod
    def backward(ctx, g):
        return g * getattr(OnTheClass, "other")  # noqa: B009


SCALE = 0.0


class OfTheModule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        global SCALE  # noqa: PLW0603 (the fault)
        SCALE = x.numel() ** -0.5
        y = x.round()
        return y  # noqa: RET504 (as its edits are told)

    @staticmethod
    def backward(ctx, g):
        return g * SCALE


@pytest.mark.parametrize("function", [OnTheClass, OfTheModule])
def test_an_edit_that_leaves_what_calls_share_is_not_told(function):
    """What forward writes, with an edit too, is read by a backward that has none."""
    finding = check(function, A.clone().requires_grad_(), clauses="state")["state"]
    assert finding.verdict == "broken"
    assert not finding.hint.startswith("Write `")


class Buffers(torch.autograd.Function):
    """A buffer for each shape, which nobody empties."""

    buffers: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        value, index = x.max(1)
        ctx.save_for_backward(index[:, None])
        ctx.size = x.size()
        return value

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        zeros = Buffers.buffers.get(ctx.size)
        if zeros is None:
            zeros = torch.zeros(ctx.size, dtype=g.dtype)
            Buffers.buffers[ctx.size] = zeros
        zeros.scatter_(1, index, 1)
        return zeros * g[:, None]


class Noised(torch.autograd.Function):
    """The mean of samples of the k-th largest entry."""

    buffers: ClassVar = {}

    @staticmethod
    def forward(ctx, x, noise, k):
        noised = x[..., None] + noise
        ctx.size = noised.size()
        value, index = torch.kthvalue(-noised, k, dim=-2)
        ctx.save_for_backward(index[..., None, :])
        return -value.mean(-1)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        zeros = Noised.buffers.get(ctx.size)
        if zeros is None:
            zeros = torch.zeros(ctx.size)
            Noised.buffers[ctx.size] = zeros
        zeros.scatter_(-2, index, 1)
        return zeros.mean(-1) * g[..., None], None, None


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


BUFFERS = {
    "few": (Buffers, drawn(5, 4)),
    "many": (Buffers, drawn(30, 6)),
    "few with samples": (Noised, drawn(5, 4), drawn(5, 4, 3), 2),
    "many with samples": (Noised, drawn(30, 6), drawn(30, 6, 5), 2),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_that_is_never_emptied_is_the_first_cause_at_any_size(name):
    function, x, *others = BUFFERS[name]
    function.buffers.clear()
    report = check(function, x.clone().requires_grad_(), *others, without=["compile"])
    finding = report.causes[0]
    assert finding.clause == "first-call"
    assert "What `buffers` keeps of one call is read by another" in finding.detail


_decays = {}


def _contiguous(rule):
    @functools.wraps(rule)
    def wrapped(ctx, *cotangents):
        return rule(ctx, *(g.contiguous() for g in cotangents))

    return wrapped


def _decayed(g, x, f):
    if f.shape not in _decays:
        _decays[f.shape] = f.cumsum(-1).exp()
    decay = _decays[f.shape]
    return g * decay, (g * x * decay).flip(-1).cumsum(-1).flip(-1)


class KeptBehindADecorator(torch.autograd.Function):
    """What calls share is reached through what a decorator closes over."""

    @staticmethod
    def forward(ctx, x, f):
        ctx.save_for_backward(x, f)
        return x * f.cumsum(-1).exp()

    @staticmethod
    @_contiguous
    def backward(ctx, g):
        return _decayed(g, *ctx.saved_tensors)


def test_what_no_script_reaches_is_named_all_the_same():
    _decays.clear()
    generator = torch.Generator().manual_seed(2)
    args = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    report = check(KeptBehindADecorator, *[x.requires_grad_() for x in args], clauses="first-call")
    assert report["first-call"].verdict == "broken", report["first-call"]
    assert report["first-call"].detail.startswith("What `_decays` keeps of one call")


class RootsByShape(torch.autograd.Function):
    """Backward alone keeps what later calls of a shape read."""

    roots: ClassVar[dict] = {}

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 + x * x).sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.shape not in RootsByShape.roots:
            RootsByShape.roots[x.shape] = (1 + x * x).sqrt()
        return g * x / RootsByShape.roots[x.shape]


def test_the_script_of_what_backward_keeps_runs_the_other_call_backward_too():
    RootsByShape.roots.clear()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    finding = check(RootsByShape, x.requires_grad_(), clauses="first-call")["first-call"]
    assert finding.detail.startswith("What `roots` keeps of one call")
    RootsByShape.roots.clear()
    printed = printed_by(finding.repro)
    assert prints_numbers(printed, {"expected": finding.expected, "got": finding.got})


class FirstBatch(torch.autograd.Function):
    """Backward keeps the first batch, of data that needs no gradient, by an option."""

    kept: ClassVar[dict] = {}

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return x @ weight.T * scale

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        kept = FirstBatch.kept.setdefault((x.shape, x.dtype, ctx.scale), x)
        by_x = g @ weight * ctx.scale if ctx.needs_input_grad[0] else None
        return by_x, g.T @ kept * ctx.scale, None


def test_what_is_kept_of_constants_is_stale_as_well():
    FirstBatch.kept.clear()
    x, weight = torch.randn(8, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    given = x, weight.requires_grad_(), 0.7
    finding = check(FirstBatch, *given, clauses="first-call")["first-call"]
    assert finding.detail.startswith("What `kept` keeps of one call is read by another")
    FirstBatch.kept.clear()
    printed = printed_by(finding.repro)
    assert prints_numbers(printed, {"expected": finding.expected, "got": finding.got})
