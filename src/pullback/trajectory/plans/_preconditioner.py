"""`Preconditioner`: make the user's own cost of a trajectory easy for an optimiser."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.kernels._backend import cpu_or_reference, implementation, is_plain
from pullback.internal.kernels._kernel import apply_rules
from pullback.internal.torch import is_functorch_wrapped_tensor
from pullback.tensor import Function
from pullback.trajectory._checks import (
    check_choice,
    check_floating,
    check_named_device,
    is_number,
    plain,
)
from pullback.trajectory._seconds import MOST_SECONDS
from pullback.trajectory.kernels.banded import _reference

__all__ = ["Preconditioner"]

# Of an inverse, as a part of the largest entry. Third differences of 20,000 samples leave 4e-11,
# and 6e-7 between free ends.
_PRECISION = 1e-6

End = Literal["fixed", "free"]


class Preconditioner:
    r"""A metric of smoothness on trajectories, ``[..., horizon, dof]``, and its inverse.

    .. math:: \langle x, M x \rangle = h^{1 - 2k} \sum_i (\Delta^k x)_i^2
            + \sum_i w_i x_i^2

    A cost that contains squared jerk has, in raw positions, a Hessian whose condition grows with
    the sixth power of the horizon, so that gradient methods crawl. In this metric the condition
    does not depend on the horizon. If both ends are free, :math:`h T^{-2k} \sum_i x_i^2` is added,
    since differences do not see a constant. There are two ways to use it:

    - *a change of variables*, for any optimiser (above all `torch.optim.LBFGS`): optimise
      ``z`` with ``x = positions(z)``; the metric of ``x`` is the identity of ``z``.
    - *a preconditioned gradient*, for optimisers that follow it (`torch.optim.SGD`): call
      ``step`` after ``backward`` and before the optimiser's own step.

    All operations take time linear in the horizon, and are differentiable in the trajectories that
    they are given. They compute in float64. The factor comes from the differences themselves by
    rotations, whose error grows with the root of the condition of the metric (of squares, third
    differences leave no digits at a few hundred samples), and `invert` corrects it once. How far a
    solve is off is measured at construction.

    Arguments:
        horizon: how many samples the optimiser may move, at least one.
        dt: seconds between samples.
        order: which derivative the metric measures: 1, 2 or 3 (jerk).
        start: ``"fixed"`` if the samples before the first one are given and stay, so that changes
            fade out towards it; ``"free"`` if there is nothing before it.
        goal: the same after the last sample.
        weights: ``[horizon]``, not negative: how strongly the cost holds each sample, as the
            factor ``w`` of a term ``w x[i]**2 / 2``. Add them for samples that a penalty pulls to
            a point, so that the optimiser need not find them out. They are constants.
        dtype: of trajectories and gradients, float64 or float32.
        device: of the metric.

    Raises:
        ArgumentError: a horizon, step, order or end out of range; a horizon so long that inverses
            would be off by more than a millionth, which is tens of thousands of samples.
        ArgumentTypeError: a dtype other than float32 and float64.
        UnsupportedError: weights that require a gradient, or are under a transform.

    Example:
        >>> import torch
        >>> from pullback.trajectory import Preconditioner
        >>> metric = Preconditioner(horizon=50, dt=0.02)
        >>> x = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> z = metric.variables(x)
        >>> torch.allclose(metric.positions(z), x)
        True
        >>> torch.allclose(metric.invert(metric.multiply(x)), x)
        True

    Source: Zucker and others, CHOMP: covariant Hamiltonian optimization for motion planning,
    2013, for the metric; Nocedal and Wright, Numerical Optimization, section 5.1, for the change
    of variables.
    """

    def __init__(
        self,
        horizon: int,
        dt: float,
        *,
        order: int = 3,
        start: End = "fixed",
        goal: End = "fixed",
        weights: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        horizon, dt = plain(horizon), plain(dt)
        _check(horizon, dt, order, (start, goal), dtype)
        check_named_device(device)
        self.horizon = horizon
        self.dt = float(dt)
        self.order = order
        self.dtype = dtype
        self._ends = (start == "fixed", goal == "fixed")
        self._scale = self.dt ** (1 - 2 * order)
        # What the differences do not see (a constant, a slope, a bend) is held on the scale of the
        # whole duration; where an end is fixed they see everything.
        held = 0.0 if any(self._ends) else self.dt * (self.dt * horizon) ** (-2 * order)
        diagonal = torch.full((horizon,), held, dtype=torch.float64, device="cpu")
        if weights is not None:
            diagonal += _check_weights(weights, horizon)
        self._diagonal = diagonal.unsqueeze(-1)
        rows = _rows_of(horizon, order, self._ends, self._scale**0.5, diagonal.sqrt().tolist())
        self._factor = _rotate(rows, horizon, order + 1)
        self._check_precision()
        self._factor, self._diagonal = self._factor.to(device), self._diagonal.to(device)

    def multiply(self, x: Tensor) -> Tensor:
        """The metric times ``x [..., horizon, dof]``: the gradient of half its square."""
        return self._run(self._multiply, x)

    def _multiply(self, exact: Tensor) -> Tensor:
        before, after = (self.order * end for end in self._ends)
        # As differences of differences: a product with the band would lose what cancels in it.
        change = _differences(exact, self.order, before, after)
        force = (-1) ** self.order * _differences(change, self.order, self.order, self.order)
        return self._scale * force.narrow(-2, before, self.horizon) + self._diagonal * exact

    def _invert(self, exact: Tensor) -> Tensor:
        # What the factor has lost to rounding, its residual gives back: half of the digits more.
        found = _solve(self._factor, exact)
        return found + _solve(self._factor, exact - self._multiply(found))

    def _check_precision(self) -> None:
        """Refuse a factor with which float64 does not solve.

        By a solve and its residual, which is known to more digits than the solve: what would take
        the residual away is by how much the solve is off.

        Source: Golub and Van Loan, Matrix Computations, section 3.5.3.
        """
        ones = torch.ones_like(self._diagonal)
        found = self._invert(ones)
        change = _solve(self._factor, ones - self._multiply(found))
        off = float(change.abs().max() / found.abs().max())
        if not off <= _PRECISION:
            raise ArgumentError(
                "The metric is conditioned too badly for float64.",
                given=f"a horizon of {self.horizon}, whose inverse is off by {off:.1g} of itself",
                expected=f"at most {_PRECISION:g}",
                mend="Optimise fewer samples and resample the result, or lower the order.",
            )

    def invert(self, gradient: Tensor) -> Tensor:
        """The inverse metric times a gradient ``[..., horizon, dof]``: a smooth direction."""
        return self._run(self._invert, gradient)

    def positions(self, variables: Tensor) -> Tensor:
        """From variables ``[..., horizon, dof]``, in which the metric is the identity."""
        return self._run(partial(substitute, self._factor), variables)

    def variables(self, positions: Tensor) -> Tensor:
        """From positions ``[..., horizon, dof]`` to variables; the inverse of `positions`."""
        return self._run(partial(multiply, self._factor), positions)

    def step(self, parameters: Iterable[Tensor] | Tensor) -> None:
        """Replace the gradient of each parameter ``[..., horizon, dof]`` by the smooth direction.

        Raises:
            ArgumentError: a gradient of another horizon.
            ArgumentTypeError: something that is no tensor.
        """
        listed = [parameters] if isinstance(parameters, Tensor) else parameters
        listed = list(listed) if isinstance(listed, Iterable) else [listed]
        for parameter in listed:
            check_floating("parameter", parameter)
            if parameter.grad is not None:
                parameter.grad = self.invert(parameter.grad)

    def _run(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        check_floating("trajectory", x, "[..., horizon, dof]", 2)
        if x.shape[-2] != self.horizon:
            raise ArgumentError(
                "A trajectory does not fit the horizon of its preconditioner.",
                given=f"{tuple(x.shape)}",
                expected=f"[..., {self.horizon}, dof]",
            )
        if x.dtype != self.dtype or x.device != self._factor.device:
            raise ArgumentTypeError(
                "A trajectory is of another dtype or device than its preconditioner.",
                given=f"{x.dtype} on {x.device}",
                expected=f"{self.dtype} on {self._factor.device}",
            )
        return function(x.to(torch.float64)).to(self.dtype)


def _differences(x: Tensor, order: int, before: int, after: int) -> Tensor:
    """Of samples ``[..., n, dof]`` with so many zeros before and after them."""
    return torch.nn.functional.pad(x, (0, 0, before, after)).diff(n=order, dim=-2)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    return substitute(factor, substitute(factor, right, transposed=True))


def multiply(factor: Tensor, x: Tensor) -> Tensor:
    """``R x [..., size, dof]`` of an upper factor ``R`` whose rows are ``[size, width]``."""
    size, width = factor.shape
    ahead = torch.nn.functional.pad(x, (0, 0, 0, width - 1))
    parts = [factor[:, d, None] * ahead[..., d : d + size, :] for d in range(width)]
    return sum(parts[1:], parts[0])


def substitute(factor: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """``R^-1 B [..., size, dof]``, or ``R^-T B``; batches are columns."""
    rows = right.movedim(-2, 0)
    found = apply_rules(Substitution, rows.flatten(1), factor, transposed)
    return found.unflatten(1, rows.shape[1:]).movedim(0, -2)


class Substitution(Function):
    """``R^-1 B`` or ``R^-T B``, linear in ``B``: each is the other's transpose."""

    @staticmethod
    def forward(right: Tensor, factor: Tensor, transposed: bool) -> Tensor:
        """Substitute; where something watches, in plain torch."""
        kernels: Any = _reference
        if is_plain(right, factor) and cpu_or_reference(right.device) == "cpu":
            kernels = implementation("pullback.trajectory.kernels.banded", "cpu")
        return kernels.substitute(factor, right, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factor."""
        _, factor, ctx.transposed = inputs
        ctx.save_for_backward(factor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        """Substitute the other way."""
        (factor,) = ctx.saved_tensors
        return Substitution.apply(cotangent, factor, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, of_right: Tensor, *_: Any) -> Tensor:
        """Substitute the same way."""
        # Written out: the derived rule compares <w, Jv> with <J'w, v> to a few rounding errors,
        # and a badly conditioned factor differs by its condition.
        (factor,) = ctx.saved_tensors
        return Substitution.apply(of_right, factor, ctx.transposed)


def _rows_of(
    horizon: int, order: int, ends: tuple[bool, bool], scale: float, diagonal: list[float]
) -> Iterator[tuple[int, list[float]]]:
    """Rows whose squares add up to the metric: where each begins, in this order, and its entries.

    A fixed end has ``order`` samples of zero change beyond it.
    """
    form = [scale * math.comb(order, i) * (-1.0) ** (order - i) for i in range(order + 1)]
    last = horizon if ends[1] else horizon - order
    for b in range(-order if ends[0] else 0, horizon):
        if b < last:
            yield max(b, 0), form[max(-b, 0) : horizon - b]
        if b >= 0 and diagonal[b]:
            yield b, diagonal[b : b + 1]


def _rotate(rows: Iterable[tuple[int, list[float]]], size: int, width: int) -> Tensor:
    """The upper factor ``R`` of the squares of rows, by Givens rotations.

    With ``B = Q R`` for the matrix ``B`` of the rows, ``B' B = R' R``. Rows ``[size, width]`` are
    from the diagonal on. It is that of a ``B`` that is off by rounding, so that a solve is off by
    a rounding error times the condition of ``B``, the root of that of ``B' B``: as much as rounding
    the exact factor costs.

    Source: Golub and Van Loan, Matrix Computations, sections 5.1.8 and 5.3.
    """
    upper = [[0.0] * width for _ in range(size + width)]
    for begin, entries in rows:
        row = entries + [0.0] * (width - len(entries))
        for pivot in upper[begin : begin + width]:
            lead = row[0]
            if lead:
                length = math.hypot(pivot[0], lead)
                c, s = pivot[0] / length, lead / length
                for e, (high, low) in enumerate(zip(pivot, row, strict=True)):
                    pivot[e], row[e] = c * high + s * low, c * low - s * high
            row = [*row[1:], 0.0]
    return torch.tensor(upper[:size], dtype=torch.float64, device="cpu")


def _check_weights(weights: Tensor, horizon: int) -> Tensor:
    if isinstance(weights, Tensor) and _is_followed(weights):
        raise UnsupportedError(
            "The weights of a Preconditioner are constants.",
            given="weights that require a gradient, have a tangent or are under torch.func",
            mend="Pass weights.detach(), and outside of torch.func; a metric may be any that suits "
            "the cost, whose minimum does not depend on it.",
        )
    fits = isinstance(weights, Tensor) and weights.shape == (horizon,)
    if not fits or not bool(((weights >= 0) & torch.isfinite(weights)).all()):
        raise ArgumentError(
            "The weights do not fit the horizon, or are negative.",
            given=str(tuple(weights.shape)) if isinstance(weights, Tensor) else repr(weights),
            expected=f"a tensor [{horizon}] of finite numbers >= 0",
        )
    return weights.detach().to(dtype=torch.float64, device="cpu")


def _is_followed(tensor: Tensor) -> bool:
    """Whether somebody asks for derivatives with respect to a tensor, or has a batch of them."""
    return (
        (tensor.requires_grad and torch.is_grad_enabled())
        or is_functorch_wrapped_tensor(tensor)
        or torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
    )


def _check(horizon: int, dt: float, order: int, ends: tuple[str, str], dtype: torch.dtype) -> None:
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
        raise ArgumentError(
            "The horizon is out of range.", given=repr(horizon), expected="1 sample or more"
        )
    if not is_number(dt) or not 1 / MOST_SECONDS < dt < MOST_SECONDS:
        raise ArgumentError(
            "The step must be positive.",
            given=repr(dt),
            expected=f"seconds between {1 / MOST_SECONDS:g} and {MOST_SECONDS:g}",
        )
    check_choice("order", order, (1, 2, 3))
    for name, end in zip(("start", "goal"), ends, strict=True):
        check_choice(f"kind of the {name}", end, ("fixed", "free"))
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise ArgumentTypeError(
            "A preconditioner has no such dtype.", given=str(dtype), expected="float32 or float64"
        )
