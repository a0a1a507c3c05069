"""Autocast, checkpointing, saved-tensor hooks, threads, fake tensors, inference mode, memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.tensor.cases import Attributes, Residual, Split
from tests.tensor.helpers import agree
from tests.versions import refused_before
from torch import func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import UnsupportedError


class Matmul(pullback.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        g = g.to(a.dtype)
        Matmul.seen = torch.is_autocast_enabled("cpu")
        return g @ b.T, a.T @ g

    seen = None


class Ambient(Matmul):
    autocast = "ambient"


class Disabled(Matmul):
    autocast = "disable"


class Cast(Matmul):
    autocast = torch.float16


def square():
    return torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("function", "dtype", "in_backward"),
    [
        (Matmul, torch.bfloat16, True),
        (Ambient, torch.bfloat16, False),
        (Disabled, torch.float32, False),
        (Cast, torch.float16, False),
    ],
)
def test_autocast_policies(function, dtype, in_backward):
    a, b = square(), square()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = function.apply(a, b)
    assert out.dtype is dtype
    out.float().sum().backward()
    assert a.grad.dtype is torch.float32
    assert Matmul.seen is in_backward


def test_backward_inside_autocast_of_a_forward_outside_it():
    out = Matmul.apply(square(), square())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.sum().backward()
    assert Matmul.seen is False


@pytest.mark.parametrize("function", [Split, Residual, Attributes])
def test_checkpointing(function):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def run(x):
        return function.apply(x).sin()

    agree(
        torch.autograd.grad(checkpoint(run, x, use_reentrant=False).sum(), x),
        torch.autograd.grad(run(x).sum(), x),
    )


class OfItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * y


class OfItsInput(OfItsOutput):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return func.vjp(torch.exp, x)[1](cotangent)[0]


def around(run):
    return lambda x: checkpoint(run, x, use_reentrant=False)


def behind_a_copy(run):
    """Saved-tensor hooks that give another tensor each time, as an offload does."""

    def hooked(x):
        copies = torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)
        with copies:
            return run(x)

    return hooked


@pytest.mark.parametrize("keep", [around, behind_a_copy])
@pytest.mark.parametrize("function", [OfItsOutput, OfItsInput])
def test_a_second_derivative_reads_saved_tensors_once(function, keep):
    if function is OfItsInput and keep is behind_a_copy:
        pytest.skip("torch.func takes no tensors behind hooks")
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        keep(pullback.complete(function).apply)(x).sum(), x, create_graph=True
    )
    agree(torch.autograd.grad(first.sum(), x), (x.exp(),))


@pytest.mark.parametrize("keep", [around, behind_a_copy])
@pytest.mark.parametrize("function", [Split, Residual, Attributes])
def test_an_input_that_is_not_saved_is_kept_behind_hooks_too(function, keep):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def run(x):
        return function.apply(2 * x).sin()  # nobody else holds the input

    def ask(run):
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)

    agree(ask(keep(run)), ask(run))


def test_saved_tensor_hooks_see_everything_and_buffers_are_freed():
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = Residual.apply(x)
    # What its author saves, and the input that it keeps; torch 2.7 cannot tell of hooks.
    assert len(packed) == (1 if torch.__version__ < "2.8" else 2)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_threads_do_not_share_state():
    def work(seed):
        x = torch.full((64,), float(seed), dtype=torch.float64, requires_grad=True)
        for _ in range(20):
            (g,) = torch.autograd.grad(Residual.apply(x).sum(), x)
            assert torch.equal(g.detach(), 3 * x.detach() ** 2)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 9)))


def test_two_live_calls_do_not_share_state():
    x = torch.tensor([2.0], requires_grad=True)
    y = torch.tensor([3.0], requires_grad=True)
    first, second = Attributes.apply(x), Attributes.apply(y)
    assert torch.autograd.grad(second, y)[0] == 27
    assert torch.autograd.grad(first, x)[0] == 12


def test_fake_tensors_get_the_right_shapes():
    with FakeTensorMode():
        x = torch.empty(3, 4, requires_grad=True)
        out = Residual.apply(x)
        (g,) = torch.autograd.grad(out.sum(), x)
    assert out.shape == g.shape == (3, 4)


def test_inference_mode_and_no_grad():
    with torch.inference_mode():
        assert Split.apply(torch.tensor(2.0)) == 8
    with torch.no_grad():
        assert not Split.apply(torch.tensor(2.0, requires_grad=True)).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex128])
def test_dtypes(dtype):
    x = torch.tensor([1.5, -2.0], dtype=dtype, requires_grad=True)
    out = Split.apply(x)
    out.abs().sum().backward()
    assert out.dtype is x.grad.dtype is dtype


@pytest.mark.parametrize(
    "change", [lambda x: x.t(), lambda x: x[::2], lambda x: x[:, :0], lambda x: x[0, 0]]
)
def test_layouts(change):
    base = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    cotangent = torch.ones((), dtype=torch.float64).expand(change(base).shape)
    agree(
        torch.autograd.grad(Residual.apply(change(base)), base, cotangent),
        torch.autograd.grad(change(base) ** 3, base, cotangent),
    )


def keeps(change, way):
    class Cube(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.slope = change(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            slope = ctx.slope
            return (slope if slope.layout is torch.strided else slope.to_dense()) * g

    return pullback.complete(Cube) if way == "complete" else Cube


def in_inference_mode(x):
    with torch.inference_mode():
        return 3 * x * x


@pytest.mark.parametrize("way", ["Function", "complete"])
def test_an_attribute_made_in_inference_mode_is_kept(way):
    x = torch.tensor([2.0, 1.0], requires_grad=True)
    keeps(in_inference_mode, way).apply(x).sum().backward()
    agree(x.grad, torch.tensor([12.0, 3.0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["Function", "complete"])
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:There is a performance drop")
def test_sparse_attributes_are_right_or_refused_by_name(layout, way):
    function = keeps(lambda x: getattr(3 * x * x, layout)(), way)
    x = torch.tensor([[2.0, 1.0], [0.5, 3.0]], dtype=torch.float64)

    def f(x):
        return function.apply(x).sum()

    leaf = x.clone().requires_grad_()
    f(leaf).backward()
    agree(leaf.grad, 3 * x * x)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    asked = {
        "grad": (lambda: torch.func.grad(f)(x), 3 * x * x),
        "jvp": (lambda: torch.func.jvp(f, (x,), (x,))[1], (3 * x**3).sum()),
        "twice": (
            lambda: torch.func.jacrev(torch.func.grad(f))(x),
            torch.diag((6 * x).flatten()).reshape(2, 2, 2, 2),
        ),
        "hessian": (
            lambda: torch.func.hessian(f)(x),
            torch.diag((6 * x).flatten()).reshape(2, 2, 2, 2),
        ),
        "compiled": (lambda: torch.autograd.grad(compiled(leaf), leaf)[0], 3 * x * x),
    }
    for name, (ask, expected) in asked.items():
        try:
            found = ask()
        except (UnsupportedError, NotImplementedError, torch._dynamo.exc.Unsupported) as refusal:
            assert "sparse" in str(refusal).lower(), name  # noqa: PT017 - or right
            continue
        agree(found, expected)


def product(of_argument, way):
    """A sparse product: with a matrix among its arguments, or made of values at its places."""

    class Product(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, matrix, values, dense):
            ctx.save_for_backward(matrix, values, dense)
            return torch.sparse.mm(Product.made(matrix, values), dense)

        @staticmethod
        def made(matrix, values):
            if of_argument:
                return matrix
            return torch.sparse_coo_tensor(PLACES.indices(), values, PLACES.shape)

        @staticmethod
        def backward(ctx, g):
            matrix, values, dense = ctx.saved_tensors
            row, column = PLACES.indices()
            slopes = None if of_argument else (g @ dense.t())[row, column]
            return None, slopes, torch.sparse.mm(Product.made(matrix, values).t(), g)

    return pullback.complete(Product) if way == "complete" else Product


PLACES = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -3.0]], dtype=torch.float64).to_sparse()
PLACES = PLACES.coalesce()


@pytest.mark.parametrize("way", ["Function", "complete"])
@refused_before("2.10", "a sparse argument below a transform", match="sparse")
@pytest.mark.parametrize("of_argument", [True, False], ids=["argument", "places"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch 2.11
def test_a_sparse_matrix_outside_of_the_derivative_hinders_none(of_argument, way):
    function = product(of_argument, way)
    values, dense = PLACES.values().cos(), torch.randn(3, 2, dtype=torch.float64)
    matrix = PLACES.to_dense()
    if not of_argument:
        matrix = torch.zeros_like(matrix).index_put(tuple(PLACES.indices()), values)

    def ours(dense):
        return function.apply(PLACES, values, dense).pow(2).sum()

    def formula(dense):
        return (matrix @ dense).pow(2).sum()

    agree(torch.func.jvp(ours, (dense,), (dense,)), torch.func.jvp(formula, (dense,), (dense,)))
    leaves = values.clone().requires_grad_(), dense.clone().requires_grad_()
    gradients = torch.autograd.grad(ours(leaves[1]), leaves[1], create_graph=True)
    agree(gradients, [2 * matrix.t() @ matrix @ leaves[1]])
    agree(torch.autograd.grad(gradients[0].sum(), leaves[1]), torch.autograd.grad(
        (2 * matrix.t() @ matrix @ leaves[1]).sum(), leaves[1]))  # fmt: skip
