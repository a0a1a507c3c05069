"""What a class may not say, and what is refused when it is used."""

import itertools

import pytest
import torch
from torch.autograd.function import once_differentiable

import pullback
from pullback.errors import ArgumentTypeError, DefinitionError, UnsupportedError


@pytest.mark.parametrize(
    "attributes",
    [
        {"gradient": "approximate"},
        {"batching": "sometimes"},
        {"autocast": "float16"},
        {"autocast": torch.int32},
        {"random": "no"},
        {"keep_inputs": "no"},
    ],
)
def test_unknown_declarations_are_refused_when_the_class_is_defined(attributes):
    with pytest.raises(DefinitionError, match="Wrong declares an unknown") as caught:
        type("Wrong", (pullback.Function,), attributes)
    assert caught.value.expected


def identity(x):
    return x * 1


def gradient(ctx, g):
    return g


def save_nothing(ctx, inputs, output):
    pass


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"forward": identity, "mutates": "x"}, "as one text"),
        ({"backward": gradient}, "has no forward"),
        (
            {"forward": lambda ctx, x: x, "vmap": lambda info, dims, x: (x, 0)},
            "vmap rule and the combined form",
        ),
        (
            {
                "forward": identity,
                "setup_context": save_nothing,
                "backward": gradient,
                "vjp": lambda ctx, g: g,
            },
            "both backward and vjp",
        ),
        (
            {"forward": identity, "setup_context": save_nothing, "mutates": ("y",)},
            "arguments that forward does not have",
        ),
    ],
)
def test_contradictions_are_refused_at_the_first_call(body, message):
    methods = {k: staticmethod(v) if callable(v) else v for k, v in body.items()}
    cls = type("Wrong", (pullback.Function,), methods)
    with pytest.raises(DefinitionError, match=message):
        cls.apply(torch.ones(1))


def test_a_function_without_backward_says_so():
    cls = type(
        "Half",
        (pullback.Function,),
        {"forward": staticmethod(identity), "setup_context": staticmethod(save_nothing)},
    )
    out = cls.apply(torch.ones(1, requires_grad=True))
    with pytest.raises(DefinitionError, match="Half has no backward"):
        out.backward()


