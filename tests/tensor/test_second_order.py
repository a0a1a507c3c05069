"""Second order is torch's own where torch is right: no history, no kink, no other call matters."""

import contextlib
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
import torch
from tests.tensor.both import both, refusal, right_or_refused, second
from tests.tensor.functions import (
    KINKED,
    Dropout,
    Eigenvalues,
    Guided,
    Normalised,
    Sigmoid,
    SpecialSpmm,
    Square,
    Through,
    spike,
    stopped,
)
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import UnsupportedError

func = torch.func
X = torch.tensor([0.6, -1.1, 1.4], dtype=torch.float64)
close = torch.testing.assert_close


# A tensor that is no argument.


@both
@pytest.mark.parametrize("place", ["attribute", "saved", "closure"])
def test_a_parameter_that_is_no_argument_has_its_share_of_a_gradient_penalty(way, place):
    def penalised(make):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 4, bias=False, dtype=torch.float64)
        F = make(Through.of(place, module))
        x = X.expand(2, 3).clone().requires_grad_()
        y = F.apply(x, module)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        return module.weight.grad, x.grad

    close(penalised(way), penalised(lambda bare: bare))


@both
def test_a_learnt_slope_in_a_closure_has_its_meta_gradient(way):
    def meta(make):
        slope = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        F = make(spike(slope))
        v = X.clone().requires_grad_()
        (step,) = torch.autograd.grad((F.apply(v) * X.cos()).sum(), v, create_graph=True)
        return torch.autograd.grad((v - 0.3 * step).square().sum(), (slope, v))

    bare = meta(lambda bare: bare)
    assert bare[0] != 0
    close(meta(lambda bare: way(bare, gradient="surrogate")), bare)


# Kinks.


@both
@pytest.mark.parametrize("order", ["kink first", "kink last"])
@pytest.mark.parametrize("name", KINKED)
def test_at_a_kink_and_away_from_it_in_both_orders(way, name, order):
    make, kink, away = KINKED[name]
    bare = make()
    F = way(make(), gradient=getattr(bare, "gradient", "exact"))
    for x in (kink, away, kink) if order == "kink first" else (away, kink, away):
        close(second(F.apply, x), second(bare.apply, x))


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize("name", KINKED)
def test_forward_mode_over_reverse_at_a_kink(way, name):
    make, kink, away = KINKED[name]
    bare = make()
    F = way(make(), gradient=getattr(bare, "gradient", "exact"))
    for x in (kink, away):
        want = second(bare.apply, x)[-1]
        weights = torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype)

        def gradient(x, weights=weights):
            return func.grad(lambda x: (weights * F.apply(x) + F.apply(x) ** 2 / 2).sum())(x)

        jacobian = func.jacrev(gradient)(x)
        close(jacobian.T @ torch.linspace(1, 2, x.numel(), dtype=x.dtype), want)


# What is kept, and how often rules run.


@both
def test_a_saved_output_is_enough_for_create_graph(way):
    F = way(Sigmoid)
    x = X.clone().requires_grad_()
    hidden = x * 2
    y = F.apply(hidden)
    del hidden
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    s = torch.sigmoid(2 * X)
    close(first, 2 * s * (1 - s))
    (twice,) = torch.autograd.grad(first.sum(), x)
    close(twice, 4 * s * (1 - s) * (1 - 2 * s))


def masked(place, calls):
    class Positive(torch.autograd.Function):
        """Keeps of its input a mask alone: flags have no derivative."""

        @staticmethod
        def forward(ctx, x):
            next(calls)
            if place == "saved":
                ctx.save_for_backward(x > 0)
            else:
                ctx.masks = {"positive": x > 0}
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, g):
            return g * (ctx.saved_tensors[0] if place == "saved" else ctx.masks["positive"])

    return Positive


@both
@pytest.mark.parametrize("place", ["saved", "attribute"])
def test_a_mask_is_enough_for_a_second_derivative(way, place):
    calls = itertools.count()
    F = way(masked(place, calls))
    x = X.clone().requires_grad_()
    hidden = x * 2
    y = F.apply(hidden)
    del hidden
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(first.sum(), x)
    close(twice, 8 * (X > 0).to(X))
    assert next(calls) == 1, "nothing runs again"
    close(func.hessian(lambda x: F.apply(x).square().sum())(X), torch.diag(2 * (X > 0).to(X)))


