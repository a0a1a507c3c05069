"""Golden values from cuRobo's published formulas, computed here by loops over samples."""

import inspect
import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.utils.checkpoint
from tests.fuzzing import spread
from torch.autograd import gradcheck, gradgradcheck

from pullback.compat import curobo
from pullback.errors import ArgumentError, ArgumentTypeError

F64 = {"dtype": torch.float64}
ARGS = SimpleNamespace(device="cpu", dtype=torch.float64)
ZERO = torch.zeros(2, 3, **F64)
RATE = torch.tensor([20.0, -1.0, -1.0], **F64)


def backward_golden(u, q0, v0, a0, dt):
    _batch, horizon, _dof = u.shape
    x = {-1: q0 - v0 * dt + a0 * dt**2 / 2, -2: q0 - 2 * v0 * dt + 2 * a0 * dt**2, 0: q0}
    x |= {h: u[:, h - 1] for h in range(1, horizon)}
    rows = [(q0, v0, a0, ZERO)]
    for h in range(1, horizon):
        rows.append(
            (
                x[h],
                (x[h] - x[h - 1]) / dt,
                (x[h] - 2 * x[h - 1] + x[h - 2]) / dt**2,
                (x[h] - 3 * x[h - 1] + 3 * x[h - 2] - x.get(h - 3, q0)) / dt**3,
            )
        )
    return [torch.stack(part, 1) for part in zip(*rows, strict=True)]


def central_golden(u, q0, v0, a0, dt):
    # From rest these are the published ghosts; with a start velocity they lie on its parabola.
    past = [q0 - n * dt * v0 + (n * dt) ** 2 / 2 * a0 for n in (3, 2, 1)]
    line = [*past, q0] + list(u.unbind(1)) + [u[:, -1]] * 4
    weights = ((1, -8, 0, 8, -1), (-1, 16, -30, 16, -1), (-0.5, 1, 0, -1, 0.5))
    scales = (1 / (12 * dt), 1 / (12 * dt**2), 1 / dt**3)
    rows = []
    for h in range(u.shape[1] + 4):
        window = line[h : h + 5]
        rows.append(
            [window[2]]
            + [
                s * sum(w * x for w, x in zip(ws, window, strict=False))
                for ws, s in zip(weights, scales, strict=False)
            ]
        )
    return [torch.stack(part, 1) for part in zip(*rows, strict=True)]


def check(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-6)


def buffers(horizon, batch=2):
    return [torch.full((batch, horizon, 3), -7.0, **F64) for _ in range(4)]


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 6, 7, 30, 250])
@pytest.mark.parametrize("name", ["CliqueTensorStepKernel", "CliqueTensorStepCoalesceKernel"])
def test_backward_difference(horizon, name):
    u, q0 = torch.randn(2, horizon, 3, **F64), torch.randn(2, 3, **F64)
    for moving in (0.0, 1.0):
        out = buffers(horizon)
        starts = (q0, moving * torch.randn_like(q0), moving * torch.randn_like(q0))
        got = getattr(curobo, name).apply(u, *starts, *out, RATE, None)
        check(got, backward_golden(u, *starts, 0.05))
    for value, buffer in zip(got, out, strict=True):
        assert torch.equal(value, buffer)
        assert value.data_ptr() != buffer.data_ptr()


@pytest.mark.parametrize("actions", [1, 2, 3, 4, 26, 250])
def test_central_difference(actions):
    u, q0 = torch.randn(2, actions, 3, **F64), torch.randn(2, 3, **F64)
    apply = curobo.CliqueTensorStepCentralDifferenceKernel.apply
    for moving in (0.0, 1.0):
        out = buffers(actions + 4)
        starts = (q0, moving * torch.randn_like(q0), moving * torch.randn_like(q0))
        got = apply(u, *starts, *out, RATE, None)
        check(got, central_golden(u, *starts, 0.05))
    assert torch.equal(got[3], out[3])


