"""`check` on Functions of the tape: right ones pass, wrong ones are caught, clause by clause."""

import asyncio

import pytest
import torch

from pullback import check
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.report import Verdict
from pullback.tape import Function, Variable, stack


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_variables
        return g * y * y, g * x * y * 2


class Split(Function):
    @staticmethod
    def forward(pair, factor):
        return pair[0] * factor, pair[1] * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, a, b):
        return stack([a * ctx.factor, b * ctx.factor]), None


class Say(Function):
    @staticmethod
    def forward(ctx, messages):
        texts = [message["content"] for message in messages]
        ctx.count = len(texts)
        return Variable(" ".join(text.data for text in texts), role="said")

    @staticmethod
    async def backward(ctx, feedback):
        await asyncio.sleep(0)
        return [{"content": Variable(f"{i}: {feedback.data}")} for i in range(ctx.count)]


def variables(*values):
    return [Variable(value, requires_grad=True) for value in values]


RIGHT = [
    (Product, variables(2.0, 3.0)),
    (Product, variables(torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double())),
    (Split, [Variable([1.0, 2.0], requires_grad=True), 3.0]),
    (Say, [[{"content": text} for text in variables("a", "b")]]),
]


@pytest.mark.parametrize(("function", "args"), RIGHT, ids=["numbers", "tensors", "list", "text"])
def test_a_right_function_passes(function, args):
    report = check(function, *args)
    assert report.ok, str(report)
    assert report["mutation"].verdict is Verdict.HOLDS
    assert report["leak"].verdict is Verdict.HOLDS
    assert report["compile"].verdict is Verdict.SKIPPED


def test_the_numbers_are_judged_and_texts_are_skipped():
    assert check(Product.apply, *variables(2.0, 3.0))["derivative"].verdict is Verdict.HOLDS
    assert check(Say, *RIGHT[3][1])["derivative"].verdict is Verdict.SKIPPED
    assert check(Say, *RIGHT[3][1])["structure"].verdict is Verdict.HOLDS


def wrong(forward=Product.forward, backward=Product.backward, **attributes):
    rules = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Wrong", (Function,), {**rules, **attributes})


KEPT = []
STORE = {}


def _keep(ctx, x, y):
    out = x * y * y
    ctx.save_for_backward(x, y, out)
    return out


def _keeps_its_output(ctx, g):
    x, y, out = ctx.saved_variables
    KEPT.append(out)
    return g * y * y, g * x * y * 2


def _mutates(ctx, x, y):
    ctx.save_for_backward(x, y)
    out = x * y * y
    x.data = 9.0
    return out


def _global(ctx, x, y):
    STORE["xy"] = (x.detach(), y.detach())
    return x * y * y


def _from_global(ctx, g):
    x, y = STORE["xy"]
    return g * y * y, g * x * y * 2


def _holds_input(ctx, x, y):
    ctx.hidden = (lambda: x.data, lambda: y.data)
    return x * y * y


def _from_held(ctx, g):
    x, y = (read() for read in ctx.hidden)
    return g * y * y, g * x * y * 2


def _sometimes(ctx, g):
    x, y = ctx.saved_variables
    both = all(ctx.needs_input_grad)
    return g * y * y * (1 if both else 2), g * x * y * 2


def _changes_seed(ctx, g):
    x, y = ctx.saved_variables
    result = g * y * y, g * x * y * 2
    g._data = 0.0
    return result


COUNT = [0]


def _counts(ctx, g):
    COUNT[0] += 1
    x, y = ctx.saved_variables
    return g * y * y * COUNT[0], g * x * y * 2


def _swallows(ctx, messages):
    return Variable(" ".join(message["content"].data for message in messages))


WRONG = [
    ("derivative", wrong(backward=lambda ctx, g: (g, g)), RIGHT[0][1]),
    ("linear", wrong(backward=lambda ctx, g: (g * g, g * g)), RIGHT[0][1]),
    ("form", wrong(backward=lambda ctx, g: g), RIGHT[0][1]),
    ("form", wrong(backward=lambda ctx, g: (Variable("text"), g)), RIGHT[0][1]),
    ("mutation", wrong(forward=_mutates), RIGHT[0][1]),
    ("mutation", wrong(backward=_changes_seed), RIGHT[0][1]),
    ("leak", wrong(forward=_keep, backward=_keeps_its_output), RIGHT[0][1]),
    ("state", wrong(forward=_global, backward=_from_global), RIGHT[0][1]),
    ("stale", wrong(forward=_holds_input, backward=_from_held), RIGHT[0][1]),
    ("needs-input-grad", wrong(backward=_sometimes), RIGHT[0][1]),
    ("retain", wrong(backward=_counts), RIGHT[0][1]),
    ("deterministic", wrong(backward=_counts), RIGHT[0][1]),
    ("structure", wrong(forward=_swallows, backward=lambda ctx, g: None), RIGHT[3][1]),
    ("transforms", wrong(jvp=staticmethod(lambda ctx, a, b: a)), RIGHT[0][1]),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "function", "args"), WRONG, ids=lambda value: None)
def test_a_wrong_function_is_caught(clause, function, args):
    finding = check(function, *args, clauses=clause)[clause]
    assert finding.verdict is Verdict.BROKEN, str(finding)


def test_products_of_single_outputs_that_do_not_add_up():
    class Odd(Split):
        @staticmethod
        def backward(ctx, a, b):
            both = (a.data != 0) and (b.data != 0)
            return stack([a * ctx.factor * (2 if both else 1), b * ctx.factor]), None

    assert check(Odd, *RIGHT[2][1], clauses="undefined")["undefined"].verdict is Verdict.BROKEN


def test_what_backward_reads_as_plain_data_is_lacking():
    class Plain(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.twice = x.data * 2
            return Variable(x.data**2)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.twice

    report = check(Plain, *variables(3.0))
    assert report.ok, str(report)
    assert report["saved"].verdict is Verdict.LACKING
    assert "ctx.twice" in report["saved"].detail


def test_inputs_that_cannot_be_checked():
    with pytest.raises(ArgumentTypeError, match="no Variable"):
        check(Product, 1.0, 2.0)
    with pytest.raises(ArgumentError, match="other values than tensors"):
        check(Product, *variables(1.0, 2.0), isolate=True)
    assert check(Product, Variable(1.0), Variable(2.0), clauses="derivative").ok
