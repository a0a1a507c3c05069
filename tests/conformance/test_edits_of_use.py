"""Where a clause of the contract fails, the line is named, and what is to be written there."""

import re
from pathlib import Path

import pytest
import torch
from tests.scripts import printed_by
from tests.specimens._specimen import normal
from tests.specimens.wrong.calls import BiasNotSummed, OnePlaceTooFar
from tests.specimens.wrong.memory import KeepsEveryInput, OutputOnContext

from pullback.conformance import check

X = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class _OfOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w


class Multiplies(_OfOne):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_w = g * x
        return g.mul_(w), by_w


class MultipliesOut(_OfOne):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_w = g * x
        torch.mul(g, w, out=g)
        return g, by_w


class Augments(_OfOne):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_w = g * x
        g *= w + 0
        return g, by_w


class AsksAnother(_OfOne):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return g * w if needs[0] else None, g * x if ctx.needs_input_grad[0] else None


def masked(g, x):
    return g.masked_fill_(x < 0, 0.0)


class Helped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        return masked(g, ctx.saved_tensors[0])


class Entries(Helped):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g[x < 0] = 0
        return g


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        y.pow_(2)
        return g * (1 - y)


class OnTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        OnTheClass.mask = x > 0
        return x * OnTheClass.mask

    @staticmethod
    def backward(ctx, g):
        return g * OnTheClass.mask


