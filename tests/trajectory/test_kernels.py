"""Every backend equals the reference; which one runs can be asked for and asked about."""

import importlib.util
import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch
from tests.fuzzing import spread
from tests.trajectory.transposed import transpose

from pullback.errors import MissingExtraError, UnsupportedError
from pullback.trajectory import State, backend_used, differentiate, integrate
from pullback.trajectory.kernels._dispatch import kernels_word
from pullback.trajectory.kernels.accumulate import _cpu as accumulate_cpu
from pullback.trajectory.kernels.accumulate import _reference as accumulate
from pullback.trajectory.kernels.accumulate._reference import METHODS, step_table
from pullback.trajectory.kernels.stencil import _cpu, _reference
from pullback.trajectory.kernels.stencil._weights import Layout, nonuniform_table, uniform_table

BOUNDARIES = [((), ()), ((0, 1), ()), ((0, 1, 2), (0,)), ((1,), (1, 2, 3)), ((0, 1, 2, 3), (2,))]


def same_stencil(backend, horizons, dtype=torch.float64, boundaries=BOUNDARIES):
    tolerance = (
        {"rtol": 1e-11, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 0.5}
    )
    for scheme in ("central", "backward"):
        for horizon in horizons:
            for start, goal in boundaries:
                layout = Layout(scheme, start, goal)
                x = torch.randn(3, horizon, 5, dtype=dtype)
                values = torch.randn(3, layout.conditions, 5, dtype=dtype)
                grads = tuple(torch.randn(3, horizon, 5, dtype=dtype) for _ in range(4))
                dt = torch.rand(3, horizon - 1, dtype=torch.float64) + 0.3
                for table in (
                    uniform_table(layout, 0.125, x.device, dtype),
                    nonuniform_table(layout, dt[:1], dtype),
                    nonuniform_table(layout, dt, dtype),
                ):
                    geometry = layout.geometry
                    got = backend.apply(x, values, table, geometry)
                    want = _reference.apply(x, values, table, geometry)
                    torch.testing.assert_close(got, want, **tolerance)
                    got = backend.apply_adjoint(grads, table, geometry)
                    want = transpose(_reference, grads, table, geometry)
                    torch.testing.assert_close(got, want, **tolerance)


def same_accumulate(backend, dtype=torch.float64, dof=2, every=1):
    # Rows: one step for all, steps for all, steps for each and one step for each.
    table = itertools.product((1, 2, 3), (1, 2, 6), ((1, 0), (1, 1), (3, 1), (3, 0)), METHODS)
    for order, horizon, (batch, each), method in spread(list(table), every):
        rows = (batch, horizon if each else 1)
        steps = step_table(method, order, torch.rand(rows) + 0.3).to(dtype)
        u = torch.randn(3, horizon, dof, dtype=dtype)
        z = torch.randn(3, order, dof, dtype=dtype)
        grads = tuple(torch.randn(3, horizon + 1, dof, dtype=dtype) for _ in range(4))
        want = accumulate.apply(u, z, steps, (order,))
        torch.testing.assert_close(backend.apply(u, z, steps, (order,)), want)
        want = transpose(accumulate, grads, steps, (order,))
        torch.testing.assert_close(backend.apply_adjoint(grads, steps, (order,)), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stencil_on_the_cpu(dtype):
    torch.manual_seed(0)
    same_stencil(_cpu, (5, 6, 7, 9, 12, 40, 600), dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dof", [1, 7, 8, 16, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", ["central", "backward"])
def test_any_number_of_joints(scheme, dtype, dof, monkeypatch):
    torch.manual_seed(dof)
    tolerance = {"rtol": 1e-12, "atol": 1e-9} if dtype == torch.float64 else {}
    for start, goal in BOUNDARIES:
        layout = Layout(scheme, start, goal)
        table = uniform_table(layout, 0.5, torch.device("cpu"), dtype)
        for horizon in (5, 10, 11, 33):
            x = torch.randn(2, horizon, dof, dtype=dtype)
            values = torch.randn(2, layout.conditions, dof, dtype=dtype)
            grads = tuple(torch.randn(2, horizon, dof, dtype=dtype) for _ in range(4))
            forward, adjoint = (x, values, table, layout.geometry), (grads, table, layout.geometry)
            for many in (1 << 20, 1):  # through the caches, and past them
                monkeypatch.setattr(_cpu, "_MANY", many)
                got, want = _cpu.apply(*forward), _reference.apply(*forward)
                torch.testing.assert_close(got, want, **(tolerance or {"rtol": 1e-4, "atol": 1e-3}))
                got = _cpu.apply_adjoint(*adjoint)
                want = transpose(_reference, *adjoint)
                torch.testing.assert_close(got, want, **(tolerance or {"rtol": 1e-4, "atol": 1e-3}))


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("scheme", ["central", "backward"])
def test_weights_of_any_kind(scheme, tables):
    # A derivative with respect to weights is a table too, without the zeros of a layout's own.
    torch.manual_seed(0)
    layout = Layout(scheme, (1,), (0, 2))
    usual = uniform_table(layout, 0.5, torch.device("cpu"), torch.float64)
    x, values = torch.randn(3, 30, 7).double(), torch.randn(3, 3, 7).double()
    grads = tuple(torch.randn(3, 30, 7).double() for _ in range(4))
    for k in range(3):
        for n in range(layout.geometry.width):  # inside rows weigh no boundary values
            table = usual.repeat(tables, 1, 1, 1)
            table[-1, layout.geometry.left, k, n] += 1
            got = _cpu.apply(x, values, table, layout.geometry)
            torch.testing.assert_close(got, _reference.apply(x, values, table, layout.geometry))
            got = _cpu.apply_adjoint(grads, table, layout.geometry)
            torch.testing.assert_close(got, transpose(_reference, grads, table, layout.geometry))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        lambda x: torch._neg_view(-x),
        lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
        lambda x: x[:1].expand(3, -1, -1),
    ],
    ids=["transposed", "strided", "negated", "conjugated", "expanded"],
)
def test_memory_that_is_not_the_values(view):
    torch.manual_seed(0)
    x = view(torch.randn(3, 20, 7, dtype=torch.float64))
    motion, plain = differentiate(x, 0.1), differentiate(x.clone().resolve_neg(), 0.1)
    assert torch.equal(motion.position, plain.position)
    assert torch.equal(motion.jerk, plain.jerk)
    layout = Layout("central", (), ())
    table = uniform_table(layout, 0.1, x.device, x.dtype)
    got = _cpu.apply_adjoint((x, x, x, x), table, layout.geometry)
    whole = x.clone().resolve_neg()
    want = _cpu.apply_adjoint((whole,) * 4, table, layout.geometry)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dof", [1, 2, 7, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accumulate_on_the_cpu(dtype, dof):
    torch.manual_seed(dof)
    same_accumulate(accumulate_cpu, dtype, dof)


