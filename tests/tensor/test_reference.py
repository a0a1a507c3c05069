"""`complete(F, reference=p)`: the kernel in first order, the reference in all else."""

import gc
import os
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
import torch.utils.checkpoint
from tests.fuzzing import examples
from tests.tensor.references import (
    CASES,
    Numba,
    attention,
    caller,
    operator,
    plain_attention,
    plain_exp_sine,
    same_compiled,
    same_compiled_derivative,
    same_copies,
    same_first_order,
    same_second_order,
    same_transforms,
)
from torch.autograd import forward_ad

import pullback
from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError, UnsupportedError

each = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture
def completed(case):
    return pullback.complete(case.kernel, reference=case.plain)


@each
def test_first_order_is_the_kernels(case, completed):
    same_first_order(case, caller(completed))


@each
def test_transforms_are_the_references(case, completed):
    same_transforms(case, caller(completed))


@each
def test_second_order_is_the_references(case, completed):
    same_second_order(case, caller(completed))


# What Dynamo traces, and what stands in the graph as one operator; `make fuzz` compiles all.
@pytest.mark.parametrize(
    "case", CASES if examples(1) > 1 else CASES[:2], ids=lambda case: case.name
)
def test_compiled(case, completed):
    same_compiled(case, caller(completed))


@pytest.mark.parametrize("case", CASES[1:3], ids=lambda case: case.name)
def test_compiled_in_forward_mode(case, completed):
    # From 2.14 on torch traces no dual numbers: the graph ends before the call.
    whole = torch.__version__ < "2.14"
    compiled = torch.compile(caller(completed), fullgraph=whole, backend="eager")
    xs = case.inputs()
    with forward_ad.dual_level():
        y = compiled(*(forward_ad.make_dual(x, x.cos()) for x in xs))
        tangent = forward_ad.unpack_dual(y).tangent
    expected = torch.func.jvp(case.plain, tuple(xs), tuple(x.cos() for x in xs))[1]
    torch.testing.assert_close(tangent, expected)


def test_the_attention_is_fused_and_has_no_forward_mode():
    xs = tuple(CASES[0].inputs())
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(attention, xs, xs)


@pytest.mark.parametrize("strategy", ["forward-mode", "reverse-mode"])
def test_many_directions_at_once(strategy):
    f = pullback.complete(Numba, reference=plain_exp_sine).apply
    xs = tuple(CASES[1].inputs())
    options = {"vectorize": True, "strategy": strategy}
    got, expected = (
        torch.autograd.functional.jacobian(g, xs, **options) for g in (f, plain_exp_sine)
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("case", CASES[:2], ids=["callable", "Function"])
def test_compiled_derivative(case, completed):
    same_compiled_derivative(case, caller(completed))


@each
def test_pickled_and_copied(case, completed):
    same_copies(case, completed)


@pytest.mark.slow
def test_triton_in_its_interpreter():
    pytest.importorskip("triton", reason="triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tensor.reference_triton"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]


# What is refused


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight


def numbers(*shape):
    return torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()


def twice(f, x):
    (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(slope.sum(), x)[0]


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [
        (torch.sin, 3),
        (3, torch.sin),
        ("pullback_tests::exp_sine", 3),
    ],
)
def test_what_cannot_be_called(kernel, reference):
    with pytest.raises(ArgumentTypeError, match="cannot be called"):
        pullback.complete(kernel, reference=reference)


@pytest.mark.parametrize("kernel", [Numba, operator, lambda x, w: x, lambda x, *, w: x])
@pytest.mark.parametrize("reference", [lambda x: x, lambda x, w, more: x, lambda *, x, w: x])
def test_another_signature_is_refused_at_once(kernel, reference):
    with pytest.raises(ArgumentError, match="takes other arguments than the kernel"):
        pullback.complete(kernel, reference=reference)


@pytest.mark.parametrize(
    "reference",
    [lambda x: (x.sin(), x), lambda x: x.sin().float(), lambda x: x.sin()[:1], lambda x: [x.sin()]],
    ids=["two", "dtype", "shape", "list"],
)
def test_another_output_is_refused_by_name(reference):
    f = pullback.complete(torch.sin, reference=reference)
    with pytest.raises(DefinitionError, match="does not return what its kernel does"):
        twice(f, numbers())


def test_random_numbers():
    f = pullback.complete(
        lambda x: torch.nn.functional.dropout(x, 0.5),
        reference=lambda x: torch.nn.functional.dropout(x, 0.5),
    )
    x = numbers()
    torch.manual_seed(0)
    (slope,) = torch.autograd.grad(f(x).sum(), x)
    torch.manual_seed(0)
    assert torch.equal(slope * x, f(x))
    with pytest.raises(UnsupportedError, match="has drawn random numbers"):
        twice(f, x)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(f)(torch.ones(2, 3))


def test_a_parameter_that_is_no_argument():
    f = pullback.complete(Linear(), reference=lambda x: x)
    with pytest.raises(UnsupportedError, match=r"The kernel of Linear .* no argument"):
        f(numbers())
    f = pullback.complete(lambda x: x * 1, reference=Linear())
    with pytest.raises(UnsupportedError, match=r"The reference of <lambda> .* no argument"):
        twice(f, numbers())


def test_an_argument_that_is_changed():
    f = pullback.complete(lambda x, buffer: buffer.copy_(x.detach()) * x, reference=lambda x, b: x)
    with pytest.raises(UnsupportedError, match="changes an argument in place"):
        f(numbers(), torch.zeros(3, dtype=torch.float64))


def test_an_operator_that_writes():
    @torch.library.custom_op("pullback_tests::write", mutates_args=("x",))
    def write(x: torch.Tensor) -> None:
        x.zero_()

    with pytest.raises(UnsupportedError, match="writes into its arguments"):
        pullback.complete(write, reference=lambda x: None)


# What autograd promises


class Pairs(pullback.Function):
    """A kernel whose second output is declared to be a constant."""

    @staticmethod
    def forward(ctx, x, scale):
        mark = x.detach().sign()
        ctx.mark_non_differentiable(mark)
        ctx.scale = scale
        return torch.from_numpy(x.detach().numpy() * scale), mark

    @staticmethod
    def backward(ctx, cotangent, _):
        return torch.from_numpy(cotangent.numpy() * ctx.scale), None


def test_outputs_and_arguments_of_other_kinds():
    f = pullback.complete(Pairs, reference=lambda x, scale: (x * scale, x.detach().sign()))
    x = numbers()
    y, sign = f.apply(x, scale=2.0)
    assert (y.requires_grad, sign.requires_grad) == (True, False)
    assert torch.autograd.grad(y.sum(), x)[0].eq(2).all()
    (slope,) = torch.autograd.grad(f.apply(x, 2.0)[0].square().sum(), x, create_graph=True)
    assert torch.autograd.grad(slope.sum(), x)[0].eq(8).all()


def test_nested_arguments():
    f = pullback.complete(
        lambda given, *, power=2: {"y": [given["x"] ** power], "n": power},
        reference=lambda given, *, power=2: {"y": [given["x"] ** power], "n": power},
    )
    x = numbers()
    output = f({"x": x}, power=3)
    assert output["n"] == 3
    torch.testing.assert_close(torch.autograd.grad(output["y"][0].sum(), x)[0], 3 * x * x)
    torch.testing.assert_close(twice(lambda x: f({"x": x}, power=3)["y"][0], x), 6 * x)


def test_an_input_that_was_computed_of_another():
    f = pullback.complete(torch.mul, reference=lambda x, y: x * y)
    x = numbers()
    torch.testing.assert_close(twice(lambda x: f(x, x * x), x), 6 * x)


def test_an_output_that_is_an_input():
    f = pullback.complete(lambda x: x, reference=lambda x: x)
    x = numbers()
    y = f(x)
    y.detach().zero_()
    assert x.any()
    assert torch.autograd.grad(y.sum(), x)[0].eq(1).all()


def test_the_graph_is_freed_and_retained():
    f = pullback.complete(torch.exp, reference=torch.exp)
    x = numbers()
    y = f(x)
    kept = weakref.ref(y.grad_fn)
    one, two = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(one, two)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)
    gc.disable()
    del y
    assert kept() is None
    gc.enable()