class OnTheClassBesides(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        OnTheClassBesides.mask = x > 0
        ctx.save_for_backward(x)
        return x.sin() * OnTheClassBesides.mask

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * OnTheClassBesides.mask


CACHE = {}


class Cached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        CACHE["x"] = x.detach().clone()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * CACHE["x"].cos()


class OnTheContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.x


class ReturnsItsContext(torch.autograd.Function):
    """What setup_context returns is held by torch for good."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        return ctx

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def filled(ctx, inputs):
    ctx.save_for_backward(*inputs)
    return ctx


class ReturnsAFilledOne(ReturnsItsContext):
    @staticmethod
    def setup_context(ctx, inputs, output):
        return filled(ctx, inputs)


class Detached(OnTheContext):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x


class BesideSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        ctx.x = x
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * ctx.x.cos() * w, g * ctx.x.sin()


class Deletes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        found = g * ctx.mask
        del ctx.mask
        return found


class Buffered(Saved):
    buffer = torch.zeros(6, dtype=torch.float64)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return torch.mul(g, 1 - y * y, out=Buffered.buffer)


class NoZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos() - h * x.sin()


class Untyped(Saved):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        found = torch.zeros(y.shape)
        found += g * (1 - y * y)
        return found


class AroundTheCounter(torch.autograd.Function):
    @staticmethod
    def forward(x):
        x.data.clamp_(min=1.0)
        return x.log()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[0]


class FromTheFront(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(1).cumsum(1).flip(1)


class DetachedInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        slope = g * (x * w).detach().cos()
        return slope * w, slope * x


class DrawsAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, level):
        draws = torch.Generator().manual_seed(7)
        return x + level * torch.randn(x.shape, generator=draws, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        draws = torch.Generator().manual_seed(7)  # noqa: F841 - the fault: nothing draws from it
        return g, g * torch.randn(g.shape, dtype=g.dtype)


def behind(x):
    return Helped.apply(2 * x).sum()


class Subtracts(torch.autograd.Function):
    """Out of place it saves what forward has made: its second derivative is wrong then."""

    @staticmethod
    def forward(ctx, x, y):
        x -= y
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, g):
        (gap,) = ctx.saved_tensors
        return 2 * g * gap, None


def test_an_edit_that_leaves_the_second_derivative_is_named_with_that():
    given = X.clone().requires_grad_(), X.flip(0).clone()
    finding = check(Subtracts, *given, clauses=["mutation", "double"])["mutation"]
    assert "`x = x - y` for `x -= y`" in finding.hint
    assert "`double` is to be mended next" in finding.detail


class OverRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight.mean()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        by_mean = (g * x).sum((0, 1)).sum(0)
        return g * weight.mean(), by_mean.expand_as(weight) / weight.numel()


USES = {
    "in place": (Multiplies, (X, X), "cotangent", "`g.mul(w)` for `g.mul_(w)`"),
    "out": (MultipliesOut, (X, X), "cotangent",
            "`g = torch.mul(g, w)` for `torch.mul(g, w, out=g)`"),
    "augmented": (Augments, (X, X), "cotangent", "`g = g * (w + 0)` for `g *= w + 0`"),
    "in a helper": (Helped, (X,), "cotangent", "`g.masked_fill(x < 0, 0.0)` for"),
    "behind a callable": (behind, (X,), "cotangent", "`g.masked_fill(x < 0, 0.0)` for"),
    "entries": (Entries, (X,), "cotangent", "`g = g.clone(); g[x < 0] = 0` for `g[x < 0] = 0`"),
    "what is saved": (Saved, (X,), "retain", "`y = y.pow(2)` for `y.pow_(2)`"),
    "a flag": (AsksAnother, (X, X), "needs-input-grad",
               "`ctx.needs_input_grad[1]` for `ctx.needs_input_grad[0]`"),
    "on the class": (OnTheClass, (X,), "state", "`mask = x > 0; ctx.save_for_backward(mask)` for"),
    "on the class, besides": (OnTheClassBesides, (X,), "state", "ctx.save_for_backward(x, mask)"),
    "in a dictionary": (Cached, (X,), "state", "for `CACHE[\"x\"] = x.detach().clone()`"),
    "on the context": (OnTheContext, (X,), "saved", "`ctx.save_for_backward(x)` for `ctx.x = x`"),
    "detached": (Detached, (X,), "double", "`ctx.save_for_backward(x)` for `ctx.x = x.detach()`"),
    "detached in backward": (DetachedInBackward, (X, X), "double",
                             "`(x * w)` for `(x * w).detach()`"),
    "beside what is saved": (BesideSaved, (X, X), "saved", "`ctx.saved_tensors[:1]` for"),
    "a context returned": (ReturnsItsContext, (X,), "leak", "`return` for `return ctx`"),
    "a filled one": (ReturnsAFilledOne, (X,), "leak",
                     "`filled(ctx, inputs); return` for `return filled(ctx, inputs)`"),
    "deleted": (Deletes, (X,), "saved", "`pass` for `del ctx.mask`"),
    "a buffer": (Buffered, (X,), "state", "`torch.mul(g, 1 - y * y)` for"),
    "no zeros": (NoZeros, (X,), "undefined", "`ctx.set_materialize_grads(True)` for"),
    "around the counter": (AroundTheCounter, (X.abs() + 0.1,), "mutation",
                           "`x = x.clamp(min=1.0)` for `x.data.clamp_(min=1.0)`"),
    "for batches": (FromTheFront, (X.reshape(2, 3),), "rank",
                    "`g.flip(-1).cumsum(-1).flip(-1)` for `g.flip(1).cumsum(1).flip(1)`"),
    "over rows": (OverRows, (X.reshape(1, 2, 3), X[:3]), "rank",
                  "`tuple(range((g * x).ndim - 1))` for `(0, 1)`"),
    "drawn": (DrawsAgain, (X, X), "retain",
              "`torch.randn(g.shape, dtype=g.dtype, generator=draws)` for"),
    "a dtype": (Untyped, (X,), "dtype", "`torch.zeros(y.shape, dtype=g.dtype)` for"),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", USES)
def test_the_line_and_what_is_meant_there_are_named(name):
    function, inputs, clause, said = USES[name]
    args = [x.clone().requires_grad_() for x in inputs]
    finding = check(function, *args, clauses=[clause, "derivative", "linear", "saved"])[clause]
    assert finding.hint.startswith("Write `")
    assert said in finding.hint
    assert re.search(r"It holds with `.*` for `.*` at test_edits_of_use.py:\d+", finding.detail)


SHARED, STACK, LAST = {}, [], None


class ByKey(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, key):
        SHARED[key] = x.detach().clone()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * SHARED.get(2).cos(), None


class OnAStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        remember(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        torch.is_grad_enabled()
        return g * STACK[-1].cos()


def remember(x):
    torch.is_grad_enabled()
    STACK.append(x.detach().clone())


class TheLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        global LAST  # noqa: PLW0603 - the fault
        LAST = x.detach().clone()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * LAST.cos()


PLACES = {"SHARED": (ByKey, X, 2), "STACK": (OnAStack, X), "LAST": (TheLast, X)}


@pytest.mark.parametrize("name", PLACES)
def test_what_calls_share_is_named_where_no_edit_is_found(name):
    function, x, *options = PLACES[name]
    finding = check(function, x.clone().requires_grad_(), *options, clauses="state")["state"]
    file = "test_edits_of_use.py"
    found = re.search(rf"likely `(\w+)`, written at {file}:(\d+) and read at", finding.detail)
    assert found is not None, finding.detail
    assert found[1] == name
    line = Path(__file__).read_text().splitlines()[int(found[2]) - 1]
    assert line.strip().startswith((f"{name}[", f"{name}.", f"{name} = "))
    assert "torch" not in finding.detail.partition("likely")[2]


class OutputOnTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        OutputOnTheClass.y = y
        return y

    @staticmethod
    def backward(ctx, g):
        return g * OutputOnTheClass.y


def test_an_output_that_calls_share_is_saved_and_never_an_attribute_of_its_context():
    """That would be a cycle, and `saved` refuse it: a second edit takes time that may be over."""
    x = X.clone().requires_grad_()
    hint = check(OutputOnTheClass, x, clauses=["state", "derivative"])["state"].hint
    assert "`ctx.save_for_backward(y)` for `OutputOnTheClass.y = y`" in hint


@pytest.mark.parametrize("function", [ReturnsItsContext, OutputOnContext, KeepsEveryInput])
def test_the_script_of_a_leak_counts_what_the_finding_does(function):
    finding = check(function, X.clone().requires_grad_(), clauses="leak")["leak"]
    assert re.fullmatch(r"[12] of 2 tensors alive", finding.got)
    assert printed_by(finding.repro).strip() == finding.got


def test_a_gradient_of_random_numbers_is_told_by_where_they_are_drawn():
    args = [x.clone().requires_grad_() for x in (X, X)]
    report = check(DrawsAgain, *args, clauses=["derivative", "retain"])
    assert [finding.clause for finding in report.causes] == ["retain"]


MASKS = {}


class KeepsMasks(torch.autograd.Function):
    """Where the ratio of two is small; the mask of the first call with a shape is for all."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.mask = MASKS.setdefault(x.shape, (x / step).abs() < 3)
        return x * ctx.mask + 0 * step

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask, torch.zeros_like(g)


def test_what_is_kept_between_calls_is_named_and_found_of_a_ratio_too():
    args = [x.clone().requires_grad_() for x in (X, torch.full_like(X, 0.6))]
    finding = check(KeepsMasks, *args, clauses="first-call", gradient="surrogate")["first-call"]
    assert finding.verdict == "broken"
    assert "What `MASKS` keeps of one call is read by another" in finding.detail
    assert "F.forward.__globals__['MASKS'].clear()" in finding.repro
    assert not finding.repro.startswith("#")  # which says what it does not show


class Both(torch.autograd.Function):
    """In place at two places: no one edit mends it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g.mul_(x.cos()) - h.mul_(x.sin())


def test_an_edit_with_which_the_clause_fails_still_is_not_told():
    finding = check(Both, X.clone().requires_grad_(), clauses="cotangent")["cotangent"]
    assert not finding.hint.startswith("Write `")


class WritesBeforeItReads(_OfOne):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.mul_(w), g * x


def test_what_an_operation_in_place_spoils_has_the_same_edit():
    args = [x.clone().requires_grad_() for x in (X, X.flip(0))]
    report = check(WritesBeforeItReads, *args, clauses=["derivative", "cotangent", "linear"])
    assert "`g.mul(w)` for `g.mul_(w)`" in report["derivative"].hint
    assert report["cotangent"].cause == "derivative"


class TwoFaults(_OfOne):
    """The derivative lacks a factor, and what is read of the data is a constant to autograd."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w.detach() * 2, g * x.detach()


def test_a_second_fault_is_a_finding_of_its_own():
    args = [x.clone().requires_grad_() for x in (X, X.flip(0))]
    report = check(TwoFaults, *args, clauses=["derivative", "double"])
    assert report["derivative"].hint.startswith("Write `")
    assert report["double"].verdict == "broken"
    assert report["double"].cause == ""


class Coded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
        self.bias = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def product(self, x, turned):
        return x @ (self.codes.mT if turned else self.codes)


class ProductOfCodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, product, bias):
        ctx.product = product
        return product(x, True) + bias

    @staticmethod
    def backward(ctx, g):
        return ctx.product(g, False), None, g.sum(0) if ctx.needs_input_grad[1] else None


