"""The steps that multiply by dense matrices.

They return fresh tensors and write the same values into the sequence that they are given. One name
means one thing in all of them, for a batch of trajectories of ``horizon`` samples and ``n`` joints:

======================  =====================================================================
``state``               the start: ``[batch, 3 n]`` or ``[batch, 1, 3 n]``, position, velocity
                        and acceleration, of which accelerations take the first two; or a joint
                        state, an object with each as ``[batch, n]``
``act``, ``pos_act``    ``[batch, horizon, n]``, what the step is named for
``state_seq``           ``[batch, horizon, >= 3 n]``, filled; or a joint state, which is set
``dt_h``                ``[horizon]`` seconds; accelerations have dt in the matrix and take none
``diag_dt``             not used, as in cuRobo: dt is in the matrix
``n_dofs``              n
``integrate_matrix``    ``[horizon, horizon]``, from `build_int_matrix`; ``_pos`` for position
``fd_matrix``           ``[horizon, horizon]``, from `build_fd_matrix`; not used by ``_jerk``
                        and ``_acc``; three, as ``fd_1``, ``fd_2`` and ``fd_3``, with dt included:
                        velocity, acceleration and jerk from position
``start_position``      ``[batch, n]``
``mask``, ``n_mask``    ``[horizon, 1]`` and ``[horizon, horizon]``, the two of
                        `build_start_state_mask`, together ``mask_matrix``
``grad_p`` ... ``_j``   ``[batch, horizon, n]``, of position, velocity, acceleration and jerk
======================  =====================================================================
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.compat.curobo._schemes import Four
from pullback.compat.curobo._shapes import check_shapes, fill
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import check_counts
from pullback.trajectory._checks import fits_within

__all__ = [
    "euler_integrate",
    "jit_backward_pos_clique",
    "jit_backward_pos_clique_contiguous",
    "jit_tensor_step_pos_clique",
    "jit_tensor_step_pos_clique_contiguous",
    "step_acc_semi_euler",
    "tensor_step_acc",
    "tensor_step_acc_semi_euler",
    "tensor_step_jerk",
    "tensor_step_pos",
    "tensor_step_pos_clique",
    "tensor_step_pos_ik",
    "tensor_step_vel",
]


def _start_row(part: Tensor, act: Tensor) -> Tensor:
    """One row of state for each trajectory, ``[..., 1, n]``."""
    flat = isinstance(part, Tensor) and 0 < part.ndim < act.ndim
    return part.unsqueeze(-2) if flat else part


def _start_parts(
    count: int, n_dofs: int, state: Tensor, act: Tensor, **matrices: Tensor
) -> list[Tensor]:
    """The first parts of a start, ``[..., 1, n]`` each; refused if they do not fit the actions."""
    check_counts(n_dofs=n_dofs)
    check_shapes({"n": int(n_dofs)}, act=(act, "... h n"))
    row = _start_row(state, act)
    check_shapes(act=(act, "... h n"), state=(row, "... 1 m"))
    if state.shape[-1] < count * n_dofs:
        raise ArgumentError(
            f"The start holds too little for {count} parts of {n_dofs} joints.",
            given=f"shape {tuple(state.shape)}",
        )
    _check_square(act.shape[-2], **matrices)
    return [row[..., part * n_dofs : (part + 1) * n_dofs] for part in range(count)]


def _check_square(horizon: int, **matrices: Tensor) -> None:
    check_shapes({"h": horizon}, **{name: (each, "h h") for name, each in matrices.items()})


def _join(state_seq: Tensor, parts: Sequence[Tensor], **inputs: Tensor) -> Tensor:
    check_shapes(state_seq=(state_seq, "... h m"))
    used, rows = sum(part.shape[-1] for part in parts), state_seq.shape[:-1]
    for part in parts:
        if not fits_within(part.shape[:-1], rows):
            raise ArgumentError(
                "state_seq does not fit the other arguments.",
                given=f"shape {tuple(state_seq.shape)}",
                expected=f"{[*part.shape[:-1]]} and the parts of a state",
            )
    kept = state_seq.detach()[..., used:].clone()
    fresh = torch.cat([*(part.expand(*rows, part.shape[-1]) for part in parts), kept], dim=-1)
    fill({"state_seq": state_seq}, [fresh], inputs)
    return fresh


def _no_joint_state(name: str, state: Any, names: Sequence[str]) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is not a joint state.",
        given=type(state).__name__,
        expected=f"an object with {', '.join(names)}",
    )


def _read(state: Any, *names: str) -> list[Tensor]:
    """Parts of a joint state."""
    given = [getattr(state, name, None) for name in names]
    parts = [part for part in given if isinstance(part, Tensor)]
    if len(parts) < len(names):
        raise _no_joint_state("state", state, names)
    return parts


def _set(state_seq: Any, **parts: Tensor) -> Any:
    """Set parts of a joint state, and return it."""
    try:
        if isinstance(state_seq, Tensor):  # which takes any attribute
            raise AttributeError
        for name, part in parts.items():
            setattr(state_seq, name, part)
    except AttributeError as error:
        raise _no_joint_state("state_seq", state_seq, list(parts)) from error
    return state_seq


def euler_integrate(q_0: Tensor, u: Tensor, diag_dt: Any, integrate_matrix: Tensor) -> Tensor:
    """Return ``q_0 + integrate_matrix u``, of a start ``[..., 1, n]`` and rates ``[..., h, n]``."""
    check_shapes(q_0=(q_0, "... 1 n"), u=(u, "... h n"), integrate_matrix=(integrate_matrix, "h h"))
    return q_0 + integrate_matrix @ u


def tensor_step_jerk(
    state: Tensor,
    act: Tensor,
    state_seq: Tensor,
    dt_h: Tensor,
    n_dofs: int,
    integrate_matrix: Tensor,
    fd_matrix: Any = None,
) -> Tensor:
    """Integrate jerk three times; dt comes from ``dt_h``, the matrix only sums."""
    start = _start_parts(3, n_dofs, state, act, integrate_matrix=integrate_matrix)
    position, velocity, acceleration = start
    check_shapes({"h": act.shape[-2]}, dt_h=(dt_h, "h"))
    step = dt_h[:, None]
    acceleration = acceleration + integrate_matrix @ (step * act)
    velocity = velocity + integrate_matrix @ (step * acceleration)
    position = position + integrate_matrix @ (step * velocity)
    return _join(state_seq, [position, velocity, acceleration], state=state, act=act)


def tensor_step_acc(
    state: Tensor,
    act: Tensor,
    state_seq: Tensor,
    dt_h: Any,
    n_dofs: int,
    integrate_matrix: Tensor,
    fd_matrix: Any = None,
) -> Tensor:
    """Integrate acceleration twice; dt is expected in the matrix."""
    stepped = step_acc_semi_euler(state, act, dt_h, n_dofs, integrate_matrix)
    return _join(state_seq, [stepped], state=state, act=act)


def step_acc_semi_euler(
    state: Tensor, act: Tensor, diag_dt: Any, n_dofs: int, integrate_matrix: Tensor
) -> Tensor:
    """Return position, velocity and acceleration joined, ``[..., horizon, 3 n]``."""
    start = _start_parts(2, n_dofs, state, act, integrate_matrix=integrate_matrix)
    position, velocity = start
    velocity = euler_integrate(velocity, act, diag_dt, integrate_matrix)
    position = euler_integrate(position, velocity, diag_dt, integrate_matrix)
    return torch.cat([position, velocity, act], dim=-1)


def tensor_step_acc_semi_euler(
    state: Any,
    act: Tensor,
    state_seq: Any,
    diag_dt: Any,
    integrate_matrix: Tensor,
    integrate_matrix_pos: Tensor,
) -> Any:
    """Set position, velocity and acceleration of a sequence and return it."""
    check_shapes(act=(act, "... h n"))
    position, velocity = (_start_row(part, act) for part in _read(state, "position", "velocity"))
    velocity = euler_integrate(velocity, act, diag_dt, integrate_matrix)
    position = euler_integrate(position, velocity, diag_dt, integrate_matrix_pos)
    return _set(state_seq, acceleration=act, velocity=velocity, position=position)


def tensor_step_vel(
    state: Tensor,
    act: Tensor,
    state_seq: Tensor,
    dt_h: Tensor,
    n_dofs: int,
    integrate_matrix: Tensor,
    fd_matrix: Tensor,
) -> Tensor:
    """Integrate velocity and take its difference; the last action is not used."""
    position, velocity, acceleration = _start_parts(
        3, n_dofs, state, act, integrate_matrix=integrate_matrix, fd_matrix=fd_matrix
    )
    check_shapes({"h": act.shape[-2]}, dt_h=(dt_h, "h"))
    velocity = torch.cat([velocity, act[..., :-1, :]], dim=-2)
    position = euler_integrate(position, velocity, None, integrate_matrix)
    change = (1 / dt_h)[:, None] * (fd_matrix @ velocity)
    acceleration = torch.cat([acceleration, change[..., :-1, :]], dim=-2)
    return _join(state_seq, [position, velocity, acceleration], state=state, act=act)


def tensor_step_pos(state: Any, act: Tensor, state_seq: Any, fd_matrix: Tensor) -> Any:
    """Set position, velocity and acceleration of a sequence from positions; return it.

    The last action is not used; tensors that the sequence holds are filled.
    """
    check_shapes(act=(act, "batch h n"), fd_matrix=(fd_matrix, "h h"))
    inner = act[:, :-1]
    names = "position", "velocity", "acceleration"
    starts = dict(zip(names, _read(state, *names), strict=True))
    found = {}
    for name, start in starts.items():
        row = _start_row(start, act)
        check_shapes(act=(act, "batch h n"), **{f"state.{name}": (row, "batch 1 n")})
        found[name] = torch.cat([row, inner], dim=1)
        inner = (fd_matrix @ found[name])[:, :-1]
    buffers = {f"state_seq.{name}": getattr(state_seq, name, None) for name in found}
    inputs = {f"state.{name}": start for name, start in starts.items()}
    fill(buffers, list(found.values()), {"act": act, "fd_matrix": fd_matrix, **inputs})
    return _set(state_seq, **found)


def tensor_step_pos_ik(act: Tensor, state_seq: Any) -> Any:
    """Set the positions of a sequence and return it."""
    check_shapes(act=(act, "... n"))
    return _set(state_seq, position=act)


def jit_tensor_step_pos_clique(
    pos_act: Tensor,
    start_position: Tensor,
    mask: Tensor,
    n_mask: Tensor,
    fd_1: Tensor,
    fd_2: Tensor,
    fd_3: Tensor,
) -> Four:
    """Return positions ``mask q0 + n_mask u`` and their differences by three matrices."""
    given = {"pos_act": (pos_act, "... h n"), "start_position": (start_position, "starts n")}
    check_shapes(**given, mask=(mask, "h 1"))
    start = start_position.unsqueeze(1)
    check_shapes(pos_act=given["pos_act"], start_position=(start, "... 1 n"))
    _check_square(pos_act.shape[-2], n_mask=n_mask, fd_1=fd_1, fd_2=fd_2, fd_3=fd_3)
    position = mask @ start + n_mask @ pos_act
    return position, fd_1 @ position, fd_2 @ position, fd_3 @ position


# There the two differ in memory traffic only.
jit_tensor_step_pos_clique_contiguous = jit_tensor_step_pos_clique


def jit_backward_pos_clique(
    grad_p: Tensor,
    grad_v: Tensor,
    grad_a: Tensor,
    grad_j: Tensor,
    n_mask: Tensor,
    fd_1: Tensor,
    fd_2: Tensor,
    fd_3: Tensor,
) -> Tensor:
    """Return the gradient of the actions of `jit_tensor_step_pos_clique`."""
    grads = {"grad_p": grad_p, "grad_v": grad_v, "grad_a": grad_a, "grad_j": grad_j}
    check_shapes(**{name: (grad, "batch h n") for name, grad in grads.items()})
    _check_square(grad_p.shape[-2], n_mask=n_mask, fd_1=fd_1, fd_2=fd_2, fd_3=fd_3)
    return n_mask.mT @ (grad_p + fd_1.mT @ grad_v + fd_2.mT @ grad_a + fd_3.mT @ grad_j)


jit_backward_pos_clique_contiguous = jit_backward_pos_clique


def tensor_step_pos_clique(
    state: Any,
    act: Tensor,
    state_seq: Any,
    mask_matrix: Sequence[Tensor],
    fd_matrix: Sequence[Tensor],
) -> Any:
    """Set position, velocity, acceleration and jerk of a sequence and return it."""
    (position,) = _read(state, "position")
    try:
        matrices = [mask_matrix[0], mask_matrix[1], fd_matrix[0], fd_matrix[1], fd_matrix[2]]
    except (TypeError, LookupError) as error:
        raise ArgumentTypeError(
            "mask_matrix or fd_matrix is not several matrices.",
            given=f"a {type(mask_matrix).__name__} and a {type(fd_matrix).__name__}: {error}",
            expected="two and three, as build_start_state_mask and build_fd_matrix make them",
        ) from None
    values = jit_tensor_step_pos_clique(act, position, *matrices)
    names = ("position", "velocity", "acceleration", "jerk")
    return _set(state_seq, **dict(zip(names, values, strict=True)))
