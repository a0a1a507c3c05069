"""What torch holds its custom Functions to under autograd: ours are held to the same.

On the subjects of the custom Function tests of torch's test_autograd.py.
"""

import gc
import weakref

import pytest
import torch
from tests.tensor.torch_suite.ways import both, leaf
from torch.autograd.function import once_differentiable


def returns_its_input(base):
    class Same(base):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Same


@both(returns_its_input)
def test_an_input_that_is_returned(function):
    for shape in ((1,), ()):
        x = torch.ones(shape, requires_grad=True)
        function.apply(x).backward()
        assert torch.equal(x.grad, torch.full(shape, 2.0))
        x.grad = None
        with torch.no_grad():
            assert not function.apply(x).requires_grad


def returns_nothing(base):
    class Nothing(base):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    return Nothing


@both(returns_nothing)
def test_a_backward_that_returns_none(function):
    x = torch.ones(1, requires_grad=True)
    function.apply(x).backward()
    assert x.grad is None
    assert torch.autograd.grad(function.apply(x), x, allow_unused=True)[0] is None
    (function.apply(x) + x).backward()
    assert x.grad.item() == 1


def saves_none(base):
    class SavesNone(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(None, x, None)
            return x * x

        @staticmethod
        def backward(ctx, g):
            first, x, last = ctx.saved_tensors
            assert first is None
            assert last is None
            return 2 * x * g

    return SavesNone


@both(saves_none)
def test_none_may_be_saved(function):
    x = leaf()
    assert torch.autograd.gradcheck(function.apply, x)
    assert torch.autograd.gradgradcheck(function.apply, x)


def too_many(base):
    class TooMany(base):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g, None, None

    return TooMany


@both(too_many)
def test_surplus_gradients_that_are_none(function):
    x = leaf()
    function.apply(x).sum().backward()
    assert x.grad.eq(1).all()


def raises_in_backward(base):
    class Simulated(Exception):
        pass

    class Raises(base):
        error = Simulated

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise Simulated("on purpose")

    return Raises


@both(raises_in_backward)
def test_an_error_of_backward_is_the_callers(function):
    with pytest.raises(function.error, match="on purpose"):
        function.apply(leaf()).sum().backward()
    x = leaf()
    with pytest.raises(function.error, match="on purpose"):
        torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)


def invalid_gradient(base):
    class Invalid(base):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return torch.randn(10, dtype=torch.float)

    return Invalid


@both(invalid_gradient)
def test_a_gradient_of_another_shape_is_an_error(function):
    with pytest.raises(RuntimeError, match="expected shape"):
        function.apply(torch.randn(5, 5, requires_grad=True)).sum().backward()


def needs(base):
    class Needs(base):
        seen = ()

        @staticmethod
        def forward(ctx, x, number, y, flag=None):
            ctx.seen_in_forward = ctx.needs_input_grad
            return x * number + y

        @staticmethod
        def backward(ctx, g):
            assert ctx.needs_input_grad == ctx.seen_in_forward
            Needs.seen = ctx.needs_input_grad
            return g * 3, None, g, None

    return Needs


@both(needs)
def test_needs_input_grad(function):
    for first, second in ((True, False), (False, True), (True, True)):
        x, y = torch.ones(2, requires_grad=first), torch.ones(2, requires_grad=second)
        function.apply(x, 3, y, None).sum().backward()
        seen = function.seen or function.__wrapped__.seen
        assert seen == (first, False, second, False)
        assert (x.grad is not None, y.grad is not None) == (first, second)


def not_differentiable(base):
    class Marked(base):
        @staticmethod
        def forward(ctx, x):
            mask, order, twice = x > 0, x.argsort(), x * 2
            ctx.mark_non_differentiable(mask, order, twice)
            return x * 3, mask, order, twice

        @staticmethod
        def backward(ctx, g, g_mask, g_order, g_twice):
            assert g_twice is not None
            assert (g_twice == 0).all()
            return g * 3

    return Marked


@both(not_differentiable)
def test_outputs_that_are_not_differentiable(function):
    x = leaf(-1.0, 2.0)
    y, mask, order, twice = function.apply(x)
    assert y.requires_grad
    assert [t.requires_grad for t in (mask, order, twice)] == [False] * 3
    (y * mask + twice).sum().backward()
    assert x.grad.tolist() == [0, 3]


def materializes(base):
    class Two(base):
        expected = "zeros"

        @staticmethod
        def forward(ctx, x, setting):
            ctx.set_materialize_grads(setting)
            ctx.setting = setting
            return x * 2, x * 3, torch.tensor(3)

        @staticmethod
        def backward(ctx, g, unused, number):
            if ctx.setting:
                assert (unused == 0).all()
            else:
                assert unused is None
            return g * 2, None

    return Two