class Scaled(torch.autograd.Function):
    """Keeps what forward has computed, and reshapes the places that it is given."""

    @staticmethod
    def forward(ctx, x, places):
        scale = x.exp()
        ctx.save_for_backward(x, scale, places)
        return (scale * x)[places.view(-1)]

    @staticmethod
    def backward(ctx, g):
        x, scale, places = ctx.saved_tensors
        spread = torch.zeros_like(x).index_add(0, places.view(-1), g)
        return spread * scale * (1 + x), None


@both
def test_whole_numbers_in_another_shape_are_no_bits(way):
    apply, places = way(Scaled).apply, torch.tensor([[0, 2], [1, 1]])
    close(
        func.hessian(lambda x: apply(x, places).square().sum())(X),
        func.hessian(lambda x: (x.exp() * x)[places.view(-1)].square().sum())(X),
    )
    close(
        second(lambda x: apply(x, places), X),
        second(lambda x: (x.exp() * x)[places.view(-1)], X),
    )


def slope(x: torch.Tensor) -> torch.Tensor:
    return (1 + x) * x.exp()


def product_apart(x: torch.Tensor) -> torch.Tensor:
    return x.detach().exp() * x


@pytest.mark.filterwarnings("ignore:`torch.jit")
@both
def test_a_script_in_backward_is_differentiated_by_autograd(way):
    script = torch.jit.script(slope)  # which calls no function of torch that a mode would see

    class Scripted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x.exp()

        @staticmethod
        def backward(ctx, g):
            return g * script(*ctx.saved_tensors)

    hidden = X.clone().requires_grad_()
    value = way(Scripted).apply(2 * hidden)  # the argument is gone when backward runs
    (first,) = torch.autograd.grad(value.sum(), hidden, create_graph=True)
    (twice,) = torch.autograd.grad(first.sum(), hidden)
    close(twice, 4 * (2 + 2 * X) * (2 * X).exp())
    close(second(way(Scripted).apply, X), second(lambda x: x * x.exp(), X))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@both
def test_what_a_script_has_computed_in_forward_is_refused(way):
    script = torch.jit.script(product_apart)

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.value = script(x)
            ctx.save_for_backward(x)
            return ctx.value.square() / 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.value * slope(x)

    assert refusal(lambda: second(way(Keeping).apply, X)) == "UnsupportedError"


@both
def test_a_stack_that_saves_its_outputs_keeps_no_input_alive(way):
    def alive(F):
        h, seen = X.clone().requires_grad_(), []
        for _ in range(8):
            h = h * 2  # keeps nothing itself
            seen.append(weakref.ref(h))
            h = F.apply(h)
        return sum(reference() is not None for reference in seen), h

    assert alive(Square)[0] == 8, "the measure sees what torch keeps"
    assert alive(Sigmoid)[0] == 0
    assert alive(way(Square))[0] == 8
    assert alive(way(Sigmoid))[0] == 0


def selecting(kept, base=torch.autograd.Function, run=list):
    """Saves of its input where that is positive, or in which order it is; notes what runs."""

    class Selecting(base):
        @staticmethod
        def forward(ctx, x):
            run("forward")
            ordered = x.sort(descending=True)
            positive = x > 0
            ctx.save_for_backward(positive if kept == "saved mask" else ordered.indices)
            if kept == "mask on ctx":
                ctx.save_for_backward()
                ctx.positive = positive
            return x * positive if "mask" in kept else ordered.values

        @staticmethod
        def backward(ctx, g):
            run("backward")
            if kept == "mask on ctx":
                return g * ctx.positive
            (saved,) = ctx.saved_tensors
            if kept == "saved mask":
                return g * saved
            if kept == "scattered":
                return torch.zeros_like(g).scatter_(0, saved, g)
            if kept == "put":
                given = torch.zeros_like(g)
                given[saved] = g
                return given
            return g[saved.argsort()] if kept == "read" else g.take(saved.argsort())

    return Selecting


@pytest.mark.parametrize("kept", ["saved mask", "mask on ctx"])
def test_a_stack_that_saves_masks_keeps_no_input_alive(kept):
    def alive(F):
        h, seen = X.clone().requires_grad_(), []
        for _ in range(8):
            h = h + 1
            seen.append(weakref.ref(h))
            h = F.apply(h)
        return sum(reference() is not None for reference in seen), h

    assert alive(selecting(kept))[0] == 0, "torch keeps no input"
    assert alive(selecting(kept, pullback.Function))[0] == 0