def test_a_parameter_that_gets_no_gradient_is_seen_where_its_module_is_given_too():
    layer = Coded()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    found = check(ProductOfCodes, x, layer.product, layer.bias, clauses="derivative")["derivative"]
    assert "`ctx.needs_input_grad[2]` for `ctx.needs_input_grad[1]`" in found.hint


class AsksWhatIsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x**2 * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = g * x * y if x.requires_grad else None  # twice that
        return gx, g * x**2 if y.requires_grad else None


def test_a_rule_that_asks_whether_what_is_saved_requires_a_gradient_is_called_again():
    x, y = (torch.randn(5, dtype=torch.float64).requires_grad_() for _ in range(2))
    found = check(AsksWhatIsSaved, x, y, clauses="derivative", gradient="exact")["derivative"]
    assert "`2 * g * x * y`" in found.hint, found.hint or found.detail


class Roots(torch.autograd.Function):
    """The root of what a callable reads by itself: its parameters are the very ones it reads."""

    @staticmethod
    def forward(ctx, f, y, *phi):
        ctx.f, low, high = f, torch.full_like(y, -8.0), torch.full_like(y, 8.0)
        for _ in range(50):
            middle = (low + high) / 2
            below = f(middle) < y
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        ctx.save_for_backward((low + high) / 2, *phi)
        return (low + high) / 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, *phi = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.f(x)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
        by_y = g / slope
        return None, by_y, *torch.autograd.grad(y, phi, by_y)  # -by_y


