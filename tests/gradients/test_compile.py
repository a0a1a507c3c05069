"""torch.compile(fullgraph=True) equals eager, forward and backward; torch.export refuses."""

import pytest
import torch
from tests.gradients.table import FLOWING, ROWS, add_noise, each, gradients, with_grad
from tests.versions import refused_before
from torch import nn

import pullback.gradients as room
from pullback.errors import UnsupportedError

pytestmark = pytest.mark.sampled(5)

# A program cannot tell there whether it is compiled or exported, and an export drops the gradient.
refused_before_2_9 = refused_before(
    "2.9", "compiling, which looks like exporting", match="cannot be exported with its gradient"
)


def assert_compiled_equals_eager(row, backend):
    torch._dynamo.reset()
    leaves = with_grad(row.tensors())
    compiled = torch.compile(row.call, backend=backend, fullgraph=True)
    output = compiled(*leaves)
    torch.testing.assert_close(output, row.value(*row.tensors()), check_layout=False)
    if not output.requires_grad:
        assert row not in FLOWING
        return
    cotangent = row.cotangent(output)
    got = torch.autograd.grad(output, leaves, cotangent, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(got, gradients(row, row.tensors(), cotangent))


@each(ROWS)
def test_fullgraph(row):
    verb = row.call is not add_noise  # which applies the Function itself
    run = refused_before_2_9(assert_compiled_equals_eager) if verb else assert_compiled_equals_eager
    run(row, "aot_eager")


# inductor itself loads through the deprecated torch.jit.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@each([row for row in ROWS if row.name == "scale_gradient.tensor"])
@refused_before_2_9
def test_inductor(row):
    assert_compiled_equals_eager(row, "inductor")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2], ids=str)
@refused_before_2_9
def test_inductor_rounds_to_the_dtype(dtype):
    """Two casts after one another it would fuse, in float32: no bit lost, nothing too large."""
    torch._dynamo.reset()
    x = torch.ones(5, requires_grad=True)
    weight = torch.tensor([1.2345678, 70000.0, 1e-9, -0.1, float("inf")])

    def f(x):
        return (room.dtype_gradient(x * 1.0, dtype) * weight).sum()

    (got,) = torch.autograd.grad(torch.compile(f, fullgraph=True)(x), x)
    torch.testing.assert_close(got, weight.to(dtype).float(), rtol=0.0, atol=0.0)


@refused_before_2_9
def test_a_factor_as_large_as_a_symbol():
    torch._dynamo.reset()
    x = torch.ones(2, 3, requires_grad=True)

    def f(x):
        factor = torch.tensor([1.0, 2.0, 3.0])
        return room.scale_gradient(x, factor) + room.scale_forward(x, factor)

    y = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(f(x).sum(), x))


@refused_before_2_9
def test_a_rounded_gradient_is_differentiated_again():
    torch._dynamo.reset()
    weight = torch.tensor([1.2345678, -0.1, 3.3])

    def f(x):
        return (room.dtype_gradient(x, torch.bfloat16).square() * weight).sum()

    for transformed in (torch.func.grad(f), torch.func.jacrev(torch.func.jacrev(f))):
        compiled = torch.compile(transformed, backend="aot_eager", fullgraph=True)
        x = torch.tensor([0.123456789, -1.1, 2.7])
        torch.testing.assert_close(compiled(x), transformed(x), rtol=0.0, atol=0.0)


@each([row for row in FLOWING if row.name in {"scale_gradient", "scale_both.tensor"}])
@refused_before_2_9
def test_compiled_torch_func_keeps_the_backward(row):
    torch._dynamo.reset()
    tensors = row.tensors()
    weight = row.cotangent(tensors[0])
    transformed = torch.func.grad(lambda *ts: (row.call(*ts) * weight).sum())
    compiled = torch.compile(transformed, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), transformed(*tensors))


@refused_before_2_9
def test_a_generator_is_refused_by_name_while_compiling():
    torch._dynamo.reset()
    generator = torch.Generator()
    compiled = torch.compile(
        lambda x: room.noise_gradient(x, 0.1, generator), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="cannot use a generator inside"):
        compiled(torch.zeros(3, requires_grad=True))


EXPORTED = [
    room.ScaleGradient(2.0), room.ScaleForward(2.0), room.ScaleBoth(2.0, 3.0),
    room.ReverseGradient(), room.StopGradient(), room.ClipGradient(1.0),
    room.NormaliseGradient(), room.NoiseGradient(0.1), room.DtypeGradient(torch.float16),
    room.WhereGradient(torch.tensor([True])), room.StraightThroughRound(),
    room.StraightThroughSign(window=1.0), room.StraightThroughThreshold(),
    room.StraightThroughOneHot(),
]  # fmt: skip


@pytest.mark.parametrize("module", EXPORTED, ids=lambda module: type(module).__name__)
def test_export_refuses_rather_than_drop_the_gradient(module):
    with pytest.raises(Exception, match="cannot be exported with its gradient") as caught:
        torch.export.export(nn.Sequential(module), (torch.randn(3),))
    error = caught.value
    # Dynamo, by which torch exports unless asked not to (before 2.9), has errors of its own.
    assert isinstance(error, UnsupportedError | torch._dynamo.exc.Unsupported) or (
        "UnsupportedError" in str(error)
    )


def test_strict_export_refuses_as_well():
    with pytest.raises(Exception, match="cannot be exported with its gradient"):
        torch.export.export(nn.Sequential(room.ScaleGradient(2.0)), (torch.randn(3),), strict=True)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_export_for_inference_keeps_the_value(strict):
    module = nn.Sequential(room.ScaleGradient(2.0), room.ScaleForward(3.0))
    with torch.no_grad():
        program = torch.export.export(module, (torch.randn(3),), strict=strict)
    x = torch.randn(3)
    torch.testing.assert_close(program.module()(x), 3 * x)