def test_constant_acceleration_stays_constant():
    time = torch.arange(1, 8, **F64)[:, None] * 0.05
    u = (time + time**2).expand(2, 7, 3)
    start = (ZERO, ZERO + 1, ZERO + 2)
    _, v, a, j = curobo.CliqueTensorStepKernel.apply(u, *start, *[None] * 4, RATE, None)
    torch.testing.assert_close(a, torch.full_like(a, 2.0))
    torch.testing.assert_close(j, torch.zeros_like(j), atol=1e-8, rtol=0)
    _p, v, a, j = curobo.CliqueTensorStepCentralDifferenceKernel.apply(
        u, *start, *[None] * 4, RATE, None
    )
    inside = slice(0, 6)
    torch.testing.assert_close(a[:, inside], torch.full_like(a, 2.0)[:, inside])
    torch.testing.assert_close(j[:, inside], torch.zeros_like(j)[:, inside], atol=1e-8, rtol=0)
    want = 1 + 2 * 0.05 * torch.arange(-1, 5, **F64)[:, None]
    torch.testing.assert_close(v[0, inside], want.expand(6, 3))


def test_accelerations():
    u, dt = torch.full((2, 6, 3), 2.0, **F64), torch.full((6,), 0.2, **F64)
    got = curobo.AccelerationTensorStepKernel.apply(u, ZERO, ZERO, ZERO, *[None] * 4, dt, None)
    torch.testing.assert_close(got[1][:, -1], torch.full_like(ZERO, 2.0))
    torch.testing.assert_close(got[0][:, -1], torch.full_like(ZERO, 1.0))
    u, q = torch.randn(2, 5, 3, **F64), torch.randn(3, 3, **F64)
    index, dt = torch.tensor([2, 0]), 0.1 + torch.rand(5, **F64)
    got = curobo.AccelerationTensorStepIdxKernel.apply(
        u, q, 2 * q, 3 * q, index, *[None] * 4, dt, None
    )
    p, v, a = q[index], 2 * q[index], 3 * q[index]
    rows = [(p, v, a, ZERO)]
    for h in range(1, 5):
        j, a = (u[:, h - 1] - a) / dt[h], u[:, h - 1]
        v = v + a * dt[h]
        p = p + v * dt[h]
        rows.append((p, v, a, j))
    check(got, [torch.stack(part, 1) for part in zip(*rows, strict=True)])


@pytest.mark.parametrize("dt", [torch.tensor([0.2]), torch.tensor(0.2)])
def test_one_action_leaves_the_start(dt):
    u, starts = torch.randn(2, 1, 3, **F64), [torch.randn(2, 3, **F64) for _ in range(3)]
    index, out = torch.tensor([1, 0]), buffers(1)
    got = curobo.AccelerationTensorStepKernel.apply(u, *starts, *out, dt, None)
    check(got, [*(start[:, None] for start in starts), ZERO[:, None]])
    check(out, got)
    got = curobo.AccelerationTensorStepIdxKernel.apply(u, *starts, index, *[None] * 4, dt, None)
    check(got, [*(start[index, None] for start in starts), ZERO[:, None]])


def test_indices_gather_starts():
    u, q = torch.randn(2, 6, 3, **F64), torch.randn(4, 3, **F64)
    index = torch.tensor([3, 1], dtype=torch.int32)
    for name in ("CliqueTensorStep{}Kernel", "CliqueTensorStep{}CentralDifferenceKernel"):
        plain = getattr(curobo, name.format(""))
        table = getattr(curobo, name.format("Idx"))
        got = table.apply(u, q, 2 * q, 3 * q, index, *[None] * 4, RATE, None)
        rows = q[index.long()]
        check(got, plain.apply(u, rows, 2 * rows, 3 * rows, *[None] * 4, RATE, None))


PLAIN = [
    "CliqueTensorStepKernel",
    "CliqueTensorStepCoalesceKernel",
    "CliqueTensorStepCentralDifferenceKernel",
    "AccelerationTensorStepKernel",
]
INDEXED = [
    "CliqueTensorStepIdxKernel",
    "CliqueTensorStepIdxCentralDifferenceKernel",
    "AccelerationTensorStepIdxKernel",
]


def differentiable(name, horizon):
    """A Function of what can be differentiated, and arguments for it."""
    index = [torch.tensor([2, 0])] if name in INDEXED else []

    def run(u, q, v, a, dt):
        return getattr(curobo, name).apply(u, q, v, a, *index, *[None] * 4, dt, None)

    starts = (torch.randn(3 if index else 2, 1, **F64) for _ in range(3))
    steps = torch.tensor([1.3] if name.startswith("Clique") else [1.3] * horizon, **F64)
    used = (torch.randn(2, horizon, 1, **F64), *starts, steps)
    return run, tuple(x.requires_grad_() for x in used)


