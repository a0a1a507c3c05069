"""One fault gives one finding: its consequences are folded, its mend is true, its numbers come
again."""

import re
import typing
from dataclasses import replace

import pytest
import torch
from tests.scripts import printed_by

from pullback.conformance import _isolate, check
from pullback.conformance._clause import run_clauses
from pullback.conformance.cause._repair import Right
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.evidence._intent import infer_intent
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare
from pullback.conformance.script._repro import verify
from pullback.report import Finding, Report, Verdict, merge_reports


class ChangesCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_w = g * x
        return g.mul_(w), by_w


class AsksRequiresGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x = x.contiguous()  # where it was not: a copy, which requires no gradient
        ctx.save_for_backward(x, w)
        ctx.wanted = x.requires_grad
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w if ctx.wanted else None, g * x


class ReadsMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.untyped_storage().nbytes() >= g.element_size() * g.numel():
            g = torch.as_strided(g, (g.numel(),), (1,)).view(g.shape)
        return g * x.cos()


class ReusesBuffer(torch.autograd.Function):
    buffers: typing.ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        key = g.shape, g.dtype
        buffer = ReusesBuffer.buffers.setdefault(key, torch.zeros_like(g).detach())
        with torch.no_grad():
            return torch.mul(g, x.cos(), out=buffer)


class UsesUpContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = [3.0]
        return x * 3.0

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.scale.pop() if ctx.scale else 0.0)


class AsksForAnother(torch.autograd.Function):
    """Asks whether the weight needs a gradient where the bias is meant."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x, g if ctx.needs_input_grad[1] else None


class AsksForTheOther(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        return x.sin() * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        _, wanted = ctx.needs_input_grad  # of x and of the scale
        return g * x.cos() * scale if wanted else None, g * x.sin() if wanted else None


class BufferOfTheClass(torch.autograd.Function):
    """Keeps what backward needs in a buffer that calls of one shape share."""

    buffers: typing.ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        ctx.key = x.shape, x.dtype
        buffer = BufferOfTheClass.buffers.setdefault(ctx.key, torch.empty_like(x).detach())
        buffer.copy_(x.detach().cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * BufferOfTheClass.buffers[ctx.key]


class CountsFromTheFront(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(1, keepdim=True))


class SumsTooMuch(torch.autograd.Function):
    """The norm of all, in forward; that of a row in backward, which is one for one row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum().sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x / x.norm(dim=-1, keepdim=True)


class WholeBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        whole = len(g) // 4 * 4
        return torch.cat([(g * x.cos())[:whole], g[whole:] * 0])


class BatchesLast(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.cumsum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return BatchesLast.apply(g.flip(-1)).flip(-1)

    @staticmethod
    def vmap(info, in_dims, x):
        return BatchesLast.apply(x.movedim(in_dims[0], -1)), x.ndim - 1


class CapsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.mul_(0.1 / g.norm())


class Loss:
    """A module, as far as it matters here."""


class LeavesOnObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, loss):
        loss.kept = (x, x.cos())
        ctx.loss = loss
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.loss.kept[1], None


