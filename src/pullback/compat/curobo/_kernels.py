"""The Functions: positions or accelerations of a batch to the whole motion.

Each has its published arguments.
"""

from collections.abc import Mapping, Sequence
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
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tensor import Function
from pullback.trajectory._checks import concrete

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


class CliqueTensorStep(Function):
    """Positions and their differences by dense matrices, the start gradient included."""

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

    @staticmethod
    def backward(
        ctx: Any, grad_out_p: Tensor, grad_out_v: Tensor, grad_out_a: Tensor, grad_out_j: Tensor
    ) -> tuple[Any, ...]:
        """Return a gradient for each argument that needs one."""
        u_act, start_position, mask, n_mask, *differences = ctx.saved_tensors
        start, position = start_position.unsqueeze(1), n_mask @ u_act
        position = position + mask @ start
        cotangents = (grad_out_v, grad_out_a, grad_out_j)
        joint = grad_out_p
        for difference, cotangent in zip(differences, cotangents, strict=True):
            joint = joint + difference.mT @ cotangent
        needs = _needs(ctx, 7)
        return (
            n_mask.mT @ joint if needs[0] else None,
            (mask.mT @ joint).squeeze(1) if needs[1] else None,
            (joint @ start.mT).sum(0) if needs[2] else None,
            (joint @ u_act.mT).sum(0) if needs[3] else None,
            *(
                (cotangent @ position.mT).sum(0) if need else None
                for need, cotangent in zip(needs[4:], cotangents, strict=True)
            ),
        )


class _NoContext:
    """The context of a forward whose backward is torch's own."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep nothing."""


class CliqueTensorStepKernel(Function):
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
    _scheme: Differences | Held = BACKWARD

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Return position, velocity, acceleration and jerk of the arguments of ``forward``.

        That is made of operations that torch differentiates itself, in less time than ``backward``
        takes, which is for compiled code, classes with rules of their own and who calls it.
        """
        if cls.__module__ == __name__ and not torch.compiler.is_compiling():
            return cls.forward(_NoContext(), *args, **kwargs)
        return super().apply(*args, **kwargs)

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
        starts = (start_position, start_velocity, start_acceleration)
        ctx.save_for_backward(u_act, *starts, traj_dt)
        inputs = {"u_act": u_act, **dict(zip(_STARTS, starts, strict=True)), "traj_dt": traj_dt}
        return cls._move(inputs, starts, (out_position, out_velocity, out_acceleration, out_jerk))

    @classmethod
    def _move(
        cls, inputs: Mapping[str, Tensor], starts: Sequence[Tensor], buffers: Sequence[Any]
    ) -> Four:
        u_act = inputs["u_act"]
        u, dt, p, v, a = map(_wide, (u_act, inputs["traj_dt"], *starts))
        values = cls._scheme.move(u, (p, v, a), dt)
        dtype = torch.promote_types(u_act.dtype, starts[0].dtype)
        if dtype in _HALF:
            p, v, a, j = values
            values = p.to(dtype), v.to(dtype), a.to(dtype), j.to(dtype)
        fill(dict(zip(_BUFFERS, buffers, strict=True)), values, inputs)
        return values

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
        index = ("start_idx",) * (len(ctx.saved_tensors) - 2 - len(_STARTS))
        places = ("u_act", *_STARTS, *index, *_BUFFERS, "traj_dt", "out_grad_position")
        names = [name for name in places[:-1] if name not in _BUFFERS]
        given = dict(zip(names, ctx.saved_tensors, strict=True))
        needs = dict(zip(places, _needs(ctx, len(places)), strict=True))
        wanted = [name for name in given if needs[name]]

        def move(*some: Tensor) -> Four:
            every = given | dict(zip(wanted, some, strict=True))
            starts = [every[name] for name in _STARTS]
            starts = [_gather(start, every[name]) for start in starts for name in index] or starts
            return cls._move(every, starts, (None,) * 4)

        if not wanted:
            return (None,) * len(places)
        pull = torch.func.vjp(move, *(given[name] for name in wanted))[1]
        pulled = pull((grad_out_p, grad_out_v, grad_out_a, grad_out_j))
        found = dict(zip(wanted, pulled, strict=True))
        return tuple(found.get(name) for name in places)


def _needs(ctx: Any, count: int) -> tuple[bool, ...]:
    """Which arguments need a gradient: none of those that a context of one's own leaves out."""
    return (*ctx.needs_input_grad, *(False,) * count)[:count]


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
        tables = (start_position, start_velocity, start_acceleration)
        ctx.save_for_backward(u_act, *tables, start_idx, traj_dt)
        inputs = {"u_act": u_act, **dict(zip(_STARTS, tables, strict=True))}
        return cls._move(
            {**inputs, "start_idx": start_idx, "traj_dt": traj_dt},
            [_gather(table, start_idx) for table in tables],
            (out_position, out_velocity, out_acceleration, out_jerk),
        )


def _gather(start: Tensor, start_idx: Tensor) -> Tensor:
    """The rows ``start_idx [batch]`` of a table ``[states, dof]``."""
    check_shapes(start_value=(start, "states dof"), start_idx=(start_idx, "batch"))
    if start_idx.dtype not in _INTEGERS:
        raise ArgumentTypeError(
            "start_idx is not a tensor of integers.",
            given=str(start_idx.dtype),
            expected="int32 or int64",
        )
    index = start_idx.long()
    known = concrete(index)
    if known is not None and bool(((known < 0) | (known >= start.shape[0])).any()):
        raise ArgumentError(
            "start_idx is out of range.",
            given=f"indices from {int(known.min())} to {int(known.max())}",
            expected=f"0 to {start.shape[0] - 1}",
        )
    return start.index_select(0, index)


class CliqueTensorStepIdxCentralDifferenceKernel(CliqueTensorStepIdxKernel):
    """`CliqueTensorStepCentralDifferenceKernel`; each trajectory takes a row of the starts."""

    _scheme = CENTRAL


class AccelerationTensorStepIdxKernel(CliqueTensorStepIdxKernel):
    """Accelerations by semi-implicit Euler; each trajectory takes a row of the start values.

    ``u_act`` and ``traj_dt`` are as in `AccelerationTensorStepKernel`.
    """

    _scheme = EULER
