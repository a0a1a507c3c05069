"""An edit is found within nested functions, lambdas, comprehensions, helpers, and callables."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from pullback.conformance import check
from pullback.conformance.cause._search import Search
from pullback.conformance.cause._within import with_functions
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._mends import around, changed
from pullback.conformance.source._sources import written

generator = torch.Generator().manual_seed(7)


def drawn(*shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


class Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        h, out = torch.zeros_like(x[0]), []
        for row in x:
            h = a * h + row
            out.append(h)
        ctx.save_for_backward(a, torch.stack(out))
        return torch.stack(out)

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        assert a.ndim == 0

        def step(carry, t):
            return g[t] + carry  # a * carry

        carry, found = torch.zeros_like(g[0]), []
        for t in range(len(g) - 1, -1, -1):
            carry = step(carry, t)
            found.append(carry)
        by_x = torch.stack(found[::-1])
        return by_x, (by_x[1:] * y[:-1]).sum()


class BySlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.nn.functional.softplus(beta * x) / beta

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = lambda v: 1 * torch.sigmoid(v)  # noqa: E731 - ctx.beta * v
        return g * slope(x), None


class Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        parts = enumerate(x.chunk(3, -1))
        return torch.stack([w[k] * part.square().sum(-1) for k, part in parts])

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        parts = x.chunk(3, -1)
        by_x = torch.cat([g[k][:, None] * w[k] * part for k, part in enumerate(parts)], -1)  # 2 *
        by_w = [(g[k] * part.square().sum(-1)).sum() for k, part in enumerate(parts)]
        return by_x, torch.stack(by_w)


class Polynomial(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(x, c)
        return sum(one * x**k for k, one in enumerate(c))

    @staticmethod
    def backward(ctx, g):
        x, c = ctx.saved_tensors
        by_x = sum(k * one * x**k for k, one in enumerate(c) if k)  # k - 1
        return g * by_x, torch.stack([(g * x**k).sum() for k in range(len(c))])


class SoftmaxByClass(torch.autograd.Function):
    @classmethod
    def along(cls, y, g):
        return (y * g).sum(0, keepdim=True)  # of each row

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - SoftmaxByClass.along(y, g))


def one(x, s):
    return two(x, s) * s


def two(x, s):
    return three(x * s)


def three(u):
    return u.sin()  # cos


class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x)
        ctx.s = s
        return torch.sin(x * s)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * one(x, ctx.s), None


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        s = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, s)
        ctx.beta = beta
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s)), None  # ctx.beta *


swish = Swish.apply


def gated(x, w, v):
    return swish(x @ w, 1.5) * (x @ v)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class HalfSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x  # 2 *


def near(x):
    return Exponential.apply(-HalfSquare.apply(x[:, None] - x[None]).sum(-1))


class Lost(torch.autograd.Function):
    """Wrong beyond one edit."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x.exp().cos() + x**3

    @staticmethod
    def backward(ctx, g):
        return g * torch.linspace(1, 2, g.numel(), dtype=g.dtype).reshape(g.shape)


def lost(x):
    return Lost.apply(3 * x).sum()


class Limits:
    def slope(self, x):
        return x.cos().clamp(max=self.most)

    most = 2.0


LIMITS = Limits()


class ByObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 0.5 * g * LIMITS.slope(ctx.saved_tensors[0])


class Layer:
    def undone(self, y, g):
        x = torch.asinh(y)
        return x, g * self.cosine(y)  # of x

    def cosine(self, x):
        return x.cosh()


class ByItsLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layers):
        for _ in layers:
            x = x.sinh()
        ctx.y, ctx.layers = x.detach(), layers
        return x

    @staticmethod
    def backward(ctx, g):
        y = ctx.y
        for layer in reversed(ctx.layers):
            y, g = layer.undone(y, g)
        return g, None