@pytest.mark.parametrize("kept", ["saved mask", "mask on ctx", "scattered", "put", "read", "taken"])
def test_a_second_derivative_by_masks_or_indices_runs_what_torch_runs(kept):
    x = X.clone().requires_grad_()
    found, ran = [], ([], [])
    for base, run in zip((torch.autograd.Function, pullback.Function), ran, strict=True):
        y = selecting(kept, base, run.append).apply(x * 2)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.sin().sum(), x)[0])
    close(found[1], found[0])
    assert ran[1] == ran[0]


def counted():
    calls = {"forward": itertools.count(), "backward": itertools.count()}

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            next(calls["forward"])
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            next(calls["backward"])
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return Cube, calls


def first(f):
    x = X.clone().requires_grad_()
    f(x).sum().backward()


def third(f):
    x = X.clone().requires_grad_()
    for _ in range(3):
        (y,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.autograd.grad(y.sum(), x)


@both
@pytest.mark.parametrize("ask", [first, lambda f: second(f, X), third])
def test_rules_run_as_often_as_in_torch(way, ask):
    bare, wanted = counted()
    ask(bare.apply)
    made, calls = counted()
    ask(way(made).apply)  # first use included
    assert [next(count) for count in calls.values()] == [next(n) for n in wanted.values()]


@both
@pytest.mark.parametrize("kind", ["constant", "parameter"])
def test_a_tensor_outside_costs_one_run_of_each_rule_more(way, kind):
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=kind == "parameter")
    made, calls = counted()
    pull = made.backward
    made.backward = staticmethod(lambda ctx, g: slope * pull(ctx, g))
    x = X.clone().requires_grad_()
    (y,) = torch.autograd.grad(way(made).apply(x).sum(), x, create_graph=True)
    close(torch.autograd.grad(y.sum(), x)[0], 6 * X * 0.3)
    assert [next(count) for count in calls.values()] == [2, 2]


@both
@pytest.mark.parametrize("kept", ["input", "square"])
def test_a_statistic_that_backward_reads_and_then_writes_gets_no_history(way, kept):
    statistic = torch.ones((), dtype=torch.float64)

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x if kept == "input" else x**2)
            return x**3

        @staticmethod
        def backward(ctx, g):
            statistic.copy_(0.5 * statistic + 0.5 * g.mean())
            (saved,) = ctx.saved_tensors
            return 3 * (saved**2 if kept == "input" else saved) * g

    x = X.clone().requires_grad_()
    loss = (way(Cube).apply(x) ** 2).sum()  # x^6, so that the cotangent 2 x^3 has a history
    (y,) = torch.autograd.grad(loss, x, create_graph=True)
    close(statistic, 0.5 + (X**3).mean())
    assert not statistic.requires_grad
    close(torch.autograd.grad(y.sum(), x)[0], 30 * X**4)


# A stop-gradient that the author wrote in backward.


@both
@pytest.mark.parametrize("how", ["no_grad", "detach", "data", "item", "torch.tensor"])
def test_a_stop_gradient_in_backward_is_torchs_or_refused(way, how):
    # What leaves torch states no stop-gradient: there 0 is as wrong as any other number.
    stated = how in ("no_grad", "detach", "data")
    want = second(stopped(how).apply if stated else torch.square, X)
    F = way(stopped(how))
    right_or_refused(lambda: second(F.apply, X), want, UnsupportedError)
    x = X.clone().requires_grad_()
    F.apply(x).sum().backward()
    close(x.grad, 2 * X)  # first order is never refused

    def hessian(x):
        return func.hessian(lambda x: F.apply(x).sum())(x)

    curvature = torch.zeros(3, 3, dtype=X.dtype) if stated else 2 * torch.eye(3, dtype=X.dtype)
    right_or_refused(lambda: hessian(X), curvature, UnsupportedError)


@both
def test_detach_for_a_mask_alone_is_answered(way):
    bare = stopped("mask")
    close(second(way(stopped("mask")).apply, X), second(bare.apply, X))


# Nothing depends on the order of calls, or on the values of the first.