class PathOfItsOwn(torch.autograd.Function):
    """Takes another path in backward for a single row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() if len(x) > 1 else g * x


class DrawsAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) > 0.5)


X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
CASES = {
    # The Function, its inputs, the clauses tried, the one that names the cause, a word of the mend.
    "cotangent": (
        ChangesCotangent, (X, X + 1),
        ("cotangent", "layout", "needs-input-grad", "state", "retain", "checkpoint"), "clone",
    ),
    "layout": (AsksRequiresGrad, (X, X + 1), ("layout", "form"), "needs_input_grad"),
    "memory": (ReadsMemory, (X,), ("layout", "derivative"), ".contiguous()"),
    "state": (ReusesBuffer, (X,), ("linear", "state", "values"), "memory of the call's own"),
    "retain": (UsesUpContext, (X,), ("retain", "form"), "ctx"),
    "needs-input-grad": (
        AsksForAnother, (X, X + 1, X + 2), ("needs-input-grad", "form"), "not for args[1]",
    ),
    "asked for a constant": (
        AsksForAnother, (X.clone().requires_grad_(), X + 1, (X + 2).requires_grad_()),
        ("derivative", "double", "needs-input-grad"), "for args[2], not for args[1]",
    ),
    "asked for the one constant": (
        AsksForTheOther, (X.clone().requires_grad_(), X + 1),
        ("derivative", "needs-input-grad"), "for args[0], not for args[1]",
    ),
    "drawn": (DrawsAgain, (X,), ("derivative", "state", "retain"), "Save what forward drew"),
    "class": (BufferOfTheClass, (X,), ("state", "form"), "not on what all calls"),
    "rank": (CountsFromTheFront, (X,), ("rank", "form"), "from the end"),
    "sizes": (WholeBlocks, (X,), ("rank", "sizes"), "beyond the last whole block"),
    "batch": (PathOfItsOwn, (X,), ("batch", "form"), "no path apart for one row"),
    "vmap": (BatchesLast, (X,), ("vmap", "transforms"), "vmap"),
    "rank less": (SumsTooMuch, (X[0],), ("rank", "form"), "from the end"),
}  # fmt: skip
NAMED = {"memory": "layout", "class": "state", "drawn": "retain", "rank less": "rank"} | {
    name: "needs-input-grad" for name in CASES if name.startswith("asked")
}


def checked(name):
    function, inputs, clauses, _ = CASES[name]
    return check(function, *inputs, clauses=clauses)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_one_fault_is_one_finding_with_its_mend(name):
    report = checked(name)
    (cause,) = report.causes
    assert cause.clause == NAMED.get(name, name)
    assert CASES[name][-1] in cause.hint
    assert not cause.cause
    assert all(f.cause == cause.clause for f in report.problems if f is not cause)


def test_what_is_left_on_an_object_is_named():
    (cause,) = check(LeavesOnObject, X, Loss(), clauses=("saved", "leak", "state")).causes
    assert cause.detail.startswith("What forward leaves on `kept` of Loss is read by backward.")
    assert cause.clause == "state"


class WritesToInput(torch.autograd.Function):
    """Where no version counter sees it."""

    @staticmethod
    def forward(x):
        x.data.clamp_(min=0.1)
        return x.log()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[0]


def test_no_clause_hands_out_the_arguments_themselves():
    report = check(WritesToInput, X, clauses=("once", "transforms", "mutation"), gradient="exact")
    assert report["mutation"].verdict == "broken"


class SubtractsSpikes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        spikes = (x > 1).to(x)
        x -= spikes
        return spikes

    @staticmethod
    def backward(ctx, g):
        return g


def test_a_write_that_changes_nothing_is_told_without_numbers_and_others_first():
    how = {"clauses": "mutation", "gradient": "surrogate"}
    quiet, loud = (check(SubtractsSpikes, x, **how) for x in (X / 10, X.abs() + 1))
    assert "by the numbers that stood there" in quiet["mutation"].detail
    assert not quiet["mutation"].expected
    assert loud["mutation"].expected != loud["mutation"].got
    assert "(call 2 of 2)" in merge_reports([quiet, loud])["mutation"].detail


class MaskByShape(torch.autograd.Function):
    masks: typing.ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        ctx.key = x.shape
        MaskByShape.masks[ctx.key] = x.abs() < 4
        return x.clamp(-4, 4)

    @staticmethod
    def backward(ctx, g):
        return g * MaskByShape.masks[ctx.key]


def test_a_mask_that_calls_share_is_found_though_it_is_the_same_nearby():
    finding = check(MaskByShape, X, clauses="state")["state"]
    assert finding.verdict == "broken"
    assert "while a second live call is under way" in finding.detail
    assert "alone" in printed_by(finding.repro)


def test_what_training_meets_is_told_first():
    report = check(BufferOfTheClass, X, clauses=("double", "state"))
    assert report.causes[0].clause == "state"


class Preconditioned(torch.autograd.Function):
    """Not the derivative, on purpose, by an operation that torch has of no low precision."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        inverse = torch.linalg.inv(x.mT @ x + torch.eye(x.shape[-1], dtype=x.dtype))
        return g @ weight.mT, inverse @ (x.mT @ g.flip(0)) * 1.7