def test_what_a_callable_reads_by_itself_is_left_to_it_while_edits_are_tried():
    scale = torch.tensor([1.5, 0.7], dtype=torch.float64).requires_grad_()
    args = (lambda x: (x[..., None] * scale).sinh().mean(-1)), X.clone().requires_grad_()
    finding = check(Roots, *args, scale, clauses="derivative")["derivative"]
    assert "(y, phi, -by_y)` for" in finding.hint


class Accumulates(torch.autograd.Function):
    """Adds to a buffer that is made once, and returns it: the answer of before changes, too."""

    buffer = None

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if Accumulates.buffer is None or Accumulates.buffer.shape != w.shape:
            Accumulates.buffer = torch.zeros_like(w)
        return g @ w.mT, Accumulates.buffer.addmm_(x.mT, g)


def test_what_is_added_up_from_call_to_call_is_named_before_what_follows_from_it():
    args = [torch.randn(3, 2), torch.randn(2, 2)]
    report = check(Accumulates, *[x.requires_grad_() for x in args])
    assert report.gradient == "exact"
    first, *_ = report.causes
    assert first.clause == "deterministic"
    assert "`True` for `Accumulates.buffer is None or " in first.hint


class Triplet(torch.autograd.Function):
    """With two gradients exchanged, and a number of rows that is that of a matrix alone."""

    @staticmethod
    def forward(ctx, anchor, positive, negative):
        near, far = (anchor - positive).pow(2).sum(1), (anchor - negative).pow(2).sum(1)
        ctx.save_for_backward(anchor, positive, negative, near + 0.2 > far)
        return (near - far + 0.2).clamp(min=0).mean()

    @staticmethod
    def backward(ctx, g):
        anchor, positive, negative, active = ctx.saved_tensors
        scale = (2.0 * g / anchor.size(0) * active.to(anchor.dtype)).unsqueeze(1)
        return (
            scale * (negative - positive),
            scale * (anchor - negative),
            scale * (positive - anchor),
        )