@both
@pytest.mark.parametrize("question", ["jvp", "hessian"])
def test_guided_backpropagation_is_judged_by_its_own_alpha(way, question):
    def verdict(F, alpha):
        ask = {
            "jvp": lambda: func.jvp(lambda x: F.apply(x, alpha), (X,), (X.cos(),)),
            "hessian": lambda: func.hessian(lambda x: F.apply(x, alpha).square().sum())(X),
        }[question]
        return refusal(ask)

    alone = verdict(way(Guided()), 0.0)
    assert alone is not None, "backward is not linear"
    F = way(Guided())
    assert [verdict(F, 1.0), verdict(F, 0.0)] == [verdict(way(Guided()), 1.0), alone]
    F = way(Guided())
    assert [verdict(F, 0.0), verdict(F, 1.0)] == [alone, verdict(way(Guided()), 1.0)]


def scaled_by_numpy():
    class Scaled(torch.autograd.Function):
        """w * x**2, its derivative from numpy: only where w is not 0 a fault shows."""

        @staticmethod
        def forward(ctx, x, w):
            ctx.slope = torch.from_numpy(2 * x.detach().numpy())
            ctx.save_for_backward(x, w)
            return w * x * x

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            by_w = x * x * g if ctx.needs_input_grad[1] else None
            return w * ctx.slope * g, by_w

    return Scaled


@both
@pytest.mark.parametrize("first_w", [0.0, 1.0])
def test_zero_weights_at_first_use_say_nothing_of_others(way, first_w):
    F = way(scaled_by_numpy())
    for weight in (first_w, 1.0, 0.0, 2.0):
        w = torch.full_like(X, weight)
        want = second(lambda x, w: w * x * x, X, w)
        right_or_refused(lambda w=w: second(F.apply, X, w), want)


@both
@pytest.mark.parametrize("first_use", [(True, False), (False, True), (True, True)])
def test_other_needs_input_grad_are_other_calls(way, first_use):
    F = way(scaled_by_numpy())
    values = (X, X.cos())
    for needs in (first_use, (True, False), (False, True), (True, True)):

        def ask(f, needs=needs):
            args = [v.clone().requires_grad_(n) for v, n in zip(values, needs, strict=True)]
            wanted = [a for a in args if a.requires_grad]
            gradients = torch.autograd.grad(f(*args).square().sum(), wanted, create_graph=True)
            return torch.autograd.grad(sum((g * g).sum() for g in gradients), wanted)

        right_or_refused(lambda ask=ask: ask(F.apply), ask(lambda x, w: w * x * x))


@both
@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_that_the_caller_holds_does_not_hang(way, kind):
    lock = kind()
    again = contextlib.nullcontext() if kind is threading.Lock else lock

    class Guarded(torch.autograd.Function):
        held = lock

        @staticmethod
        def forward(ctx, x):
            with again:
                ctx.save_for_backward(x)
                return x**3

        @staticmethod
        def backward(ctx, g):
            with again:
                return 3 * ctx.saved_tensors[0] ** 2 * g

    F = way(Guarded)
    answered = []

    def ask():
        with lock:
            close(second(F.apply, X), second(lambda x: x**3, X))
            func.hessian(lambda x: F.apply(x).sum())(X)
            func.jvp(F.apply, (X,), (X,))
        answered.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert answered


# What rules write outside, and what they draw.


@both
@pytest.mark.parametrize("ask", ["eval", "first", "second", "third"])
def test_running_statistics_of_a_module_are_updated_as_often_as_in_torch(way, ask):
    def updated(make):
        module = torch.nn.BatchNorm1d(3, affine=False, dtype=torch.float64)
        F = make(Normalised)
        x = torch.outer(torch.arange(1.0, 5.0, dtype=X.dtype), X).requires_grad_(ask != "eval")
        y = F.apply(x, module)
        total = (y**3).sum()
        for _ in range({"eval": 0, "first": 1, "second": 2, "third": 3}[ask]):
            (g,) = torch.autograd.grad(total, x, create_graph=True)
            total = g.square().sum()
        return module.running_mean, module.num_batches_tracked, total.detach()

    close(updated(way), updated(lambda bare: bare))


@both
def test_running_statistics_are_updated_once_under_a_transform(way):
    module = torch.nn.BatchNorm1d(3, affine=False, dtype=torch.float64)
    x = torch.outer(torch.arange(1.0, 5.0, dtype=X.dtype), X)
    want = (0.1 * x.mean(0), torch.tensor(1))
    F = way(Normalised)
    for transform in (func.jacrev, lambda f: lambda x: func.jvp(f, (x,), (x,))):
        module.reset_running_stats()
        transform(lambda x: F.apply(x, module).sum())(x)
        close((module.running_mean, module.num_batches_tracked), want)


