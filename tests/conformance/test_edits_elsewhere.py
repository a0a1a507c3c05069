"""An edit is told as far as it has been run: another branch, values away from zero, a process."""

import contextlib
import os

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from pullback.conformance import check
from pullback.conformance.source._branches import branch_not_run
from pullback.conformance.source._sources import written
from pullback.conformance.source._twins import twins
from pullback.conformance.source._watch import Watch


class Sense:
    def __init__(self, least):
        self.least = least


class PicksABranch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c, w, sense):
        ctx.save_for_backward(c, w)
        ctx.sense = sense
        return (c * c * w).sum(-1) if sense.least else -(c * w * w).sum(-1)

    @staticmethod
    def backward(ctx, g):
        c, w = ctx.saved_tensors
        slope = c * w if ctx.sense.least else -w * w  # twice that is meant, of the first
        return g.unsqueeze(1) * slope, None, None


def _joined(slope):
    return slope + 0.0


class PicksABlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c, w, sense):
        ctx.save_for_backward(c, w)
        ctx.sense = sense
        return (c * c * w).sum(-1) if sense.least else -(c * w * w).sum(-1)

    @staticmethod
    def backward(ctx, g):
        c, w = ctx.saved_tensors
        if ctx.sense.least:
            found = [c * w]  # where no edit is looked for
            slope = found.pop()
        else:
            slope = -w * w
        return g.unsqueeze(1) * slope, None, None


@pytest.mark.parametrize(
    ("function", "edit"),
    [
        (PicksABranch, "`2 * c * w if ctx.sense.least else -w * w` for `c * w if"),
        (PicksABlock, "`[2 * c * w]` for `[c * w]`"),
    ],
)
def test_an_edit_is_made_within_the_branch_that_was_run(function, edit):
    given = torch.randn(4, 3), torch.rand(4, 3), Sense(True)
    found = check(function, *given, clauses="derivative", gradient="exact")["derivative"]
    assert edit in found.hint
    assert "other way" not in found.hint


def joins(x, least, more):
    by = 2 if least else x
    if more:
        left = x
        left = -left
    else:
        left = 3 * x
    kept = left + 1
    gradient = x if least else None
    return by, kept, gradient


def test_what_hangs_on_a_branch_that_was_not_run_is_known():
    source, watch = written(joins), Watch(noting=True)
    source.watched(watch)(torch.ones(2), True, False)
    first = joins.__code__.co_firstlineno
    found = {
        e.text: branch_not_run(e, e.text, watch) - first
        for e in source.rule.expressions if e.text in ("by", "kept", "gradient", "x", "left + 1")
    }  # fmt: skip
    assert found == {"by": 1, "kept": 2, "left + 1": 2, "gradient": -first, "x": -first}


class Recursion(torch.autograd.Function):
    """y_t = x_t + a y_(t-1), from a state that is zero, as a rule."""

    @staticmethod
    def forward(ctx, x, a, start):
        y = [start]
        for k in range(x.shape[-1]):
            y.append(x[..., k] + a[..., k] * y[-1])
        y = torch.stack(y, -1)
        ctx.save_for_backward(a, y)
        return y[..., 1:]

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        left, by_a = torch.zeros_like(g[..., 0]), []
        for k in range(g.shape[-1] - 1, -1, -1):
            left = g[..., k] + left
            by_a.insert(0, left * y[..., k])  # its conjugate is meant
            left = left * a[..., k].conj()
        return None, torch.stack(by_a, -1), None


def test_what_a_zero_hides_is_looked_for_beside_it():
    x, start = torch.randn(2, 7, dtype=torch.complex128), torch.zeros(2, dtype=torch.complex128)
    a = (0.5 * torch.randn(2, 7, dtype=torch.complex128)).requires_grad_()
    found = check(Recursion, x, a, start, clauses="derivative", gradient="exact")["derivative"]
    assert "y.conj()[..., k]` for `y[..., k]`" in found.hint


class ChangesItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a_in, x):
        a = a_in  # a copy is meant
        ctx.save_for_backward(a_in, x)
        for k in range(1, a.shape[-1]):
            a[..., k].mul_(a[..., k - 1])
        return a.cumsum(-1) * x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        with torch.enable_grad():
            a = a.detach().clone().requires_grad_()
            y = a.cumprod(-1).cumsum(-1)
        (by_a,) = torch.autograd.grad(y, a, g * x)
        return by_a, g * y.detach()


def test_what_a_changed_input_spoils_is_its_consequence():
    report = check(
        ChangesItsInput, torch.rand(2, 4) + 0.5, torch.randn(2, 4),
        clauses="derivative,linear,mutation,retain,state", gradient="exact",
    )  # fmt: skip
    assert [finding.clause for finding in report.causes] == ["mutation"]
    assert "`a_in.clone()` for `a_in`" in report["mutation"].hint