NAMES = [*PLAIN, *INDEXED]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("horizon", "name"),
    [*itertools.product([2], NAMES), *spread([*itertools.product([6, 7], NAMES)], 3)],
)
def test_gradients(name, horizon):
    run, used = differentiable(name, horizon)
    # Whole Jacobians of one function of each scheme at the shortest; elsewhere random directions.
    whole = horizon == 2 and name in (PLAIN[2], *INDEXED[::2])
    forward, fast = horizon == 2, not whole
    assert gradcheck(
        run, used, check_forward_ad=forward, fast_mode=fast, check_undefined_grad=whole
    )
    assert gradgradcheck(run, used, fast_mode=True)


@pytest.mark.parametrize("name", [*PLAIN, *INDEXED])
def test_the_adjoint_is_the_transpose_beyond_a_hundred_samples(name):
    run, (u, q, v, a, dt) = differentiable(name, 250)
    outputs = run(u, q, v, a, dt.detach())
    weights = [torch.randn_like(output) for output in outputs]
    products = [o * w for o, w in zip(outputs, weights, strict=True)]
    left = sum(product.sum() for product in products)
    grads = torch.autograd.grad(left, (u, q, v, a))
    right = sum((g * x).sum() for g, x in zip(grads, (u, q, v, a), strict=True))
    assert abs(left - right) <= 1e-13 * sum(product.abs().sum() for product in products)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*PLAIN, *INDEXED])
def test_half_precision_is_that_of_the_numbers(name, dtype):
    # 1/dt is 50 per second, or 20 ms; its third power is beyond float16.
    run, given = differentiable(name, 6)
    rate = 50.0 if name.startswith("Clique") else 0.02
    half = [x.detach().to(dtype) for x in given[:4]]
    half = [x.requires_grad_() for x in (*half, torch.full_like(given[4], rate).to(dtype))]
    double = [x.detach().double().requires_grad_() for x in half]
    outputs, expected = run(*half), run(*double)
    # Weighted: the gradient of a plain sum of differences cancels down to its rounding.
    weights = [(torch.randn(y.shape) / 100).to(dtype) for y in outputs]
    gradients = torch.autograd.grad(outputs, half, weights)
    wanted = torch.autograd.grad(expected, double, [w.double() for w in weights])
    for got, right in zip((*outputs, *gradients), (*expected, *wanted), strict=True):
        assert got.dtype == dtype
        fits = right.abs() <= torch.finfo(dtype).max
        scale = right.abs().max().clamp(max=torch.finfo(dtype).max)
        error = (got.double() - right)[fits].abs()
        assert (error <= 4 * torch.finfo(dtype).eps * scale).all()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", [*PLAIN, *INDEXED])
def test_transforms(name):
    run, used = differentiable(name, 6)
    fixed = tuple(x.detach() for x in used)

    def loss(u, *rest):
        return sum(part.square().sum() for part in run(u, *rest))

    [want] = torch.autograd.grad(loss(*used), used[0])
    many = torch.stack([fixed[0], 2 * fixed[0]])
    got = torch.func.vmap(torch.func.grad(loss), (0, None, None, None, None))(many, *fixed[1:])
    torch.testing.assert_close(got[0], want)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*used), used[0])[0], want)


@pytest.mark.parametrize("name", [*PLAIN, *INDEXED])
def test_checkpointing_and_gradients_that_are_not_needed(name):
    run, used = differentiable(name, 6)
    every = torch.autograd.grad(run(*used)[1].sum() + run(*used)[3].square().sum(), used)
    again = torch.utils.checkpoint.checkpoint(run, *used, use_reentrant=False)
    again = torch.autograd.grad(again[1].sum() + again[3].square().sum(), used)
    torch.testing.assert_close(again, every)
    for place, want in enumerate(every):
        alone = [x.detach() for x in used]
        alone[place].requires_grad_()
        values = run(*alone)
        [got] = torch.autograd.grad(values[1].sum() + values[3].square().sum(), alone[place])
        torch.testing.assert_close(got, want)


