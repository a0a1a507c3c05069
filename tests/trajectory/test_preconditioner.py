"""The metric of smoothness: its algebra, its halves, and what it does for L-BFGS."""

from fractions import Fraction

import pytest
import torch
from tests.fuzzing import examples

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.trajectory import Preconditioner
from pullback.trajectory.kernels.banded import _cpu, _reference
from pullback.trajectory.plans._preconditioner import multiply, substitute

ENDS = [("fixed", "fixed"), ("fixed", "free"), ("free", "fixed"), ("free", "free")]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("horizon", [1, 2, 5, 17])
def test_the_metric_is_the_sum_of_squared_differences(
    order: int, ends: tuple[str, str], horizon: int
) -> None:
    dt = 0.1
    generator = torch.Generator().manual_seed(horizon)
    x = torch.randn(horizon, 2, generator=generator, dtype=torch.float64)
    metric = Preconditioner(horizon, dt, order=order, start=ends[0], goal=ends[1])
    pad = [order if end == "fixed" else 0 for end in ends]
    padded = torch.nn.functional.pad(x, (0, 0, *pad))
    expected = padded.diff(n=order, dim=0).square().sum() * dt ** (1 - 2 * order)
    if ends == ("free", "free"):
        expected = expected + dt * (dt * horizon) ** (-2 * order) * x.square().sum()
    torch.testing.assert_close((x * metric.multiply(x)).sum(), expected)
    torch.testing.assert_close(metric.invert(metric.multiply(x)), x, rtol=1e-7, atol=1e-7)
    z = metric.variables(x)
    torch.testing.assert_close(z.square().sum(), expected)
    torch.testing.assert_close(metric.positions(z), x, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("size", "width"), [(1, 1), (5, 3), (64, 4), (65, 4), (200, 2)])
def test_products_and_solves_are_those_of_the_dense_factor(size: int, width: int) -> None:
    generator = torch.Generator().manual_seed(size)
    factor = torch.randn(size, width, generator=generator, dtype=torch.float64) / width
    factor[:, 0] = 2
    dense = torch.zeros(size, size + width, dtype=torch.float64)
    for i in range(size):
        dense[i, i : i + width] = factor[i]
        factor[i, size - i :] = 0
    dense = dense[:, :size]
    for shape in ((size, 2), (3, size, 2), (2, 3, size, 1), (size, 0)):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(multiply(factor, x), dense @ x)
        torch.testing.assert_close(dense @ substitute(factor, x), x)
        torch.testing.assert_close(dense.mT @ substitute(factor, x, transposed=True), x)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    for transposed in (False, True):
        both = [kernels.substitute(factor, x, transposed) for kernels in (_cpu, _reference)]
        torch.testing.assert_close(*both)