@both
@pytest.mark.parametrize("eval_first", [True, False])
def test_dropout_out_of_training_says_nothing_of_training(way, eval_first):
    F = way(Dropout)
    x = torch.linspace(0.5, 1.5, 40, dtype=torch.float64)
    if eval_first:
        assert not second(lambda x: F.apply(x, 0.5, False), x)[-1].isnan().any()
        close(func.jvp(lambda x: F.apply(x, 0.5, False), (x,), (x,)), (x * x, 2 * x * x))
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        y = F.apply(leaf, 0.5, True)
        mask = (y / x**2).detach()
        assert 0 < (mask == 0).sum() < 40
        (g,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        close(torch.autograd.grad(g.sum(), leaf)[0], 2 * mask)
        value, tangent = func.jvp(lambda x: F.apply(x, 0.5, True), (x,), (x,))
        close(tangent, 2 * value)


@both
def test_forward_mode_is_of_the_numbers_drawn(way):
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            noise = torch.randn_like(x)
            ctx.save_for_backward(noise)
            return x * noise

        @staticmethod
        def backward(ctx, g):
            return ctx.saved_tensors[0] * g

    F = way(Noisy)
    torch.manual_seed(3)
    value, tangent = func.jvp(F.apply, (X,), (X.cos(),))
    following = torch.rand(())
    torch.manual_seed(3)
    noise = torch.randn_like(X)
    close((value, tangent), (X * noise, X.cos() * noise))
    assert following == torch.rand(()), "the generator stands where one run leaves it"


# Work outside of torch, and residuals that torch loses.


@both
def test_scratch_memory_outside_is_right_or_refused_item_by_item(way):
    scratch = np.zeros(3)

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            np.multiply(x.detach().numpy(), 2, out=scratch)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return torch.from_numpy(scratch.copy()) * g

    F = way(Square, batching="loop")
    rows = torch.stack([X, 2 * X, 3 * X])
    leaf = X.clone().requires_grad_()
    F.apply(leaf).sum().backward()
    close(leaf.grad, 2 * X)
    gradient = func.grad(lambda x: F.apply(x).sum())
    right_or_refused(lambda: func.vmap(gradient)(rows), 2 * rows)
    total = func.grad(lambda rows: func.vmap(F.apply)(rows).sum())
    right_or_refused(lambda: total(rows), 2 * rows)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch 2.11
@both
def test_a_sparse_product_has_its_mixed_second_derivative_or_refuses(way):
    indices = torch.tensor([[0, 0, 1, 2], [0, 2, 1, 0]])
    values, dense = X.new_tensor([0.5, -1.0, 2.0, 0.3]), torch.outer(X, X.cos())

    def formula(values, dense):
        return (
            (torch.zeros(3, 3, dtype=X.dtype).index_put(tuple(indices), values) @ dense).sin().sum()
        )

    def product(values, dense):
        return way(SpecialSpmm).apply(indices, values, (3, 3), dense).sin().sum()

    for argnums in (0, 1, (0, 1)):
        want = func.hessian(formula, argnums)(values, dense)
        right_or_refused(lambda n=argnums: func.hessian(product, n)(values, dense), want)
    want = second(formula, values, dense)
    right_or_refused(lambda: second(product, values, dense), want)
    close(func.grad(product, (0, 1))(values, dense), func.grad(formula, (0, 1))(values, dense))


@both
@pytest.mark.parametrize("saves", ["vectors", "matrix"])
def test_eigenvalues_of_a_symmetric_matrix_have_their_second_derivative(way, saves):
    matrix = torch.tensor([[2.0, 0.4, -0.3], [0.4, -1.0, 0.7], [-0.3, 0.7, 0.5]], dtype=X.dtype)

    alive = []  # of what forward does not save, a second derivative needs the inputs

    def of(values):
        def of_the_symmetric_part(m):
            alive.append((m + m.T) / 2)
            return values(alive[-1])

        return of_the_symmetric_part

    F = way(Eigenvalues(saves))
    close(second(of(F.apply), matrix), second(of(torch.linalg.eigvalsh), matrix))
    weighted = [lambda m, f=f: (of(f)(m) ** 3).sum() for f in (F.apply, torch.linalg.eigvalsh)]
    close(func.hessian(weighted[0])(matrix), func.hessian(weighted[1])(matrix))


def test_a_pair_of_custom_vjp_is_plain_too():
    forwards, backwards = itertools.count(), itertools.count()

    @pullback.custom_vjp
    def squared_relu(x):
        return torch.relu(x) ** 2

    def forward(x):
        next(forwards)
        return torch.relu(x) ** 2, x

    def backward(x, g):
        next(backwards)
        return 2 * torch.relu(x) * g

    squared_relu.defvjp(forward, backward)
    make, kink, _ = KINKED["squared relu"]
    close(second(squared_relu, kink), second(make().apply, kink))
    # The cotangent depends on x, so that torch runs backward once more for the second derivative.
    assert (next(forwards), next(backwards)) == (1, 2)


class Holding(torch.autograd.Function):
    """The exponential, which holds its output as an attribute."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.y


class Computing(Holding):
    """The same, which saves what it computes of its input once more."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return x.exp()


@both
def test_an_output_on_the_context_is_the_one_that_was_returned(way):
    x = X.clone().requires_grad_()
    y = way(Holding).apply(x)
    (first,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)  # 2 y * y
    (part,) = torch.autograd.grad(first.sum(), y, retain_graph=True)
    torch.testing.assert_close(part, 4 * y)
    seen = []
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(seen, [4 * y])


def test_what_shares_the_memory_of_an_output_has_its_history_where_the_input_is_gone():
    x = X.clone().requires_grad_()
    y = pullback.complete(Holding).apply(2 * x)  # nobody holds the input
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], 4 * (2 * X).exp())