def test_two_forwards_share_buffers_and_not_gradients():
    out = buffers(6)
    u = [torch.randn(2, 6, 3, **F64, requires_grad=True) for _ in range(2)]
    apply = curobo.CliqueTensorStepKernel.apply
    a, b = (apply(x, ZERO, ZERO, ZERO, *out, RATE, out[0].clone()) for x in u)
    b[3].square().sum().backward()
    a[3].square().sum().backward()
    alone = u[0].detach().clone().requires_grad_()
    apply(alone, ZERO, ZERO, ZERO, *[None] * 4, RATE, None)[3].square().sum().backward()
    torch.testing.assert_close(u[0].grad, alone.grad)


KERNEL = (
    "ctx, u_act, start_position, start_velocity, start_acceleration, {}out_position, out_velocity, "
    "out_acceleration, out_jerk, traj_dt, out_grad_position"
)
POSITION_STEP = "pos_act, start_position, mask, n_mask, fd_1, fd_2, fd_3"
POSITION_BACK = "grad_p, grad_v, grad_a, grad_j, n_mask, fd_1, fd_2, fd_3"
STEP = "state, act, state_seq, dt_h, n_dofs, integrate_matrix, fd_matrix"
SIGNATURES = {
    "build_clique_matrix": "horizon, dt, device='cpu', dtype=torch.float32",
    "build_fd_matrix": "horizon, device='cpu', dtype=torch.float32, order=1, PREV_STATE=False, "
    "FULL_RANK=False, SHIFT=False",
    "build_int_matrix": "horizon, diagonal=0, device='cpu', dtype=torch.float32, order=1, "
    "traj_dt=None",
    "build_start_state_mask": "horizon, tensor_args",
    "tensor_step_jerk": STEP + "=None",
    "euler_integrate": "q_0, u, diag_dt, integrate_matrix",
    "tensor_step_acc": STEP + "=None",
    "jit_tensor_step_pos_clique": POSITION_STEP,
    "jit_tensor_step_pos_clique_contiguous": POSITION_STEP,
    "jit_backward_pos_clique": POSITION_BACK,
    "jit_backward_pos_clique_contiguous": POSITION_BACK,
    "tensor_step_pos_clique": "state, act, state_seq, mask_matrix, fd_matrix",
    "step_acc_semi_euler": "state, act, diag_dt, n_dofs, integrate_matrix",
    "tensor_step_acc_semi_euler": "state, act, state_seq, diag_dt, integrate_matrix, "
    "integrate_matrix_pos",
    "tensor_step_vel": STEP,
    "tensor_step_pos": "state, act, state_seq, fd_matrix",
    "tensor_step_pos_ik": "act, state_seq",
    "tensor_linspace": "start_tensor, end_tensor, steps=10",
    "sum_matrix": "h, int_steps, tensor_args",
    "interpolate_kernel": "h, int_steps, tensor_args",
    "action_interpolate_kernel": "h, int_steps, tensor_args, offset=4",
    "CliqueTensorStep": "ctx, u_act, start_position, mask, n_mask, fd_1, fd_2, fd_3",
    **dict.fromkeys(PLAIN, KERNEL.format("")),
    **dict.fromkeys(INDEXED, KERNEL.format("start_idx, ")),
}


def test_every_name_has_its_published_signature():
    assert sorted([*SIGNATURES, "rollout"]) == sorted(curobo.__all__)
    for name, published in SIGNATURES.items():
        call = getattr(curobo, name)
        if isinstance(call, type):
            assert issubclass(call, torch.autograd.Function)
            assert call.vjp == call.backward
            assert call.setup_context is torch.autograd.Function.setup_context
            back = inspect.signature(call.backward)
            assert list(back.parameters) == ["ctx", *(f"grad_out_{part}" for part in "pvaj")]
            call = call.forward
        bare = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in inspect.signature(call).parameters.values()
        ]
        assert str(inspect.Signature(bare)) == f"({published})", name