def test_a_change_in_place_is_noticed():
    f = pullback.complete(torch.exp, reference=torch.exp)
    start = numbers()
    x = start * 1
    y = f(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(y.sum(), start)
    x = start * 1
    y = f(x)
    x.add_(1)
    torch.autograd.grad(y.sum(), start, retain_graph=True)  # exp keeps its output alone
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(y.sum(), start, create_graph=True)


def test_under_autocast():
    f = pullback.complete(attention, reference=plain_attention)
    xs = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        y, z = f(*xs), plain_attention(*xs)
        moved = torch.func.jvp(f, tuple(xs), tuple(xs))[1]
    assert y.dtype is z.dtype is moved.dtype is torch.bfloat16
    for create_graph in (False, True):
        slopes = [
            torch.autograd.grad(t.float().sum(), xs, create_graph=create_graph, retain_graph=True)
            for t in (y, z)
        ]
        torch.testing.assert_close(*slopes, rtol=0.05, atol=0.05)


def test_under_checkpoint_and_other_functions():
    f = pullback.complete(torch.sin, reference=torch.sin)
    x = numbers()
    y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], x.cos())
    with torch.autograd.graph.save_on_cpu():
        assert torch.equal(torch.autograd.grad(f(x).sum(), x)[0], x.cos())

    class Outer(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            y = f(x)
            ctx.save_for_backward(y)
            return y**2

        @staticmethod
        def backward(ctx, cotangent):
            (y,) = ctx.saved_tensors
            return 2 * y * (1 - y * y).sqrt() * cotangent

    torch.testing.assert_close(twice(Outer.apply, x), 2 * (2 * x).cos())


def test_without_values():
    f = pullback.complete(Numba, reference=plain_exp_sine).apply
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    assert f(x, x).shape == (2, 3)


def test_a_decorated_kernel_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def plain_double(x):
    return 2 * x


def _decorated(function):
    return pullback.complete(function, reference=plain_double)


@_decorated
def decorated(x):
    return 2 * x


def test_a_refusal_names_the_way_out():
    f = pullback.complete(Numba).apply
    with pytest.raises(UnsupportedError, match=r"complete\(F, reference=\.\.\.\)"):
        twice(lambda x: f(x, x), numbers())


def test_what_is_completed_once_and_what_is_no_function_are_refused():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def plain(x):
        return 2 * x

    async def later(x):
        return 2 * x

    with pytest.raises(ArgumentError, match="has been completed with a reference"):
        pullback.complete(pullback.complete(Twice, reference=plain), reference=plain)
    for reference in (Twice, later):
        with pytest.raises(ArgumentTypeError, match="no function that returns"):
            pullback.complete(Twice, reference=reference)
    with pytest.raises(ArgumentTypeError, match="keep_inputs"):
        pullback.complete(Twice, keep_inputs="no")