def test_the_first_gradient_is_answered_where_an_input_is_gone_and_the_output_is_not():
    x = X.clone().requires_grad_()
    y = pullback.complete(Computing).apply(2 * x)  # nobody holds the input
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(first, 2 * y)
    with pytest.raises(UnsupportedError, match="one that it did not save is gone"):
        torch.autograd.grad(first.sum(), x)


class Waiting(torch.autograd.Function):
    """The exponential, whose backward waits in another thread until it may go on."""

    entered: threading.Event
    goes_on: threading.Event

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(1 * y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        if threading.current_thread() is not threading.main_thread():
            Waiting.entered.set()
            Waiting.goes_on.wait(10)
        (y,) = ctx.saved_tensors
        return cotangent * y


@both
@pytest.mark.parametrize("read_once", [False, True])
def test_two_threads_that_differentiate_one_graph_again_do_not_meet(way, read_once):
    Waiting.entered, Waiting.goes_on = threading.Event(), threading.Event()
    x = X.clone().requires_grad_()
    apply = way(Waiting).apply
    y = checkpoint(apply, x, use_reentrant=False) if read_once else apply(x)
    answers = []

    def work():
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        answers.append(torch.autograd.grad((first**2).sum(), x, retain_graph=True)[0])

    thread = threading.Thread(target=work)
    thread.start()
    Waiting.entered.wait(10)
    work()
    Waiting.goes_on.set()
    thread.join()
    torch.testing.assert_close(answers, [2 * X.exp() ** 2] * 2)


# What forward has computed, of which backward reads no more than steps.


class Clipped(torch.autograd.Function):
    """A quantiser that keeps its quotient, whole numbers and a range that an observer moves."""

    runs = 0

    @staticmethod
    def forward(ctx, x, observer):
        Clipped.runs += 1
        observer.high = torch.maximum(observer.high, x.detach().max())
        quotient = x / observer.high
        ctx.save_for_backward(quotient, x)
        ctx.whole = (8 * quotient).round().to(torch.int8)
        return ctx.whole * observer.high / 8

    @staticmethod
    def backward(ctx, g):
        quotient, x = ctx.saved_tensors
        inside = (quotient.abs() < 0.9) & (ctx.whole > -4)
        return torch.where(inside, g * x.cos(), torch.zeros_like(quotient)), None


def clipped(F, ask):
    class Observer:
        high = torch.tensor(0.1, dtype=torch.float64)

    observer, x = Observer(), X.clone().requires_grad_()
    Clipped.runs = 0
    value = ask(lambda x: (F.apply(x * x - 0.5, observer) ** 2).sum(), x)
    return value, observer.high, Clipped.runs


def penalised(f, x):
    return func.grad(f)(x).square().sum()


def penalty(f, x):
    (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), x)