def test_matrices():
    fd = curobo.build_fd_matrix(5, dtype=torch.float64)
    x = torch.randn(5, **F64)
    torch.testing.assert_close(fd @ x, torch.cat([x.diff(), x[:1] * 0]))
    assert torch.equal(curobo.build_fd_matrix(5, dtype=torch.float64, order=3), fd @ fd @ fd)
    shifted = curobo.build_fd_matrix(5, dtype=torch.float64, SHIFT=True)
    torch.testing.assert_close(shifted @ x, torch.cat([x[:1] * 0, x.diff()]))
    longer = torch.randn(7, **F64)
    previous = curobo.build_fd_matrix(5, dtype=torch.float64, order=2, PREV_STATE=True)
    torch.testing.assert_close(previous @ longer, -longer.diff(n=2))
    full = curobo.build_fd_matrix(5, FULL_RANK=True)
    assert full[2].tolist() == [0, -1, 0, 1, 0]
    assert full[0].tolist() == [1, -1, 0, 0, 0]
    assert full[4].tolist() == [0, 0, 0, -1, 1]
    dt = torch.tensor([0.1, 0.2, 0.4], **F64)
    single = torch.ones(3, 3, **F64).tril() @ dt.diag()
    got = curobo.build_int_matrix(3, dtype=torch.float64, order=2, traj_dt=dt)
    torch.testing.assert_close(got, single @ single)
    assert torch.equal(curobo.build_int_matrix(3, order=0), torch.eye(3))
    assert curobo.build_int_matrix(3, diagonal=-1)[0].tolist() == [0, 0, 0]
    mask, n_mask = curobo.build_start_state_mask(4, ARGS)
    assert mask.flatten().tolist() == [1, 0, 0, 0]
    assert torch.equal(n_mask @ x[:4], torch.cat([x[:1] * 0, x[:3]]))
    clique = curobo.build_clique_matrix(3, dt, dtype=torch.float64) @ x[:3]
    rise = torch.cat([x[:1] * 0, x[:3].diff()]) / dt
    torch.testing.assert_close(clique, torch.cat([x[:1] * 0, x[:2], rise, rise / dt]))


def test_interpolation():
    steps = curobo.tensor_linspace(torch.zeros(1), torch.ones(1), 5)
    torch.testing.assert_close(steps, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0]))
    assert curobo.sum_matrix(3, 2, ARGS).tolist() == [[1, 0, 0]] * 2 + [[0, 1, 0]] * 2
    blend = [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    assert curobo.interpolate_kernel(3, 3, ARGS).tolist() == blend
    assert torch.equal(curobo.interpolate_kernel(4, 1, ARGS), curobo.sum_matrix(4, 1, ARGS))
    want = [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]] + [[0, 1]] * 5
    assert curobo.action_interpolate_kernel(2, 8, ARGS).tolist() == want
    three = curobo.action_interpolate_kernel(3, 6, ARGS, offset=2)
    assert torch.equal(three.sum(1), torch.ones(12, **F64))
    assert three[-1].tolist() == [0, 0, 1]


def test_dense_steps():
    mask, n_mask = curobo.build_start_state_mask(5, ARGS)
    fd = curobo.build_fd_matrix(5, dtype=torch.float64, SHIFT=True) * 20
    powers = (fd, fd @ fd, fd @ fd @ fd)
    u = torch.randn(2, 5, 3, **F64, requires_grad=True)
    q0 = torch.randn(2, 3, **F64, requires_grad=True)
    got = curobo.CliqueTensorStep.apply(u, q0, mask, n_mask, *powers)
    x = torch.cat([q0[:, None], u[:, :-1]], 1)
    torch.testing.assert_close(got[0], x)
    torch.testing.assert_close(got[1][:, 1:], x.diff(dim=1) * 20)
    grads = [torch.randn_like(x) for _ in range(4)]
    total = sum((a * b).sum() for a, b in zip(got, grads, strict=False))
    [gu, gq] = torch.autograd.grad(total, (u, q0))
    torch.testing.assert_close(gu, curobo.jit_backward_pos_clique(*grads, n_mask, *powers))
    assert gq.abs().sum() > 0
    state, seq = SimpleNamespace(position=q0), SimpleNamespace()
    done = curobo.tensor_step_pos_clique(state, u, seq, (mask, n_mask), powers)
    assert torch.equal(done.jerk, got[3])


