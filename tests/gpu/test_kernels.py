"""The Triton kernels on a card equal the references."""

import math

import pytest
import torch
from tests.gpu.helpers import waiting_is_an_error
from tests.trajectory.test_kernels import same_accumulate, same_stencil
from tests.trajectory.test_transforms import parts

from pullback.tracking import Statistics
from pullback.tracking.measure._reference import measure_reference
from pullback.tracking.measure._triton import measure_triton
from pullback.trajectory import State, backend_used, differentiate, integrate
from pullback.trajectory.kernels.accumulate import _triton as accumulate
from pullback.trajectory.kernels.stencil import _triton as stencil


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_stencil(dtype):
    torch.manual_seed(0)
    with torch.device("cuda"):
        same_stencil(stencil, (5, 6, 7, 9, 12, 40, 600), dtype)


@pytest.mark.parametrize("dof", [1, 2, 7, 40])
def test_the_chain_of_sums(dof):
    torch.manual_seed(dof)
    with torch.device("cuda"):
        same_accumulate(accumulate, dof=dof)


@pytest.mark.parametrize("size", [0, 1, 3, 2048, 2049, 5000, 1_000_001, 4_200_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_the_statistics(size, dtype, factor):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=generator, dtype=dtype).exp()
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e-41], dtype=dtype)
    x[:5] = special[:size]
    row = torch.empty(289, dtype=torch.float64, device="cuda")
    measure_triton(x.cuda(), row, factor)
    expected = measure_reference(x, factor)
    torch.testing.assert_close(row.cpu(), expected, rtol=1e-9, atol=1e-12)


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "a part": lambda x: x[1:, 2:7],
    "every other": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 9),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "channels last": lambda x: x.reshape(1, 4, 8, -1).to(memory_format=torch.channels_last),
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "whole numbers": lambda x: (10 * x).int(),
    "truth values": lambda x: x > 0,
    "complex": lambda x: torch.complex(x, 2 * x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_of_any_tensor_are_those_of_the_cpu(layout):
    x = torch.randn(32, 33, generator=torch.Generator().manual_seed(1))
    x = x[:, :32] if layout == "channels last" else x
    expected = Statistics.of(LAYOUTS[layout](x))
    got = Statistics.of(LAYOUTS[layout](x.cuda()))
    assert (got.count, got.zeros, got.exponents) == (
        expected.count,
        expected.zeros,
        expected.exponents,
    )
    for name in ("mean", "std", "mean_abs", "max_abs"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_the_reference(dtype):
    x = torch.randn(3, 40, 7, device="cuda").to(dtype)
    assert backend_used(x) == "triton"
    for call in (
        lambda backend: differentiate(x, 0.5, backend=backend),
        lambda backend: integrate(
            x, 0.1, start=State(0.0, 0.0, 0.0), order="jerk", backend=backend
        ),
    ):
        got, expected = parts(call("triton")), parts(call("reference"))
        for one, other in zip(got, expected, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "shape", [(70_000, 5, 1), (1, 5, 200), (3, 100_000, 2), (1, 12_000_000, 7)], ids=str
)
def test_sizes_beyond_what_a_grid_counts(shape):
    x = torch.randn(shape, device="cuda", requires_grad=True)
    for backend in ("triton", "reference"):
        motion = differentiate(x, 1.0, backend=backend)
        (gradient,) = torch.autograd.grad(motion.acceleration.square().sum(), x)
        found = [part.detach().double().sum() for part in (*parts(motion), gradient.abs())]
        if backend == "triton":
            got = found
    torch.testing.assert_close(got, found, rtol=1e-3, atol=10)


def test_nothing_waits_for_the_card():
    x = torch.randn(8, 32, 7, device="cuda", requires_grad=True)
    start = State(position=0.0, velocity=0.0, acceleration=0.0)

    def step():
        motion = differentiate(x, 0.02)
        other = integrate(x, 0.02, start=start, order="jerk")
        total = motion.jerk.square().sum() + other.position.square().sum()
        torch.autograd.grad(total, x)

    step()
    with waiting_is_an_error():
        step()


def test_a_graph_of_the_card_replays_them():
    x = torch.randn(8, 32, 7, device="cuda", requires_grad=True)

    def step():
        return torch.autograd.grad(differentiate(x, 0.02).jerk.square().sum(), x)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (captured,) = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(captured, step()[0])