def test_what_fails_loudly_in_a_rule_does_not_follow_from_what_the_rule_is():
    x, weight = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    report = check(Preconditioned, x, weight.requires_grad_(), without=["compile"])
    assert report["derivative"].verdict is Verdict.BROKEN
    assert report["dtype"].verdict is Verdict.CRASHES
    assert not report["dtype"].cause


def test_consequences_are_told_in_one_line():
    report = checked("state")
    assert len(report.problems) >= 3
    text = str(report)
    assert len(text.splitlines()) <= 40
    others = len(report.problems) - 1
    assert f"{others} other clauses fail for the same cause: linear, values" in text
    assert text.count(": broken.") == 1
    in_full = report.to_text(verbose=True)
    assert in_full.count(": broken.") == others + 1
    assert report["state"].repro.splitlines()[-1] in in_full
    assert Report.from_json(report.to_json()) == report


def test_causes_are_told_by_another_process_too():
    seen = []
    report = check(
        ReusesBuffer, X, clauses=("linear", "state"), isolate="copy",
        on_finding=lambda finding: seen.append((finding.clause, finding.cause)),
    )  # fmt: skip
    assert report["linear"].cause == "state"
    assert seen[:2] == [("linear", ""), ("state", "")]
    assert ("linear", "state") in seen


def test_what_may_be_meant_is_told_last():
    report = check(CapsInPlace, X, clauses=("linear", "cotangent"))
    assert [finding.clause for finding in report.causes] == ["cotangent", "linear"]


class Anneals(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        Anneals.factor *= 1.1
        ctx.factor = Anneals.factor
        return x * ctx.factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor


def test_what_changes_from_call_to_call_is_known_to_the_process_that_compiles(monkeypatch):
    monkeypatch.setattr(_isolate, "COMPILING", ("linear",))
    report = check(Anneals, X, clauses=("deterministic", "linear"), isolate="copy")
    assert report["linear"].verdict == "skipped"


def test_a_cause_is_known_to_the_process_that_compiles(monkeypatch):
    monkeypatch.setattr(_isolate, "COMPILING", ("transforms",))
    report = check(BatchesLast, X, clauses=("vmap", "transforms"), isolate="copy")
    assert report["transforms"].cause == "vmap"
    assert not report["vmap"].cause


class Workspace(torch.autograd.Function):
    """Keeps on its ctx a buffer that calls of one shape share."""

    buffers: typing.ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        gate = Workspace.buffers.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype))
        torch.sigmoid(x.detach(), out=gate)
        ctx.gate = gate
        ctx.save_for_backward(x)
        return x * gate

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.gate * (1 + x * (1 - ctx.gate))


def test_a_buffer_that_calls_share_is_told_before_the_attribute_that_holds_it():
    report = check(Workspace, X, clauses=("saved", "state", "hooks"))
    cause = report.causes[0]
    assert cause.clause == "state"
    assert "What forward leaves on its ctx is overwritten by the next call" in cause.detail
    assert "in each call" in cause.hint
    assert [finding.clause for finding in report.causes] == ["state", "saved"]


def test_two_faults_are_two_findings():
    class Both(ChangesCotangent):
        @staticmethod
        def forward(ctx, x, w):
            ctx.kept = x * w
            return ChangesCotangent.forward(ctx, x, w)

        @staticmethod
        def backward(ctx, g):
            found = ChangesCotangent.backward(ctx, g)
            return found[0] + 0 * ctx.kept, found[1]

    report = check(Both, X, X + 1, clauses=("saved", "cotangent", "retain"))
    assert {finding.clause for finding in report.causes} == {"saved", "cotangent"}


def test_no_gradient_is_none_and_not_zero():
    finding = checked("layout")["layout"]
    assert finding.got == "None"
    assert "backward returned no gradient" in finding.detail


class Mean(torch.autograd.Function):
    """Mean for sum, over a dimension of 64."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.size) / ctx.size[0]


class Forgets(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], None


class LosesTail(torch.autograd.Function):
    """A kernel with blocks of four that forgets what is left over."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        found = g * ctx.saved_tensors[0].exp()
        whole = len(found) // 4 * 4
        return torch.cat([found[:whole], 0 * found[whole:]])