def test_integrating_steps():
    dt = torch.tensor([0.1, 0.2, 0.4, 0.3], **F64)
    state, u = torch.randn(2, 9, **F64), torch.randn(2, 4, 3, **F64)
    q, v, a = (part[:, None] for part in state.split(3, -1))
    sums = torch.ones(4, 4, **F64).tril()
    step = dt[:, None]
    seq = torch.full((2, 4, 10), 5.0, **F64)
    got = curobo.tensor_step_jerk(state, u, seq, dt, 3, sums)
    acceleration = a + (u * step).cumsum(1)
    velocity = v + (acceleration * step).cumsum(1)
    position = q + (velocity * step).cumsum(1)
    torch.testing.assert_close(got[..., :9], torch.cat([position, velocity, acceleration], -1))
    assert torch.equal(got, seq)
    assert bool((got[..., 9] == 5).all())
    matrix = curobo.build_int_matrix(4, dtype=torch.float64, traj_dt=dt)
    velocity = v + (u * dt[:, None]).cumsum(1)
    position = q + (velocity * dt[:, None]).cumsum(1)
    want = torch.cat([position, velocity, u], -1)
    torch.testing.assert_close(curobo.step_acc_semi_euler(state, u, None, 3, matrix), want)
    torch.testing.assert_close(
        curobo.tensor_step_acc(state, u, torch.zeros(2, 4, 9, **F64), dt, 3, matrix), want
    )
    joint = SimpleNamespace(position=state[:, :3], velocity=state[:, 3:6])
    done = curobo.tensor_step_acc_semi_euler(joint, u, SimpleNamespace(), None, matrix, matrix)
    torch.testing.assert_close(done.position, position)
    fd = curobo.build_fd_matrix(4, dtype=torch.float64)
    got = curobo.tensor_step_vel(state, u, torch.zeros(2, 4, 9, **F64), dt, 3, matrix, fd)
    velocity = torch.cat([v, u[:, :-1]], 1)
    torch.testing.assert_close(got[..., 3:6], velocity)
    change = velocity.diff(dim=1) / dt[:-1, None]
    torch.testing.assert_close(got[..., 6:], torch.cat([a, change], 1))
    torch.testing.assert_close(got[..., :3], q + matrix @ velocity)
    joint.acceleration = state[:, 6:]
    buffer = torch.zeros(2, 4, 3, **F64)
    done = curobo.tensor_step_pos(joint, u, SimpleNamespace(position=buffer), fd)
    position = torch.cat([q, u[:, :-1]], 1)
    assert torch.equal(done.position, position)
    assert torch.equal(buffer, position)
    velocity = torch.cat([v, position.diff(dim=1)], 1)
    torch.testing.assert_close(done.velocity, velocity)
    torch.testing.assert_close(done.acceleration, torch.cat([a, velocity.diff(dim=1)], 1))
    assert curobo.tensor_step_pos_ik(u, SimpleNamespace()).position is u
    torch.testing.assert_close(curobo.euler_integrate(q, u, None, matrix), q + matrix @ u)