@both(materializes)
@pytest.mark.parametrize("setting", [True, False])
def test_cotangents_that_are_missing(function, setting):
    x = leaf()
    y, _, _ = function.apply(x, setting)
    y.sum().backward()
    assert x.grad.eq(2).all()


def once(base):
    class Once(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert not torch.is_grad_enabled()
            return 2 * x * g

    return Once


@both(once)
def test_once_differentiable_runs_without_gradients(function):
    x = leaf()
    function.apply(x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def duplicates(base):
    class Duplicate(base):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 20

    return Duplicate


@both(duplicates)
def test_an_output_that_is_returned_twice(function):
    x = leaf()
    first, second = function.apply(x)
    assert first is second or torch.equal(first, second)
    (first * 1.0).sum().backward()
    assert x.grad.eq(2).all() or x.grad.eq(20).all()


def in_place_and_out(base):
    class Add(base):
        @staticmethod
        def forward(ctx, a, b):
            ctx.mark_dirty(a)
            return a.add_(b), b + 2

        @staticmethod
        def backward(ctx, ga, gb):
            return ga, ga + gb

    return Add


@both(in_place_and_out)
def test_an_input_changed_in_place_beside_another_output(function):
    x, y = leaf(), leaf(4.0, 5.0, 6.0)
    a = x * 1
    changed, plain = function.apply(a, y)
    assert changed is a
    assert a.grad_fn is changed.grad_fn
    (changed + 2 * plain).sum().backward()
    assert x.grad.eq(1).all()
    assert y.grad.eq(3).all()


@both(in_place_and_out)
def test_a_leaf_cannot_be_changed_in_place(function):
    x, y = leaf(), leaf()
    with pytest.raises(RuntimeError, match="leaf"):
        function.apply(x, y)


def view_in_place(base):
    class Fill(base):
        @staticmethod
        def forward(ctx, a, b):
            ctx.mark_dirty(a)
            a.copy_(b)
            return a

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g), g

    return Fill


@both(view_in_place)
def test_a_view_changed_in_place_reaches_its_base(function):
    base, b = leaf(1.0, 2.0, 3.0), leaf(7.0, 8.0)
    whole = base * 2
    function.apply(whole[:2], b)
    assert whole.tolist() == [7, 8, 6]
    whole.sum().backward()
    assert base.grad.tolist() == [0, 0, 2]
    assert b.grad.tolist() == [1, 1]


def has_attributes(base):
    class Named(base):
        @staticmethod
        def forward(ctx, x):
            ctx.note = "kept"
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Named


@both(has_attributes)
def test_the_node_of_the_graph_is_named_and_chained(function):
    x = leaf()
    y = function.apply(x * 1)
    assert y.grad_fn.name() == "NamedBackward"
    assert type(y.grad_fn).__name__ == "NamedBackward"
    assert y.grad_fn.next_functions[-1][0].name().startswith("MulBackward")
    seen = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append("hook"))
    y.grad_fn.register_prehook(lambda outputs: seen.append("prehook"))
    y.sum().backward()
    assert seen == ["prehook", "hook"]


@both(has_attributes)
def test_backward_twice_needs_the_graph_retained(function):
    x = leaf()
    y = function.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    assert x.grad.eq(4).all()


def reads_saved(base):
    class Reads(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return y * g

    return Reads


@both(reads_saved)
def test_saved_tensors_are_freed_after_backward(function):
    y = function.apply(leaf()).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@both(reads_saved)
def test_hooks_of_saved_tensors_see_each(function):
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.numpy(force=True)

    def unpack(array):
        unpacked.append(array)
        return torch.from_numpy(array)

    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = function.apply(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.detach().exp())
    assert len(packed) >= 1
    assert len(unpacked) == len(packed)


def makes_a_cycle(base):
    class Cycle(base):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            ctx.metadata_of_mine = {"y": y}
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Cycle


@both(makes_a_cycle)
def test_an_output_on_the_context_does_not_leak(function):
    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    y = function.apply(leaf())
    node, output = weakref.ref(y.grad_fn), weakref.ref(y)
    del y
    gc.collect()
    assert node() is None
    assert output() is None


def no_tensors(base):
    class Constant(base):
        @staticmethod
        def forward(ctx, number):
            return torch.full((2,), float(number))

        @staticmethod
        def backward(ctx, g):
            return None

    return Constant


@both(no_tensors)
def test_no_argument_is_a_tensor(function):
    y = function.apply(3)
    assert y.tolist() == [3, 3]
    assert not y.requires_grad


def other_outputs(base):
    class Others(base):
        @staticmethod
        def forward(ctx, x):
            return x * 2, None, "text", 3, x * 4

        @staticmethod
        def backward(ctx, g, nothing, text, number, h):
            assert nothing is None
            assert text is None
            assert number is None
            return 2 * g + 4 * h

    return Others


@both(other_outputs)
def test_outputs_that_are_no_tensors(function):
    x = leaf()
    y, nothing, text, number, z = function.apply(x)
    assert (nothing, text, number) == (None, "text", 3)
    (y + z).sum().backward()
    assert x.grad.eq(6).all()


def local_in_place(base):
    class Local(base):
        @staticmethod
        def forward(ctx, x):
            view = x.clone()[:3]
            view += 2
            return view

        @staticmethod
        def backward(ctx, g):
            result = torch.zeros(5, dtype=g.dtype)
            result[:3] = g
            return result

    return Local


@both(local_in_place)
def test_changes_in_place_of_what_is_forwards_own(function):
    x = leaf(1.0, 2.0, 3.0, 4.0, 5.0)
    y = function.apply(x)
    assert y.tolist() == [3, 4, 5]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0, 0]