class Transposes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T, g.T @ x


class Swaps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * x.sin(), g * x.cos() * w


class SolvesNotTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, right):
        found = torch.linalg.solve(matrix, right)
        ctx.save_for_backward(matrix, found)
        return found

    @staticmethod
    def backward(ctx, g):
        matrix, found = ctx.saved_tensors
        by_right = torch.linalg.solve(matrix, g)
        return -by_right @ found.mT, by_right


class ReadsTheOther(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w, x)
        return (x.square() + 1).log() * w.exp()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * 2 * x / (x.square() + 1) * w.exp(), g * (x.square() + 1).log() * w.exp()


class OneTerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.exp()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class NoCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0].cos()


class ForgetsMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        return g.clone()


class OneRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        return x + b

    @staticmethod
    def backward(ctx, g):
        return g, g[0]


class NotTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(0)


class HalfOfATerm(OneTerm):
    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos() + h * x.exp() / 2


class ScalesChannels(torch.autograd.Function):
    """A weight for each channel, whose gradient is a mean over all others."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.view(1, -1, 1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w.view(1, -1, 1), (g * x).mean((0, 2))


class ForgetsEpsilon(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        return 2 * (x.square() + eps).sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x / x.abs(), None


class KeepsHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].double().cos()


class KeepsFloat16(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y.half())
        return y

    @staticmethod
    def backward(ctx, g):
        y = ctx.saved_tensors[0].to(g)
        return y * (g - (g * y).sum(-1, keepdim=True))


class TakesRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, g):
        found = g.new_zeros(ctx.size)
        found[ctx.saved_tensors[0]] = g
        return found, None


class WithoutConjugate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return q @ k.T / q.shape[1] ** 0.5

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        return g @ k / q.shape[1], g.T @ q / q.shape[1]


class ForgetsTemperature(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, temperature):
        ctx.save_for_backward(x)
        ctx.temperature = temperature
        return (x / temperature).sin()

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] / ctx.temperature).cos(), None


class LossOfKept(torch.autograd.Function):
    """The mean over the targets that are not ignored; over all of them in backward."""

    @staticmethod
    def forward(ctx, scores, target):
        ctx.save_for_backward(scores, target)
        return torch.nn.functional.cross_entropy(scores, target)

    @staticmethod
    def backward(ctx, g):
        scores, target = ctx.saved_tensors
        kept = target >= 0
        hot = torch.nn.functional.one_hot(target.clamp(min=0), scores.shape[1])
        return g * (scores.softmax(1) - hot) * kept[:, None] / len(target), None


class MeanOfMasked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return (x.square() * mask).sum() / mask.sum()

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return g * 2 * x * mask, None


class Squeezes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = (g * (1 - (x @ w).tanh().square())).squeeze()
        by_w = x.mT @ g if g.ndim == 2 else x.sum() * g.expand(len(w), -1)
        return (g @ w.mT).view(x.shape), by_w


class ForgetsDeviation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x.std()).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x * x.std()).cos() * x.std()


class Robust(torch.autograd.Function):
    """A Huber loss that forgets its threshold beyond the threshold."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        size = x.abs()
        return torch.where(size <= limit, x.square() / 2, limit * (size - limit / 2))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x.abs() <= ctx.limit, x, x.sign()), None


class SumsBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.flip(0).cumsum(0).flip(0) - g


