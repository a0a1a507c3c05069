"""The Functions: positions or accelerations of a batch to the whole motion.

Each has its published arguments.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pullback.compat.curobo._schemes import (
    BACKWARD,
    CENTRAL,
    EULER,
    EXACT,
    Differences,
    Four,
    Held,
)
from pullback.compat.curobo._shapes import check_shapes, fill
from pullback.compat.curobo._steps import jit_tensor_step_pos_clique
from pullback.errors import ArgumentTypeError
from pullback.tensor import Function
from pullback.trajectory._state import check_rows

__all__ = [
    "AccelerationTensorStepIdxKernel",
    "AccelerationTensorStepKernel",
    "CliqueTensorStep",
    "CliqueTensorStepCentralDifferenceKernel",
    "CliqueTensorStepCoalesceKernel",
    "CliqueTensorStepIdxCentralDifferenceKernel",
    "CliqueTensorStepIdxKernel",
    "CliqueTensorStepKernel",
]

_BUFFERS = ("out_position", "out_velocity", "out_acceleration", "out_jerk")
_STARTS = ("start_position", "start_velocity", "start_acceleration")
_HALF = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


# The context of a forward whose backward is torch's own: it keeps nothing.
_NO_CONTEXT = SimpleNamespace(save_for_backward=lambda *tensors: None)


class _Step:
    """What published Functions share: forward is made of operations that torch differentiates."""

    _arguments: tuple[str, ...]
    forward: Any

    @classmethod
    def _saved(cls) -> list[str]:
        return [name for name in cls._arguments if name not in (*_BUFFERS, "out_grad_position")]

    @classmethod
    def _move(cls, given: dict[str, Tensor]) -> Four:
        """What forward computes of the tensors that it saved, by their names."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Return position, velocity, acceleration and jerk of the arguments of ``forward``.

        Torch differentiates the operations in less time than ``backward`` takes, which is for
        classes with rules of their own and who calls it.
        """
        if cls.__module__ == __name__:
            return cls.forward(_NO_CONTEXT, *args, **kwargs)
        rules: Any = super()
        return rules.apply(*args, **kwargs)

    @classmethod
    def backward(
        cls,
        ctx: Any,
        grad_out_p: Tensor,
        grad_out_v: Tensor,
        grad_out_a: Tensor,
        grad_out_j: Tensor,
    ) -> tuple[Any, ...]:
        """Return a gradient for each argument that needs one."""
        given = dict(zip(cls._saved(), ctx.saved_tensors, strict=True))
        # A context of one's own may say of fewer whether they need one.
        needs = dict(zip(cls._arguments, ctx.needs_input_grad, strict=False))
        wanted = [name for name in given if needs.get(name)]
        found: dict[str, Tensor] = {}
        if wanted:

            def move(*some: Tensor) -> Four:
                return cls._move(given | dict(zip(wanted, some, strict=True)))

            pull = torch.func.vjp(move, *(given[name] for name in wanted))[1]
            pulled = pull((grad_out_p, grad_out_v, grad_out_a, grad_out_j))
            found = dict(zip(wanted, pulled, strict=True))
        return tuple(found.get(name) for name in cls._arguments)


class CliqueTensorStep(_Step, Function):
    """Positions and their differences by dense matrices, the start gradient included."""

    _arguments = ("u_act", "start_position", "mask", "n_mask", "fd_1", "fd_2", "fd_3")

    @staticmethod
    def forward(
        ctx: Any,
        u_act: Tensor,
        start_position: Tensor,
        mask: Tensor,
        n_mask: Tensor,
        fd_1: Tensor,
        fd_2: Tensor,
        fd_3: Tensor,
    ) -> Four:
        """As `jit_tensor_step_pos_clique`."""
        ctx.save_for_backward(u_act, start_position, mask, n_mask, fd_1, fd_2, fd_3)
        return jit_tensor_step_pos_clique(u_act, start_position, mask, n_mask, fd_1, fd_2, fd_3)

    @classmethod
    def _move(cls, given: dict[str, Tensor]) -> Four:
        return jit_tensor_step_pos_clique(*given.values())


class CliqueTensorStepKernel(_Step, Function):
    """Backward differences of positions; ``traj_dt[0]`` is 1/dt.

    Example:
        >>> import torch
        >>> from pullback.compat.curobo import CliqueTensorStepKernel
        >>> u = torch.tensor([0.25, 1.0, 2.25, 4.0]).view(1, 4, 1)
        >>> zero, out = torch.zeros(1, 1), torch.zeros(1, 4, 1)
        >>> rate = torch.tensor([2.0])
        >>> p, v, a, j = CliqueTensorStepKernel.apply(
        ...     u, zero, zero, zero + 2, out, None, None, None, rate, None)
        >>> out.flatten(), a.flatten()
        (tensor([0.0000, 0.2500, 1.0000, 2.2500]), tensor([2., 2., 2., 2.]))
    """

    mutates = _BUFFERS
    _arguments = ("u_act", *_STARTS, *_BUFFERS, "traj_dt", "out_grad_position")
    _scheme: Differences | Held = BACKWARD

    @classmethod
    def forward(
        cls,
        ctx: Any,
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """Return position, velocity, acceleration and jerk, ``[batch, horizon, dof]``.

        Arguments:
            ctx: the context.
            u_act: ``[batch, horizon, dof]`` positions; the last is not used.
            start_position: ``[batch, dof]``, at sample 0.
            start_velocity: the same.
            start_acceleration: the same.
            out_position: filled with the positions, or ``None``.
            out_velocity: the same for velocities.
            out_acceleration: the same for accelerations.
            out_jerk: the same for jerks.
            traj_dt: its first element is 1/dt, in 1/seconds.
            out_grad_position: not used; gradients are fresh tensors.
        """
        given = (u_act, start_position, start_velocity, start_acceleration, traj_dt)
        return cls._run(ctx, given, (out_position, out_velocity, out_acceleration, out_jerk))

    @classmethod
    def _run(cls, ctx: Any, tensors: Sequence[Tensor], buffers: Sequence[Tensor | None]) -> Four:
        ctx.save_for_backward(*tensors)
        given = dict(zip(cls._saved(), tensors, strict=True))
        values = cls._move(given)
        fill(dict(zip(_BUFFERS, buffers, strict=True)), values, given)
        return values

    @classmethod
    def _move(cls, given: dict[str, Tensor]) -> Four:
        u_act, starts = given["u_act"], [given[name] for name in _STARTS]
        if "start_idx" in given:
            starts = [_gather(start, given["start_idx"]) for start in starts]
        u, dt, p, v, a = map(_wide, (u_act, given["traj_dt"], *starts))
        values = cls._scheme.move(u, (p, v, a), dt)
        dtype = torch.promote_types(u_act.dtype, starts[0].dtype)
        if dtype in _HALF:
            p, v, a, j = values
            values = p.to(dtype), v.to(dtype), a.to(dtype), j.to(dtype)
        return values


def _wide(tensor: Tensor) -> Tensor:
    """Half precision in float32: the third power of 1/dt overflows float16 from dt = 25 ms down."""
    return tensor.float() if isinstance(tensor, Tensor) and tensor.dtype in _HALF else tensor


class CliqueTensorStepCoalesceKernel(CliqueTensorStepKernel):
    """The same numbers; there, another order in memory."""


class CliqueTensorStepCentralDifferenceKernel(CliqueTensorStepKernel):
    """Central differences of fourth order, ``[batch, N + 4, dof]`` for N actions.

    Sample 0 lies one step before the start, sample 1 is the start, and the last action is held for
    four samples more.
    """

    _scheme = CENTRAL


class AccelerationTensorStepKernel(CliqueTensorStepKernel):
    """Accelerations, held over each step and integrated exactly.

    ``u_act`` are accelerations and ``traj_dt`` seconds: one value, or ``[horizon]`` of which the
    first is not used.
    """

    _scheme = EXACT


class CliqueTensorStepIdxKernel(CliqueTensorStepKernel):
    """Backward differences; each trajectory takes a row of the start values."""

    _arguments = ("u_act", *_STARTS, "start_idx", *_BUFFERS, "traj_dt", "out_grad_position")

    @classmethod
    # The published arguments: the index stands before the buffers.
    def forward(  # pyrefly: ignore[bad-override]
        cls,
        ctx: Any,
        u_act: Tensor,
        start_position: Tensor,
        start_velocity: Tensor,
        start_acceleration: Tensor,
        start_idx: Tensor,
        out_position: Tensor | None,
        out_velocity: Tensor | None,
        out_acceleration: Tensor | None,
        out_jerk: Tensor | None,
        traj_dt: Tensor,
        out_grad_position: Tensor | None,
    ) -> Four:
        """As without an index, with starts ``[states, dof]`` and ``start_idx [batch]``."""
        starts = (start_position, start_velocity, start_acceleration)
        buffers = (out_position, out_velocity, out_acceleration, out_jerk)
        return cls._run(ctx, (u_act, *starts, start_idx, traj_dt), buffers)


def _gather(start: Tensor, start_idx: Tensor) -> Tensor:
    """The rows ``start_idx [batch]`` of a table ``[states, dof]``."""
    check_shapes(start_value=(start, "states dof"), start_idx=(start_idx, "batch"))
    if start_idx.dtype not in _INTEGERS:
        raise ArgumentTypeError(
            "start_idx is not a tensor of integers.",
            given=str(start_idx.dtype),
            expected="int32 or int64",
        )
    check_rows("start_idx", start_idx, len(start))
    return start.index_select(0, start_idx.long())


class CliqueTensorStepIdxCentralDifferenceKernel(CliqueTensorStepIdxKernel):
    """`CliqueTensorStepCentralDifferenceKernel`; each trajectory takes a row of the starts."""

    _scheme = CENTRAL


class AccelerationTensorStepIdxKernel(CliqueTensorStepIdxKernel):
    """Accelerations by semi-implicit Euler; each trajectory takes a row of the start values.

    ``u_act`` and ``traj_dt`` are as in `AccelerationTensorStepKernel`.
    """

    _scheme = EULER