def test_an_edit_that_changes_the_answer_to_what_was_given_is_none():
    rows = [normal(8, 3, seed=k) for k in range(3)]
    found = check(Triplet, *rows, clauses=["rank"])["rank"]
    assert found.verdict == "broken"
    assert "anchor.size(-1)" not in found.hint  # with which the given rows get other gradients


class Leans(torch.autograd.Function):
    """Two numbers of one call exchanged."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return sloped(x, low, high) * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * sloped(x, ctx.high, ctx.low), None, None


def sloped(x, low, high):
    return torch.where(x < 0, low, high)


def test_two_numbers_that_are_exchanged_are_named():
    found = check(Leans, X.clone().requires_grad_(), 0.3, 0.9, clauses="derivative")["derivative"]
    assert "`sloped(x, ctx.low, ctx.high)` for `sloped(x, ctx.high, ctx.low)`" in found.hint


class Grows(torch.autograd.Function):
    """An exponential whose gradient is to have an end, from the wrong side."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(torch.clamp(x, min=15))


class TwoStreams(torch.autograd.Function):
    """The cotangents of two outputs in reverse order."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin() * y, y.exp()

    @staticmethod
    def backward(ctx, *given):
        (x, y), found = ctx.saved_tensors, []
        for pair in zip((x.sin() * 0 + 1, y.exp()), given[::-1], strict=True):
            found.append(pair[0] * pair[1])
        return found[0] * x.cos() * y, found[0] * x.sin() + found[1]


@pytest.mark.parametrize(
    ("function", "count", "said"),
    [
        (Grows, 1, "`torch.clamp(x, max=15)` for `torch.clamp(x, min=15)`"),
        (TwoStreams, 2, "`given` for `given[::-1]`"),
    ],
)
def test_the_wrong_end_is_named(function, count, said):
    given = [0.3 * X.clone().requires_grad_() for _ in range(count)]
    found = check(function, *given, clauses="derivative", gradient="exact")["derivative"]
    assert said in found.hint, found.hint


def test_a_gradient_that_stands_at_another_place_is_put_at_its_own():
    args = normal(4, 3).requires_grad_(), torch.tensor([16.0])
    found = check(OnePlaceTooFar, *args, clauses=["form"], gradient="surrogate")["form"]
    assert "`cotangent, None` for `None, cotangent` at calls.py:" in found.hint


def test_a_gradient_of_another_form_is_told_to_be_that_of_another_argument():
    args = normal(4, 3).requires_grad_(), normal(3, seed=2).requires_grad_()
    found = check(BiasNotSummed, *args, clauses=["form"])["form"]
    assert found.verdict == "untidy"
    assert "It is the one for argument 0, too." in found.detail


class Energies(torch.autograd.Function):
    """Of images, channels last, the energy of a channel."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum(dim=(1, 2), keepdim=True).mean(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g[..., None] * x / x.shape[-1]


@pytest.mark.slow
def test_of_several_dimensions_none_is_counted_from_the_end_where_it_meets_another():
    x = torch.randn(2, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    found = check(Energies, x, clauses=["rank", "derivative"])["rank"]
    assert "With 1 dimension less" in found.detail
    assert "It holds with" not in found.detail