Z = torch.complex(X, X.flip(0))
SQUARE = X[:3]
PLANTED = {
    "epsilon": (ForgetsEpsilon, (X.abs() + 0.4, 1e-2), "a small constant (args[1] = 0.01)"),
    "precision": (KeepsHalf, (X,), "reads ctx.saved_tensors[0] in bfloat16, a lower precision"),
    "half": (KeepsFloat16, (X,), "reads ctx.saved_tensors[0] in float16, a lower precision"),
    "repeated": (
        TakesRows,
        (X, torch.tensor([0, 2, 2])),
        "index 2 of 4 along dimension 0, which args[1]",
    ),
    "conjugate": (WithoutConjugate, (Z, Z + 1), "with args[1] where its complex conjugate is"),
    "root": (Scores, (X, X + 1), "expected / sqrt(3), and 3 is the size of dimension 1"),
    "number": (ForgetsTemperature, (X, 2.5), "Got is 2.5 x expected, and args[1] is 2.5."),
    "kept": (
        LossOfKept,
        (torch.randn(7, 5), torch.tensor([0, 2, -100, 1, 4, -100, 3])),
        "Got is 5 / 7 x expected, and 5 of the 7 entries of args[1] are not negative.",
    ),
    "masked": (
        MeanOfMasked,
        (torch.randn(23), torch.arange(23) % 3 != 0),
        "Got is 15 x expected, and 15 of the 23 entries of args[1] are not zero.",
    ),
    "one row": (Squeezes, (X[:1], SQUARE), "It is for two rows, not for one."),
    "statistic": (
        ForgetsDeviation,
        (X,),
        "a multiple of args[0] and a constant: the derivative through its mean, variance",
    ),
    "beyond a threshold": (
        Robust,
        (
            torch.linspace(-2, 2, 12)[
                torch.randperm(12, generator=torch.Generator().manual_seed(1))
            ],
            0.4,
        ),
        "Right but for 10 of 12 entries, where got is expected / 0.4, and args[1] is 0.4.",
    ),
    "exclusive": (SumsBefore, (X,), "The term of the cotangent of output 0 is missing."),
    "mean of two": (
        ScalesChannels,
        (torch.randn(4, 3, 5), torch.randn(3)),
        "Got is expected / 20, and 20 is the size of dimensions 0 and 2 of args[0] (4 x 5).",
    ),
    "mean": (Mean, (torch.randn(64, 3),), "expected / 64, and 64 is the size of dimension 0"),
    "none": (Forgets, (X.clone().requires_grad_(), (X + 1).requires_grad_()), "Got is None"),
    "tail": (LosesTail, (torch.randn(7, dtype=torch.float64),), "the last 3 of 7 along the vector"),
    "transposed": (Transposes, (SQUARE, SQUARE + 1), "Got is expected transposed"),
    "swapped": (Swaps, (X, X + 1), "Got is the gradient of args[1]"),
    "swapped with a constant": (
        Swaps,
        (X.clone().requires_grad_(), X + 1),
        "Got is the gradient of args[1]",
    ),
    "operand": (
        SolvesNotTransposed,
        ((SQUARE + 3 * torch.eye(3)).requires_grad_(), SQUARE[:, :2]),
        "Backward is right with `matrix.T` for `matrix` at ",
    ),
    "operands": (
        ReadsTheOther,
        (X, X + 1),
        "with `ctx.saved_tensors[::-1]` for `ctx.saved_tensors`",
    ),
    "term": (OneTerm, (X,), "The term of output 1 is missing"),
    "mean missing": (ForgetsMean, (X,), "Expected is got less its mean along dimension 1"),
    "one of the rows": (
        OneRow,
        (X, X[0]),
        "sum of cotangent of output 0 along dimension 0; got is its first",
    ),
    "not transposed": (NotTransposed, (X,), "where its transpose is asked for"),
    "half a term": (HalfOfATerm, (X,), "The term of output 1 is 0.5 x what it should be"),
    "cotangent": (NoCotangent, (X,), "without the factor cotangent of output 0"),
}