def test_bad_input():
    u = torch.randn(2, 6, 3, **F64)
    apply = curobo.CliqueTensorStepKernel.apply
    with pytest.raises(ArgumentError, match="start_position does not fit"):
        apply(u, ZERO[:1], ZERO, ZERO, *[None] * 4, RATE, None)
    with pytest.raises(ArgumentError, match="out buffer"):
        apply(u, ZERO, ZERO, ZERO, torch.zeros(2, 5, 3), None, None, None, RATE, None)
    with pytest.raises(ArgumentError, match="u_act does not fit"):
        apply(u[0], ZERO, ZERO, ZERO, *[None] * 4, RATE, None)
    index = torch.tensor([0, 2])
    with pytest.raises(ArgumentError, match="start_idx"):
        curobo.CliqueTensorStepIdxKernel.apply(u, ZERO, ZERO, ZERO, index, *[None] * 4, RATE, None)
    for call in (
        lambda: curobo.build_fd_matrix(0),
        lambda: curobo.build_fd_matrix(4, FULL_RANK=True),
        lambda: curobo.action_interpolate_kernel(2, 4, ARGS),
        lambda: curobo.build_clique_matrix(4, torch.ones(3)),
    ):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize("place", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("wrong", [None, "x", [1.0]], ids=["None", "text", "list"])
def test_what_is_no_tensor_is_refused_by_name(place, wrong):
    start = torch.zeros(2, 3)
    given = [torch.zeros(2, 6, 3), start, start, start, torch.tensor([0, 1])]
    given += [None, None, None, None, torch.tensor([4.0]), None]
    given[place] = wrong
    with pytest.raises(ArgumentTypeError, match="not a tensor"):
        curobo.CliqueTensorStepIdxKernel.apply(*given)
    if place != 4:
        with pytest.raises(ArgumentTypeError, match="not a tensor"):
            curobo.CliqueTensorStepKernel.apply(*given[:4], *given[5:])


def test_a_buffer_that_would_cut_off_the_result_is_refused():
    start = [torch.zeros(2, 3, dtype=torch.int32) for _ in range(3)]
    out = [torch.zeros(2, 8, 3, dtype=torch.int32) for _ in range(4)]
    act = torch.ones(2, 8, 3)
    with pytest.raises(ArgumentTypeError, match="cannot hold the result"):
        curobo.CliqueTensorStepKernel.apply(act, *start, *out, torch.full((8,), 10.0), None)


@pytest.mark.parametrize("name", [*PLAIN, *INDEXED])
def test_the_steps_have_no_say_in_the_dtype(name):
    run, given = differentiable(name, 6)
    single = [x.detach().float().requires_grad_() for x in given[:4]]
    outputs = run(*single, given[4])
    assert {output.dtype for output in outputs} == {torch.float32}
    gradients = torch.autograd.grad(sum(output.sum() for output in outputs), (*single, given[4]))
    assert [g.dtype for g in gradients] == [torch.float32] * 4 + [torch.float64]


@pytest.mark.parametrize("wrong", [0.0, -2.0, float("nan"), float("inf"), 1e-310])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Clique")])
def test_a_rate_that_is_none_is_refused(name, wrong):
    run, given = differentiable(name, 6)
    with pytest.raises(ArgumentError, match=r"traj_dt\[0\]"):
        run(*given[:4], torch.tensor([wrong, 1.0], **F64))
    assert all(torch.isfinite(part).all() for part in run(*given[:4], torch.tensor([1, 0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Clique")])
def test_a_rate_is_held_with_its_powers_or_refused(name, dtype):
    run, given = differentiable(name, 6)
    tensors = [x.detach().to(dtype) for x in given[:4]]
    for power in range(-320, 310, 3):
        rate = torch.tensor([10.0**power], **F64)
        try:
            parts = run(*tensors, rate)
        except ArgumentError:
            assert not -15 <= power <= 9, power
            continue
        # What half precision is computed in holds more than it does.
        assert not any(part.isnan().any() for part in parts), power
        assert dtype == torch.float16 or all(part.isfinite().all() for part in parts), power


@pytest.mark.parametrize("name", INDEXED)
def test_indices_are_integers_and_tables_have_rows(name):
    u, table = torch.ones(2, 5, 3), torch.zeros(2, 3)
    apply, rest = getattr(curobo, name).apply, (*[None] * 4, torch.tensor([2.0]), None)
    for index in (torch.tensor([0.5, 1.7]), torch.tensor([True, False])):
        with pytest.raises(ArgumentTypeError, match="not a tensor of integers"):
            apply(u, table, table, table, index, *rest)
    for wrong in (table[0, 0], table[0], table[None]):
        with pytest.raises(ArgumentError, match="start_value does not fit"):
            apply(u, wrong, table, table, torch.tensor([0, 1]), *rest)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_rates_are_no_whole_numbers(dtype):
    with pytest.raises(ArgumentTypeError, match="no whole numbers"):
        curobo.build_clique_matrix(4, torch.full((4,), 0.3), dtype=dtype)


@pytest.mark.parametrize("batch", [(), (2,), (2, 4)], ids=str)
def test_a_step_takes_any_batch(batch):
    fd, sums = curobo.build_fd_matrix(5, dtype=torch.float64), torch.ones(5, 5, **F64).tril()
    state, act = torch.randn(*batch, 1, 9, **F64), torch.randn(*batch, 5, 3, **F64)
    for step in (curobo.tensor_step_vel, curobo.tensor_step_acc, curobo.tensor_step_jerk):
        given = [torch.ones(5, **F64), 3, sums, fd]
        got = step(state, act, torch.zeros(*batch, 5, 9, **F64), *given)
        flat = (
            state.reshape(-1, 9),
            act.reshape(-1, 5, 3),
            torch.zeros(act.numel() // 15, 5, 9, **F64),
        )
        torch.testing.assert_close(got.reshape(-1, 5, 9), step(*flat, *given))


@pytest.mark.parametrize("shape", [(9,), (4, 9), (2, 4, 9), (3, 2, 4, 1, 9)], ids=str)
def test_a_start_is_one_for_each_trajectory(shape):
    sums, act = torch.ones(5, 5, **F64).tril(), torch.randn(3, 2, 4, 5, 3, **F64)
    state, given = torch.randn(shape, **F64), [torch.ones(5, **F64), 3, sums]
    every = state.squeeze(-2) if len(shape) == 5 else state
    for step in (curobo.tensor_step_acc, curobo.tensor_step_jerk):
        got, want = (
            step(each, act, torch.zeros(3, 2, 4, 5, 9, **F64), *given)
            for each in (state, every.expand(3, 2, 4, 9))
        )
        torch.testing.assert_close(got, want)


MATRIX, STATES = torch.eye(6), torch.zeros(2, 9)
WRONG_SHAPES = [
    lambda u: curobo.AccelerationTensorStepKernel.apply(
        u, *[ZERO.float()] * 3, *[None] * 4, torch.ones(5), None
    ),
    lambda u: curobo.AccelerationTensorStepKernel.apply(
        u, *[ZERO.float()] * 3, *[None] * 4, torch.ones(2, 6), None
    ),
    lambda u: curobo.tensor_step_vel(
        STATES, u, torch.zeros(2, 6, 9), torch.ones(2, 3), 3, MATRIX, MATRIX
    ),
    lambda u: curobo.tensor_step_jerk(STATES, u, torch.zeros(2, 6, 9), torch.ones(1), 3, MATRIX),
    lambda u: curobo.tensor_step_acc(STATES[:, :4], u, torch.zeros(2, 6, 9), None, 3, MATRIX),
    lambda u: curobo.step_acc_semi_euler(STATES, u, None, 2, MATRIX),
    lambda u: curobo.euler_integrate(u[:, :1], u, None, MATRIX[:5]),
    lambda u: curobo.euler_integrate(torch.zeros(3, 1, 3), u, None, MATRIX),
    lambda u: curobo.tensor_step_acc(STATES, u, torch.zeros(3, 6, 9), None, 3, MATRIX),
    lambda u: curobo.tensor_step_acc(STATES, u, torch.zeros(1, 6, 9), None, 3, MATRIX),
    lambda u: curobo.step_acc_semi_euler(torch.zeros(3, 9), u, None, 3, MATRIX),
    lambda u: curobo.jit_tensor_step_pos_clique(u, torch.zeros(7, 3), MATRIX[:, :1], *[MATRIX] * 4),
    lambda u: curobo.tensor_step_pos(
        SimpleNamespace(**dict.fromkeys(("position", "velocity", "acceleration"), u[:1, 0])),
        u, SimpleNamespace(), MATRIX,
    ),
    lambda u: curobo.tensor_linspace(torch.zeros(3), torch.ones(3), 10),
    lambda u: curobo.tensor_linspace(torch.zeros(2, 1), torch.ones(3, 1), 10),
    lambda u: curobo.jit_tensor_step_pos_clique(u, ZERO[0], MATRIX[:, :1], *[MATRIX] * 4),
    lambda u: curobo.jit_backward_pos_clique(u, u, u, u[:1], *[MATRIX] * 4),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(WRONG_SHAPES)))
def test_what_does_not_fit_is_refused_by_name(place):
    with pytest.raises(ArgumentError, match=r"fit|too little"):
        WRONG_SHAPES[place](torch.randn(2, 6, 3))


def test_a_matrix_is_made_within_compiled_code():
    def loss(x):
        return (curobo.build_fd_matrix(6).to(x) @ x).sum()

    x = torch.randn(6, **F64)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), loss(x))