@both
def test_what_backward_reads_in_steps_alone_needs_no_second_run(way):
    close(clipped(way(Clipped), penalty), clipped(Clipped, penalty))
    # Below a transform too, where torch takes no such Function.
    below = clipped(way(Clipped), lambda f, x: (func.grad(lambda x: penalised(f, x))(x),))
    close(below[0], clipped(Clipped, penalty)[0])


@both
@pytest.mark.parametrize("kept", ["floats", "whole numbers", "bits"])
def test_what_backward_reads_more_of_has_its_history(way, kept):
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            double = 2 * x
            kinds = {"floats": double, "whole numbers": x.long(), "bits": double.view(torch.int64)}
            ctx.save_for_backward(kinds[kept])
            return x * x

        @staticmethod
        def backward(ctx, g):
            (found,) = ctx.saved_tensors
            if kept == "bits":
                found = found.view(torch.float64)
            return g * found.to(g.dtype)

    def second_at(F):
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.apply(x).sum() + x.sum() * 0, x, create_graph=True)
        return torch.autograd.grad(slope.sum() + (x * x).sum(), x)[0]

    if kept == "bits":
        with pytest.raises(UnsupportedError):
            second_at(way(Kept))
        return
    close(second_at(way(Kept)), 2 * X + (2 if kept == "floats" else 0))


class Rounded(torch.autograd.Function):
    """Square, which keeps its argument in a dtype of 8 bits."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.to(torch.float8_e4m3fn))
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0].to(g.dtype)


class RoundedBack(torch.autograd.Function):
    """Square, whose gradient is rounded to 8 bits."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return (2 * g * ctx.saved_tensors[0]).to(torch.float8_e5m2).to(g.dtype)


@both
def test_a_derivative_through_a_dtype_of_8_bits_is_refused(way):
    """Torch rounds the derivative with it: 1,000 was 448 in silence, and other in forward mode."""
    f, x = (lambda x: 500 * way(Rounded).apply(x).sum()), torch.ones(2)
    (slope,) = torch.autograd.grad(f(leaf := x.clone().requires_grad_()), leaf, create_graph=True)
    for ask in (lambda: torch.autograd.grad(slope.sum(), leaf), lambda: func.hessian(f)(x)):
        with pytest.raises(UnsupportedError, match="floating dtype of 8 bits"):
            ask()
    close(func.jvp(f, (x,), (x,))[1], torch.tensor(2000.0))  # nothing is rounded on its way
    with pytest.raises(UnsupportedError, match="not linear"):
        func.jvp(way(RoundedBack).apply, (x,), (500 * x,))


@both
def test_an_undefined_cotangent_is_none_again_where_its_author_wants_that(way):
    seen, runs = [], itertools.count()

    class Step(torch.autograd.Function):
        """A neuron's spike and membrane, of which the last spike alone is read."""

        @staticmethod
        def forward(ctx, x):
            next(runs)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x.tanh())
            return (x > 0).to(x.dtype), x / 2

        @staticmethod
        def backward(ctx, spike, membrane):
            seen.append(membrane)
            (y,) = ctx.saved_tensors
            return spike * (1 - y * y)

    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(way(Step).apply(x)[0].sum(), x, create_graph=True)
    y = X.tanh()
    close(torch.autograd.grad(slope.sum(), x)[0], -2 * y * (1 - y * y))
    assert seen == [None, None]
    assert next(runs) == 2


def refusals_alive():
    gc.collect()
    return sum(issubclass(type(each), UnsupportedError) for each in gc.get_objects())


@both
@pytest.mark.parametrize("asked", [False, True])
def test_a_refused_derivative_keeps_no_graph_alive(way, asked):
    """The error in the graph held the frames that had raised it, and these the graph."""
    gc.freeze()  # what was made before is not counted: to look at all of torch takes a second
    F, x = way(Computing, keep_inputs=False), X.clone().requires_grad_()
    before = refusals_alive()
    y = F.apply(2 * x)  # nobody holds the input
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert refusals_alive() > before
    if asked:
        with contextlib.suppress(UnsupportedError):
            torch.autograd.grad(slope.sum(), x)
    del y, slope
    assert refusals_alive() == before