class Once(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class TestOnceDifferentiable:
    x = torch.tensor(2.0, dtype=torch.float64)

    def test_first_order_works_everywhere(self):
        func = torch.func
        assert func.grad(Once.apply)(self.x) == 12
        assert func.vmap(func.grad(Once.apply))(self.x[None]) == 12
        assert func.jvp(Once.apply, (self.x,), (self.x,))[1] == 24

    def test_second_order_is_refused_under_autograd(self):
        x = self.x.clone().requires_grad_()
        (g,) = torch.autograd.grad(Once.apply(x), x, create_graph=True)
        with pytest.raises(UnsupportedError, match="Once is declared once_differentiable"):
            torch.autograd.grad(g, x)

    def test_also_when_the_gradient_is_summed_and_unused_is_allowed(self):
        x = self.x.clone().requires_grad_()
        (g,) = torch.autograd.grad(Once.apply(x) + x**2, x, create_graph=True)
        with pytest.raises(UnsupportedError, match="once_differentiable"):
            torch.autograd.grad(g, x, allow_unused=True)

    @pytest.mark.parametrize("outer", ["grad", "jacrev", "jacfwd"])
    def test_under_func_where_torch_is_silent(self, outer):
        with pytest.raises(UnsupportedError, match="once_differentiable"):
            getattr(torch.func, outer)(torch.func.grad(Once.apply))(self.x)

    def test_with_respect_to_the_cotangent(self):
        x = self.x.clone().requires_grad_()
        g = torch.ones_like(x, requires_grad=True)
        (out,) = torch.autograd.grad(Once.apply(x), x, g, create_graph=True)
        with pytest.raises(UnsupportedError, match="once_differentiable"):
            torch.autograd.grad(out, g)


class TestMutation:
    def test_an_undeclared_change_of_an_input_is_refused(self):
        class InPlace(pullback.Function):
            @staticmethod
            def forward(ctx, x, buffer):
                buffer.add_(1)
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g, None

        with pytest.raises(DefinitionError, match="changes an input in place"):
            InPlace.apply(torch.ones(2), torch.zeros(2))

        class Declared(InPlace):
            mutates = ("buffer",)

        buffer = torch.zeros(2)
        Declared.apply(torch.ones(2), buffer)
        assert buffer.tolist() == [1, 1]

    def test_a_change_of_the_cotangent_is_refused(self):
        class InPlace(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g.mul_(2)

        out = InPlace.apply(torch.ones(2, requires_grad=True))
        with pytest.raises(DefinitionError, match="changes its cotangent in place"):
            out.backward(torch.ones(2))

    def test_a_dirty_input_is_returned_and_differentiated(self):
        class Doubled(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx, g):
                return g * 2

        x = torch.ones(2, requires_grad=True)
        y = x * 3
        out = Doubled.apply(y)
        assert out is y
        (g,) = torch.autograd.grad((out**2).sum(), x)
        assert g.tolist() == [72, 72]
        with pytest.raises(UnsupportedError, match="in place"):
            torch.func.jvp(lambda x: Doubled.apply(x * 1), (x.detach(),), (x.detach(),))

    def test_only_inputs_can_be_dirty(self):
        class Confused(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                y = x * 2
                ctx.mark_dirty(y)
                return y

        with pytest.raises(DefinitionError, match="not an input"):
            Confused.apply(torch.ones(1))


class TestResiduals:
    def test_one_that_autograd_cannot_see_is_refused_at_second_order_only(self):
        class Table(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                square = torch.from_numpy(x.detach().numpy() ** 2)
                ctx.save_for_backward(square)
                return square * x

            @staticmethod
            def backward(ctx, g):
                return 3 * ctx.saved_tensors[0] * g

        x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(Table.apply(x), x, create_graph=True)
        assert g.item() == 12
        with pytest.raises(UnsupportedError, match="Table cannot be derived"):
            torch.autograd.grad(g, x)

    def test_one_that_is_random_draws_the_same_again(self):
        class Noisy(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                factor = x * torch.rand_like(x)
                ctx.save_for_backward(factor)
                return factor * x

            @staticmethod
            def backward(ctx, g):
                return 2 * ctx.saved_tensors[0] * g

        torch.manual_seed(0)
        x = torch.full((3,), 2.0, requires_grad=True)
        for _ in range(2):
            (g,) = torch.autograd.grad(Noisy.apply(x).sum(), x, create_graph=True)
            before = torch.get_rng_state()
            (h,) = torch.autograd.grad(g.sum(), x)
            torch.testing.assert_close(h, g.detach() / 2)
            assert torch.equal(before, torch.get_rng_state())

    def test_one_that_differs_at_each_run_is_refused(self):
        numbers = itertools.count(1)

        class Counting(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                factor = x * next(numbers)
                ctx.save_for_backward(factor)
                return factor * x

            @staticmethod
            def backward(ctx, g):
                return 2 * ctx.saved_tensors[0] * g

        x = torch.ones(3, requires_grad=True)
        (g,) = torch.autograd.grad(Counting.apply(x).sum(), x, create_graph=True)
        with pytest.raises(UnsupportedError, match="another result when they run again"):
            torch.autograd.grad(g.sum(), x)

    def test_a_random_mask_has_no_derivative_and_is_fine(self):
        class Dropout(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                mask = torch.bernoulli(torch.full_like(x, 0.5))
                ctx.save_for_backward(mask)
                return mask * x

            @staticmethod
            def backward(ctx, g):
                return ctx.saved_tensors[0] * g

        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        out = Dropout.apply(x)
        (g,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        assert torch.equal(h, 2 * out.detach())


def test_complete_takes_classes_only():
    for wrong in (torch.sin, "Function", Once.apply, int, torch.autograd.Function):
        with pytest.raises(ArgumentTypeError, match="complete takes a Function class"):
            pullback.complete(wrong)


def test_an_output_marked_non_differentiable_carries_no_history_even_as_a_view():
    class Stop(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            out = x.view_as(x)
            ctx.mark_non_differentiable(out)
            return out, x * 2

        @staticmethod
        def backward(ctx, _, g):
            return g * 2

    stopped, doubled = Stop.apply(torch.ones(2, requires_grad=True))
    assert not stopped.requires_grad
    assert doubled.requires_grad