def test_the_halves_have_every_derivative() -> None:
    metric = Preconditioner(7, 0.5)
    x = torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    for run in (metric.positions, metric.variables, metric.invert):
        assert torch.autograd.gradcheck(run, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(run, x, fast_mode=True)
        torch.testing.assert_close(torch.func.vmap(run)(x), run(x))


def evaluations(*, preconditioned: bool, most: int) -> tuple[int, float]:
    """L-BFGS on squared jerk, two via points and a posture: evaluations and cost."""
    horizon, dt = 96, 2 / 97
    generator = torch.Generator().manual_seed(4)
    goal, first, second = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    weights = torch.zeros(horizon, dtype=torch.float64)
    weights[[31, 63]] = 1e5
    metric = Preconditioner(horizon, dt, weights=weights)
    s = ((torch.arange(horizon, dtype=torch.float64) + 1) / (horizon + 1)).unsqueeze(-1)
    base = (10 * s**3 - 15 * s**4 + 6 * s**5) * goal

    def cost(x: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([x.new_zeros(3, 7), x, goal.expand(3, 7)])
        jerk = padded.diff(n=3, dim=0) / dt**3
        misses = (x[31] - first).square().sum() + (x[63] - second).square().sum()
        posture = 20 * dt * (1 - torch.cos(2 * x)).sum()
        return 0.5 * dt * jerk.square().sum() + 0.5e5 * misses + posture

    z = (torch.zeros_like(base) if preconditioned else base.clone()).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [z],
        max_iter=most,
        max_eval=most,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-4,
        tolerance_change=1e-12,
    )
    costs: list[float] = []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = cost(base + metric.positions(z) if preconditioned else z)
        value.backward()
        costs.append(value.item())
        return value

    optimiser.step(closure)
    return len(costs), min(costs)


def test_ten_evaluations_do_what_two_thousand_do_not() -> None:
    # In `make fuzz` two thousand, in `make test` four hundred.
    most = min(2000, examples(400))
    few, least = evaluations(preconditioned=True, most=most)
    assert few <= 10
    many, raw = evaluations(preconditioned=False, most=most)
    assert many >= most
    assert raw > 1.05 * least


def test_step_replaces_gradients_for_a_plain_optimiser() -> None:
    metric = Preconditioner(40, 0.05)
    goal = torch.sin(torch.linspace(0, 3, 40, dtype=torch.float64)).unsqueeze(-1)
    x = torch.zeros(40, 1, dtype=torch.float64, requires_grad=True)
    unused = torch.zeros(40, 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=1.0)
    loss = 0.5 * ((x - goal) * metric.multiply(x - goal)).sum()
    loss.backward()
    raw = x.grad
    assert raw is not None
    kept = raw.clone()
    metric.step([x, unused])
    torch.testing.assert_close(raw, kept)  # the gradient is replaced, not written into
    assert unused.grad is None
    optimiser.step()
    torch.testing.assert_close(x.detach(), goal, rtol=1e-6, atol=1e-6)


def test_float32_and_compile() -> None:
    metric = Preconditioner(12, 0.1, dtype=torch.float32)
    wide = Preconditioner(12, 0.1)
    z = torch.randn(3, 12, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(metric.positions(z), wide.positions(z.double()).float())
    compiled = torch.compile(metric.positions, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z), metric.positions(z))


def test_bad_input() -> None:
    for horizon in (0, -1, 2.0, True):
        with pytest.raises(ArgumentError, match="horizon is out of range"):
            Preconditioner(horizon, 0.1)
    for dt in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises(ArgumentError, match="step must be positive"):
            Preconditioner(5, dt)
    with pytest.raises(ArgumentError, match="order is out of range"):
        Preconditioner(5, 0.1, order=4)
    with pytest.raises(ArgumentError, match="kind of the goal is out of range"):
        Preconditioner(5, 0.1, goal="rest")
    with pytest.raises(ArgumentTypeError, match="no such dtype"):
        Preconditioner(5, 0.1, dtype=torch.bfloat16)
    for weights in (torch.ones(4), -torch.ones(5), 1.0):
        with pytest.raises(ArgumentError, match="weights do not fit"):
            Preconditioner(5, 0.1, weights=weights)
    metric = Preconditioner(5, 0.1)
    with pytest.raises(ArgumentError, match="does not fit the horizon"):
        metric.positions(torch.zeros(4, 1, dtype=torch.float64))
    with pytest.raises(ArgumentTypeError, match="another dtype or device"):
        metric.invert(torch.zeros(5, 1))


def exact_inverse(rows: list[list[Fraction]], right: list[int]) -> list[float]:
    """Of a dense metric whose entries vanish beyond the third diagonal, by elimination."""
    size, x = len(rows), [Fraction(b) for b in right]
    for i in range(size):
        for j in range(i + 1, min(i + 4, size)):
            part = rows[j][i] / rows[i][i]
            for k in range(i, min(i + 4, size)):
                rows[j][k] -= part * rows[i][k]
            x[j] -= part * x[i]
    for i in reversed(range(size)):
        x[i] -= sum((rows[i][k] * x[k] for k in range(i + 1, min(i + 4, size))), Fraction(0))
        x[i] /= rows[i][i]
    return [float(value) for value in x]


def exact_metric(
    horizon: int, dt: float, order: int, ends: tuple[str, str]
) -> list[list[Fraction]]:
    form = {1: (-1, 1), 2: (1, -2, 1), 3: (-1, 3, -3, 1)}[order]
    rows = [[Fraction(0)] * horizon for _ in range(horizon)]
    first = -order if ends[0] == "fixed" else 0
    for b in range(first, horizon if ends[1] == "fixed" else horizon - order):
        for i, high in enumerate(form):
            for j, low in enumerate(form):
                if 0 <= b + i < horizon and 0 <= b + j < horizon:
                    rows[b + i][b + j] += Fraction(dt ** (1 - 2 * order)) * high * low
    if ends == ("free", "free"):
        for i in range(horizon):
            rows[i][i] += Fraction(dt * (dt * horizon) ** (-2 * order))
    return rows


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(("order", "horizon"), [(3, 10), (3, 128), (2, 100)])
def test_the_inverse_is_that_of_exact_arithmetic(
    order: int, horizon: int, ends: tuple[str, str]
) -> None:
    for right in ([1] * horizon, [(-7 * i) % 11 - 5 for i in range(horizon)]):
        truth = exact_inverse(exact_metric(horizon, 0.02, order, ends), right)
        expected = torch.tensor(truth, dtype=torch.float64).unsqueeze(-1)
        size = float(expected.abs().max())
        for dtype, part in ((torch.float64, 1e-12), (torch.float32, 1e-7)):
            metric = Preconditioner(
                horizon, 0.02, order=order, start=ends[0], goal=ends[1], dtype=dtype
            )
            found = metric.invert(torch.tensor(right, dtype=dtype).unsqueeze(-1))
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=part * size)


@pytest.mark.parametrize("ends", ENDS)
def test_long_horizons_are_inverted(ends: tuple[str, str]) -> None:
    metric = Preconditioner(2000, 0.02, start=ends[0], goal=ends[1])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 2, generator=generator, dtype=torch.float64).cumsum(0)
    size = float(x.abs().max())
    again = metric.positions(metric.variables(x))
    torch.testing.assert_close(again, x, rtol=0, atol=1e-6 * size)


def test_a_metric_that_float64_cannot_invert_is_refused() -> None:
    with pytest.raises(ArgumentError, match="conditioned too badly"):
        Preconditioner(40_000, 0.02, start="free", goal="free")


def test_weights_are_constants_and_never_silently_so() -> None:
    weights, y = torch.ones(6, dtype=torch.float64), torch.ones(6, 1, dtype=torch.float64)

    def run(weights: torch.Tensor) -> torch.Tensor:
        return Preconditioner(6, 0.5, weights=weights).multiply(y).sum()

    for call in (
        lambda: run(weights.clone().requires_grad_()),
        lambda: torch.func.grad(run)(weights),
        lambda: torch.func.jvp(run, (weights,), (weights,)),
        lambda: torch.func.vmap(run)(weights.expand(2, 6)),
    ):
        with pytest.raises(UnsupportedError, match="weights of a Preconditioner are constants"):
            call()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weights, weights)
        with pytest.raises(UnsupportedError, match="are constants"):
            run(dual)
    with torch.no_grad():  # where nobody asks for derivatives
        torch.testing.assert_close(run(weights.clone().requires_grad_()), run(weights))