# Of its many edits each is tried: seconds.
DEAR = [pytest.param("kept", marks=pytest.mark.slow)]
QUICK = [name for name in PLANTED if name != "kept"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", QUICK + DEAR)
def test_the_first_line_says_what_the_numbers_say(name):
    function, inputs, said = PLANTED[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert said in str(finding).splitlines()[0]
    assert finding.entries.startswith("index") or finding.got == "None"


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def inside(text):
    return numbers(re.match(r"\[(?:\.\.\., )?([^].]*(?:\.\d[^].]*)*)", text).group(1))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [*CASES, *QUICK, *DEAR])
def test_the_script_prints_the_numbers_of_the_finding(name):
    if name in PLANTED:
        function, inputs, _ = PLANTED[name]
        finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    else:
        (finding,) = checked(name).causes
    assert "Run by the checker" not in finding.repro
    assert "pullback" not in finding.repro
    found = numbers(printed_by(finding.repro))
    for text in (finding.expected, finding.got):
        if text.startswith("["):
            assert len(inside(text)) >= 3
            for number in inside(text):
                assert any(number == pytest.approx(n, rel=5e-4, abs=1e-9) for n in found)


def test_a_script_that_shows_other_numbers_says_so():
    finding = Finding("form", Verdict.BROKEN, "", "1", "2", repro="print(3.0)\n")
    lead = verify(finding, 5.0).repro.splitlines()[0]
    assert lead == "# Run by the checker, this prints other numbers than the finding's."
    raises = replace(finding, repro="1 / 0\n")
    assert "ended with ZeroDivisionError" in verify(raises, 5.0).repro
    shows = replace(finding, repro="print(1, 2.0)\n")
    assert verify(shows, 5.0) is shows


class HalvesByTwos(torch.autograd.Function):
    """Takes two columns at a time in backward, and leaves out the last of an odd number."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        taken = x.shape[-1] - x.shape[-1] % 2
        slope = torch.zeros_like(x)
        slope[..., :taken] = g[..., :taken] * x[..., :taken].cos()
        return slope


def test_the_mend_of_a_size_of_one_is_the_edit_that_was_found():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    finding = check(HalvesByTwos, x, clauses="sizes")["sizes"]
    assert "size 1 of dimension 1" in finding.detail
    assert finding.hint.startswith("Write `"), finding.hint


class ForgetsCotangentOfOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x**2).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.shape[0] == 1:
            return 2 * x
        return 2 * x * g[..., None]


class SumsSquares(torch.autograd.Function):
    """Gives the second tensor the gradient of the first."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.stack([t * t for t in tensors]).sum(0)

    @staticmethod
    def backward(ctx, g):
        tensors = ctx.saved_tensors
        return 2 * g * tensors[0], *[2 * g * t for t in tensors[:-1]]


class BiasOfOneRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "shapes", "cause", "consequence"),
    [
        (ForgetsCotangentOfOne, [(5, 4)], "sizes", "batch"),
        (BiasOfOneRow, [(5, 4), (4,)], "derivative", "rank"),
        (lambda *every: SumsSquares.apply(*every[0]), [[(3, 2)] * 3], "derivative", "structure"),
    ],
)
def test_what_holds_with_the_edit_of_a_wrong_gradient_is_its_consequence(
    function, shapes, cause, consequence
):
    generator = torch.Generator().manual_seed(5)

    def drawn(shape):
        if isinstance(shape, list):
            return [drawn(one) for one in shape]
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    report = check(function, *map(drawn, shapes), clauses=[cause, consequence])
    assert [finding.clause for finding in report.causes] == [cause]
    assert report[consequence].cause == cause


class LeavesOutCotangent(torch.autograd.Function):
    """One number a sample; what backward computes is not to be read as torch's operations."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum((1, 2))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.tensor((2 * x).tolist(), dtype=x.dtype)


@pytest.fixture
def without_edits(monkeypatch):
    """Its probe, where no edit is found."""
    monkeypatch.setattr("pullback.conformance.cause._wrong_derivative._edit", lambda *_: Right())
    monkeypatch.setattr("pullback.conformance.clauses.linear.edit_of", lambda *_: Right())
    x = torch.randn(3, 2, 2, dtype=torch.float64).requires_grad_()
    return infer_intent(prepare(Subject.of(LeavesOutCotangent), Arguments.of((x,), {}), 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_lost_cotangent_is_the_cause_also_where_time_ends_before_the_last_clauses(
    left, without_edits
):
    chosen = [c for c in CLAUSES if c.id in ("derivative", "linear", "undefined", "double", "vmap")]
    begun = []
    found = run_clauses(
        chosen, without_edits, started=begun.append,
        is_over=lambda: len(begun) == len(chosen) - left,
    )  # fmt: skip
    latest = {finding.clause: finding for finding in found}
    assert begun.pop() == "causes"
    assert len(begun) == len(latest) == len(chosen) - left
    assert "Backward leaves its cotangent out." in latest["linear"].detail
    assert latest["derivative"].cause == "linear"