@pytest.mark.slow
def test_triton_through_its_interpreter():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    code = """
import torch
from tests.fuzzing import spread
from tests.trajectory.test_kernels import BOUNDARIES, same_accumulate, same_stencil
from pullback.trajectory import State, differentiate, integrate
from pullback.trajectory.kernels.accumulate import _triton as accumulate
from pullback.trajectory.kernels.stencil import _triton as stencil
torch.manual_seed(0)
same_stencil(stencil, spread([5, 9], 2), boundaries=spread(BOUNDARIES, 4))
same_stencil(stencil, (300,), boundaries=BOUNDARIES[-1:])
same_accumulate(accumulate, every=11)
same_accumulate(accumulate, torch.float32, every=17)
x = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
for call in (lambda b: differentiate(x, 0.1, backend=b).jerk,
             lambda b: integrate(x, 0.1, start=State(0.0, 0.0), backend=b).position):
    a, b = call("triton"), call("reference")
    torch.testing.assert_close(a, b)
    g, h = (torch.autograd.grad(y.square().sum(), x)[0] for y in (a, b))
    torch.testing.assert_close(g, h)
print("same")
"""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_backend_can_be_asked_for(backend):
    x = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    assert backend_used(x, backend) == backend
    for call in (
        lambda chosen: differentiate(x, 0.1, backend=chosen).jerk,
        lambda chosen: integrate(x, 0.1, start=State(0.0, 0.0), backend=chosen).position,
    ):
        torch.testing.assert_close(call(backend), call("auto"))
        grads = [torch.autograd.grad(call(b).square().sum(), x)[0] for b in (backend, "auto")]
        torch.testing.assert_close(*grads)


def test_triton_is_refused_on_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises((UnsupportedError, MissingExtraError), match="triton"):
        differentiate(torch.zeros(6, 1), 0.1, backend="triton")


def test_threads_split_the_batch_and_do_not_share_state():
    before = torch.get_num_threads()
    x = torch.randn(300, 256, 7)
    try:
        torch.set_num_threads(1)
        want = differentiate(x, 0.1)
        torch.set_num_threads(3)
        results = [None] * 4

        def work(i):
            results[i] = differentiate(x, 0.1)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(before)
    for result in results:
        assert torch.equal(result.jerk, want.jerk)
        assert torch.equal(result.position, x)


def test_operators_pass_torchs_own_check():
    layout = Layout("central", (1,), ())
    weights = uniform_table(layout, 0.5, torch.device("cpu"), torch.float64)
    x, c = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 1, 3, dtype=torch.float64)
    utilities = {"test_utils": ("test_schema", "test_faketensor")}
    steps = step_table("exact", 1, torch.rand(1, 5) + 0.3)
    stencil, sums = kernels_word("stencil", "cpu", layout.geometry), "accumulate cpu 1"
    for given in ((x, c, weights, stencil), (x[:, 1:], c, steps, sums)):
        _, _, *others = given
        torch.library.opcheck(torch.ops.pullback.levels, given, **utilities)
        adjoint = (x, x, x, x, *others)
        torch.library.opcheck(torch.ops.pullback.levels_adjoint, adjoint, **utilities)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_a_backend_returns_is_memory_of_its_own(backend):
    x = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    for motion in (
        differentiate(x, 0.1, backend=backend),
        differentiate(x, 0.1, start=State(position=1.0), backend=backend),
        integrate(x, 0.1, start=State(0.0, 0.0), backend=backend),
    ):
        parts = (motion.position, motion.velocity, motion.acceleration, motion.jerk)
        assert len({part.untyped_storage().data_ptr() for part in (x, *parts)}) == 5
        with torch.no_grad():
            for part in parts:
                part.add_(1.0)
    assert torch.equal(x, before)