def reentrant(base):
    class Reentrant(base):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.inside = x.detach().requires_grad_()
                ctx.result = ctx.inside.sin() * ctx.inside
            return ctx.result.detach()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                ctx.result.sum().backward()
            return ctx.inside.grad * g

    return Reentrant


@both(reentrant)
def test_a_backward_that_runs_backward(function):
    x = leaf()
    function.apply(x).sum().backward()
    torch.testing.assert_close(x.grad, (x.sin() + x * x.cos()).detach())


def complex_numbers(base):
    class Square(base):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return 2 * z.conj() * g

    return Square


@both(complex_numbers)
def test_complex_numbers(function):
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(function.apply, z)
    assert torch.autograd.gradgradcheck(function.apply, z)


def accumulates(base):
    class Twice(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    return Twice


@both(accumulates)
def test_one_tensor_as_both_arguments(function):
    x = leaf()
    assert torch.autograd.gradcheck(lambda x: function.apply(x, x), x)
    assert torch.autograd.gradgradcheck(lambda x: function.apply(x, x), x)


@both(accumulates)
def test_mixed_dtypes_are_cast_back(function):
    x = torch.ones(3, dtype=torch.float32, requires_grad=True)
    y = torch.ones(3, dtype=torch.float64, requires_grad=True)
    function.apply(x, y).sum().backward()
    assert x.grad.dtype == torch.float32
    assert y.grad.dtype == torch.float64


@both(accumulates)
def test_hooks_of_tensors(function):
    x, y = leaf(), leaf(1.0, 1.0, 1.0)
    x.register_hook(lambda g: g * 10)
    z = function.apply(x, y)
    z.register_hook(lambda g: g * 2)
    z.sum().backward()
    assert x.grad.eq(20).all()


@both(accumulates)
def test_checkpointed(function):
    from torch.utils.checkpoint import checkpoint

    x, y = leaf(), leaf(4.0, 5.0, 6.0)
    z = checkpoint(function.apply, x, y, use_reentrant=False)
    z.sum().backward()
    assert torch.equal(x.grad, y.detach())


def view_of_input(base):
    class First(base):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x[:2]

        @staticmethod
        def backward(ctx, g):
            result = torch.zeros(ctx.shape, dtype=g.dtype)
            result[:2] = g
            return result

    return First


@both(view_of_input)
def test_a_view_of_the_input(function):
    x = leaf()
    y = function.apply(x)
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]


def stashes_its_context(base):
    class Stashes(base):
        contexts = ()

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            Stashes.contexts += (ctx,)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Stashes


@both(stashes_its_context)
def test_a_context_that_is_kept_elsewhere(function):
    x = leaf()
    y = function.apply(x)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def forward_mode(base):
    class Product(base):
        @staticmethod
        def forward(ctx, x, y, factor):
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            ctx.factor = factor
            return x * y * factor

        @staticmethod
        def jvp(ctx, tx, ty, nothing):
            x, y = ctx.saved_tensors
            assert nothing is None
            return (tx * y + x * ty) * ctx.factor

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * ctx.factor, g * x * ctx.factor, None

    return Product


@both(forward_mode)
def test_forward_mode_with_a_rule(function):
    x, y = leaf(), leaf(4.0, 5.0, 6.0)
    assert torch.autograd.gradcheck(
        lambda x, y: function.apply(x, y, 3.0), (x, y), check_forward_ad=True
    )
    assert torch.autograd.gradgradcheck(
        lambda x, y: function.apply(x, y, 3.0), (x, y), check_fwd_over_rev=True
    )