class Clips(torch.autograd.Function):
    """As in proximal policy optimisation: the lesser of two, one of which is clipped."""

    @staticmethod
    def forward(ctx, ratio, advantage, clip):
        limited = ratio.clamp(1 - clip, 1 + clip)
        ctx.save_for_backward(ratio, advantage)
        ctx.clip = clip
        return torch.minimum(ratio * advantage, limited * advantage)

    @staticmethod
    def backward(ctx, g):
        ratio, advantage = ctx.saved_tensors
        limited = ratio.clamp(1 - ctx.clip, 1 + ctx.clip)
        active = ratio == limited  # whatever the sign of the advantage
        return torch.where(active, g * advantage, torch.zeros_like(ratio)), None, None


def test_a_mask_of_another_comparison_is_named():
    given = torch.rand(64) * 1.2 + 0.4, torch.randn(64), 0.2
    found = check(Clips, *given, clauses="derivative", gradient="exact")["derivative"]
    assert "ratio * advantage <= limited * advantage" in found.hint


def _solve(g, order):
    """A kernel of somebody else's, which ends the process where it is handed what it is not for."""
    if order != 1:
        os._exit(9)
    return 2 * g


class CallsAKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, order):
        ctx.order = order
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return _solve(g, ctx.order), None


@pytest.mark.slow
def test_an_edit_ends_no_process_that_is_not_a_copy():
    given = torch.randn(3), 1
    found = check(CallsAKernel, *given, clauses="derivative", gradient="exact")["derivative"]
    assert found.verdict == "broken"


class Scales(torch.autograd.Function):
    """A norm, whose weight begins at one, as in every model."""

    @staticmethod
    def forward(ctx, x, weight):
        root = torch.rsqrt(x.square().mean(-1, keepdim=True))
        ctx.save_for_backward(x * root, root, weight)
        return x * root * weight

    @classmethod
    def backward(cls, ctx, g):
        y, root, _weight = ctx.saved_tensors
        by_weight = (g * y).sum(0)
        g = g * 1.0  # times the weight is meant
        return root * (g - y * (g * y).mean(-1, keepdim=True)), by_weight


@pytest.mark.parametrize("needs", [False, True])
def test_a_factor_that_is_one_as_given_is_missed(needs):
    x, weight = torch.randn(4, 5, requires_grad=True), torch.ones(5, requires_grad=needs)
    found = check(Scales, x, weight, clauses="derivative", gradient="exact")["derivative"]
    assert "g * ctx.saved_tensors[2] * 1.0` for `g * 1.0`" in found.hint


def _phase(x):
    return torch.complex(x.cos(), x.sin())