class Angle(torch.autograd.Function):
    """Answers along rotations alone: what forward is beside them is nobody's."""

    @staticmethod
    def forward(ctx, turn):
        ctx.save_for_backward(turn)
        return torch.atan2(turn[:, 1, 0] - turn[:, 0, 1], turn[:, 0, 0] + turn[:, 1, 1])

    @staticmethod
    def backward(ctx, g):
        (turn,) = ctx.saved_tensors
        quarter = turn.new_tensor([[0.0, -1.0], [1.0, 0.0]])
        return g[:, None, None] * (turn @ quarter)  # / 2


def turns(*angles):
    a = torch.tensor(angles, dtype=torch.float64)
    rows = [torch.stack([a.cos(), -a.sin()], -1), torch.stack([a.sin(), a.cos()], -1)]
    return torch.stack(rows, -2).requires_grad_()


class Tangens(torch.autograd.Function):
    """What its backward calls is found whatever the name is that it is called by."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        ctx.held, ctx.left = Slope(), partial(Slope.of, y.detach())
        return y


class Slope:
    @classmethod
    def by_class(cls, y):
        return cls.of(y)

    @staticmethod
    def of(y):
        return 1 + y * y

    def __call__(self, y):
        return self.__of(y)

    def __of(self, y):
        return 1 + y * y


class SlopeModule(torch.nn.Module):
    def forward(self, y):
        return 1 + y * y


@torch.library.custom_op("pullback_tests::slope", mutates_args=())
def slope_operator(y: torch.Tensor) -> torch.Tensor:
    return 1 + y * y


def made_for(y):
    def slope():
        return 1 + y * y

    return slope


def anonymous(rule):
    def called(ctx, g):
        return rule(ctx, g.contiguous())

    return called


SLOPES = {"none": lambda x: 1 + 0 * x, "tanh": lambda y: 1 + y * y}
CALLS = {
    "a method of a class": lambda ctx, y: Slope.by_class(y),
    "an object": lambda ctx, y: ctx.held(y),
    "what is partly given": lambda ctx, y: ctx.left(),
    "a module": lambda ctx, y: SlopeModule()(y),
    "an operator": lambda ctx, y: slope_operator(y),
    "an operator by its name": lambda ctx, y: torch.ops.pullback_tests.slope(y),
    "what was made elsewhere": lambda ctx, y: made_for(y)(),
    "a lambda of a table": lambda ctx, y: SLOPES["tanh"](y),
}


def calls(name):
    def backward(ctx, g):
        return g * CALLS[name](ctx, ctx.saved_tensors[0])

    return backward


@anonymous
def decorated(ctx, g):
    (y,) = ctx.saved_tensors
    return g * (1 + y * y)


def older(ctx, g):
    (y,) = ctx.saved_variables
    return g * (1 + y * y)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "rule",
    [*map(calls, CALLS), decorated, older],
    ids=[*CALLS, "below a decorator", "its older name"],
)
def test_what_is_called_is_found_whatever_it_is_called_by(rule):
    function = type("Calls", (Tangens,), {"backward": staticmethod(rule)})
    finding = check(function, drawn(6), clauses="derivative", gradient="exact")["derivative"]
    assert "`1 - y * y` for `1 + y * y`" in finding.hint, finding.hint


WITHIN = {
    "a method of an object": (ByObject, (drawn(6),), "`g` for `0.5 * g`"),
    "rotations": (Angle, (turns(0.3, -1.0, 2.0, 0.9),), "`(g / 2)[:, None, None]` for"),
    "a nested function": (Recurrence, (drawn(5, 3), drawn()), "`g[t] + carry * a`"),
    "a lambda": (BySlope, (drawn(6), 2.0), "`torch.sigmoid(v * ctx.beta)`"),
    "a comprehension": (Parts, (drawn(4, 6), drawn(3)), "2 * "),
    "a generator": (Polynomial, (drawn(5), drawn(4)), "x**(k - 1)"),
    "a method of the class": (SoftmaxByClass, (drawn(4, 3),), "`(y * g).sum(-1, keepdim=True)`"),
    "three calls deep": (Deep, (drawn(6), 1.7), "`u.cos()`"),
    "a callable": (gated, (drawn(4, 3), drawn(3, 3), drawn(3, 3)), "x * ctx.beta"),
    "a callable of two": (near, (drawn(4, 2),), "`2 * g * x` for `g * x`"),
    "a method of what is held": (ByItsLayers, (drawn(6), [Layer(), Layer()]), "self.cosine(x)"),
}


def test_a_rule_whose_context_holds_a_graph_of_its_own_is_run_with_its_forward():
    class Recomputes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer, *learnt):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y, ctx.learnt = layer(ctx.x), learnt
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, g):
            found = torch.autograd.grad(ctx.y, (ctx.x, *ctx.learnt), g)
            return found[0], None, *[2 * p for p in found[1:]]

    layer = torch.nn.Linear(4, 5).double()
    inputs = (drawn(3, 4), layer, *layer.parameters())
    finding = check(Recomputes, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert "`p` for `2 * p`" in finding.hint, finding.detail


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WITHIN)
def test_an_edit_is_found_within(name):
    function, inputs, said = WITHIN[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert said in finding.hint, finding.hint or finding.detail


def test_of_several_functions_behind_a_callable_the_wrong_one_is_named():
    finding = check(near, drawn(4, 2), clauses="derivative")["derivative"]
    assert "Backward of HalfSquare is right with" in finding.detail


def test_the_function_is_named_where_no_edit_is_found():
    x = torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_()
    finding = check(lost, x, clauses="derivative")["derivative"]
    assert "Lost is wrong by itself: check it alone." in finding.detail


def test_the_functions_behind_a_callable_are_as_they_were():
    own = dict(vars(HalfSquare)), dict(vars(Exponential))
    check(near, drawn(4, 2), clauses=["derivative", "cotangent", "state"])
    assert (dict(vars(HalfSquare)), dict(vars(Exponential))) == own


def test_the_functions_behind_a_callable_are_as_they_were_whatever_thread_ends_last():
    other = changed(HalfSquare, [around(back=lambda method, ctx, g: method(ctx, g))])
    subject = Subject.of(lambda gate: gate() or HalfSquare.apply(drawn(3)))
    started, own = threading.Barrier(2, timeout=10), dict(vars(HalfSquare))
    ends = [threading.Event(), threading.Event()]

    def gate(k):
        started.wait()
        ends[k].wait(10)

    call = with_functions(subject, {HalfSquare: other}).call
    threads = [threading.Thread(target=call, args=(lambda k=k: gate(k),)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for end, thread in zip(ends, threads, strict=True):
        end.set()
        thread.join()
    assert dict(vars(HalfSquare)) == own


def test_of_what_fills_a_context_only_what_it_leaves_there_is_edited():
    rule = SimpleNamespace(does="fill", called_by_forward=lambda: ())
    found = Search(rule, written(Recurrence.forward), 0, None, None).expressions
    texts = {e.text for e in found}
    assert "torch.stack(out)" in texts  # saved
    assert "torch.zeros_like(x[0])" not in texts


class RobustSigmoid(torch.autograd.Function):
    """The slope is saved by forward, twice as large where it is stretched."""

    @staticmethod
    def forward(ctx, x, sigma=1.0):
        y = (x if sigma == 1.0 else sigma * x).sigmoid()
        slope = y * (1.0 - y) if sigma == 1.0 else 2.0 * sigma * y * (1.0 - y)
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (slope,) = ctx.saved_tensors
        by_x = cotangent * slope
        return by_x, None


def test_a_number_that_is_written_elsewhere_is_likelier_than_one_that_backward_lacks():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    finding = check(RobustSigmoid, x, 0.7, clauses="derivative")["derivative"]
    assert "with `sigma` for `2.0 * sigma`" in finding.detail, finding.detail