class Turns(torch.autograd.Function):
    """What forward calls, too, stays as it is: an edit there would change forward."""

    @staticmethod
    def forward(ctx, z, x):
        ctx.save_for_backward(x)
        return z * _phase(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * _phase(x), None


def test_what_forward_calls_is_not_edited():
    z = torch.randn(6, dtype=torch.complex128, requires_grad=True)
    found = check(Turns, z, torch.randn(6), clauses="derivative", gradient="exact")["derivative"]
    assert "`_phase(x).conj()` for `_phase(x)`" in found.hint


def _loss_and_slopes(target, hidden, weight):
    shares = (hidden @ weight.T).softmax(1)
    slope = shares + torch.nn.functional.one_hot(target, len(weight))  # less what was asked for
    loss = -shares.gather(1, target[:, None]).log().sum()
    return loss, slope @ weight, slope.T @ hidden


class MakesThemInForward(torch.autograd.Function):
    """Gradients that are made beside the loss, by what forward calls."""

    @staticmethod
    def forward(ctx, hidden, weight, target):
        loss, *slopes = _loss_and_slopes(target, hidden, weight)
        ctx.save_for_backward(*slopes)
        return loss

    @staticmethod
    def backward(ctx, g):
        by_hidden, by_weight = ctx.saved_tensors
        return g * by_hidden, g * by_weight, None


def test_what_forward_makes_a_gradient_with_is_edited():
    hidden, weight = (torch.randn(n, 3, dtype=torch.float64).requires_grad_() for n in (4, 5))
    given = hidden, weight, torch.tensor([0, 3, 1, 4])
    found = check(MakesThemInForward, *given, clauses="derivative", gradient="exact")["derivative"]
    assert "`shares - torch.nn.functional.one_hot(target, len(weight))` for" in found.hint


def _halves(x1, x2, g1, g2):
    dx1 = g1 + x1.grad
    dx2 = x2.grad
    slope1 = x1.cos() * g1
    slope2 = x2.cos() * g1
    part1 = torch.addcmul(g1, x1, slope1)
    part2 = torch.addcmul(x1, x2, slope2)
    return dx1, dx2, slope1, slope2, part1, part2


@pytest.mark.parametrize("text", ["g2 + x2.grad", "x2.cos() * g2", "torch.addcmul(g1, x2, slope2)"])
def test_an_assignment_is_tried_as_its_twin_is_written(text):
    source, noted = written(_halves), Watch(noting=True)
    given = [torch.ones(2, requires_grad=True) for _ in range(4)]
    for x in given:
        x.grad = torch.ones(2)
    source.watched(noted)(*given)
    assert text in [each for r in twins(source.rule, noted) for each in r.texts.values()]


@contextlib.contextmanager
def _quietly():
    yield


class OtherWayRound(torch.autograd.Function):
    """Several inputs passed on, whose gradients are put together in the wrong order."""

    @staticmethod
    def forward(ctx, *inputs):
        return tuple(x.clone() for x in inputs)

    @staticmethod
    def backward(ctx, *cotangents):
        found = []
        with _quietly():
            for g in reversed(cotangents):
                found.append(g * 1)
        return tuple(found)


def test_cotangents_in_another_order_are_no_gradient_on_purpose():
    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    found = check(OtherWayRound, *inputs, clauses="derivative")["derivative"]
    assert "`cotangents` for `reversed(cotangents)`" in found.hint


class Packed(TwoTensor):
    """Weights of a class of its own, which are of one precision."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func is torch.ops.aten._to_copy.default:
            raise ValueError("The dtype of packed weights cannot be changed")
        return super().__torch_dispatch__(func, types, args, kwargs)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x @ weight.a.t()

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.weight.a.t(), None  # without the transpose


def test_what_cannot_be_told_of_a_class_of_tensors_loses_no_finding():
    x, a = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    found = check(Linear, x, Packed(a, a), clauses="derivative", gradient="exact")["derivative"]
    assert found.verdict == "broken"
    assert "The gradient of args[0] is not" in found.detail


class Reverses(torch.autograd.Function):
    """A block that is not kept: its input is computed again from what it gave."""

    @staticmethod
    def forward(ctx, x, blocks):
        for block in blocks:
            x = torch.stack([x[1], x[0] + block(x[1])])
        ctx.save_for_backward(x)
        ctx.blocks = blocks
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        for block in reversed(ctx.blocks):
            with torch.enable_grad():
                x1 = y[0].detach().requires_grad_()
                added = block(x1)
            (through,) = torch.autograd.grad(added, x1, g[1])
            y = torch.stack([y[1] + added.detach(), y[0]])  # less what was added
            g = torch.stack([g[1], g[0] + through])
        return g, None


class RunsAgain(torch.autograd.Function):
    """A checkpoint that keeps its inputs in a list."""

    @staticmethod
    def forward(ctx, run, *given):
        ctx.run = run
        ctx.given = [x.detach().requires_grad_(x.requires_grad) for x in given]
        return run(*given)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            y = ctx.run(*ctx.given)
            loss = (y * g).mean()
        loss.backward()
        return None, *[x.grad for x in ctx.given]


def test_a_module_is_of_the_precision_that_shows_a_small_fault():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2)]
    for layer in layers:
        layer[0].weight.data *= 0.05  # what is added is little, and a wrong sign of it too
    blocks = torch.nn.ModuleList(layers)
    x = torch.randn(2, 3, 4, requires_grad=True)
    found = check(Reverses, x, blocks, clauses="derivative")["derivative"]
    assert "`y[1] - added.detach()` for `y[1] + added.detach()`" in found.hint, found.detail
    assert blocks[0][0].weight.dtype == torch.float32


def test_what_backward_leaves_on_a_kept_list_is_not_there_for_the_next_edit():
    given = [torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    found = check(RunsAgain, torch.mul, *given, clauses="derivative")["derivative"]
    assert "`(y * g).sum()` for `(y * g).mean()`" in found.hint, found.detail


def _coarse_slope(x):
    return x.bfloat16().cos().to(x.dtype)


class CastsTwice(torch.autograd.Function):
    """y = sin(x), which loses digits in backward and in what that calls."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.bfloat16().to(g.dtype) * _coarse_slope(x)


def test_an_edit_at_places_in_two_functions_is_told():
    x = torch.linspace(-2, 2, 40, dtype=torch.float64, requires_grad=True)
    found = check(CastsTwice, x, clauses="derivative")["derivative"]
    assert "Write `g` for `g.bfloat16()` at test_edits_elsewhere.py:" in found.hint, found.hint
    assert "and `x` for `x.bfloat16()` at test_edits_elsewhere.py:" in found.hint
