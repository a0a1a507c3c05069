"""`Preconditioner`: make the user's own cost of a trajectory easy for an optimiser."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._knots import MOST_SECONDS
from pullback.trajectory.kernels.banded import (
    banded_factor,
    banded_product,
    banded_solve,
    triangular_product,
    triangular_solve,
)

__all__ = ["Preconditioner"]

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

    All operations take time linear in the horizon, and are differentiable.

    Arguments:
        horizon: how many samples the optimiser may move, at least one.
        dt: seconds between samples.
        order: which derivative the metric measures: 1, 2 or 3 (jerk).
        start: ``"fixed"`` if the samples before the first one are given and stay, so that changes
            fade out towards it; ``"free"`` if there is nothing before it.
        goal: the same after the last sample.
        weights: ``[horizon]``, not negative: how strongly the cost holds each sample, as the
            factor ``w`` of a term ``w x[i]**2 / 2``. Add them for samples that a penalty pulls to
            a point, so that the optimiser need not find them out.
        dtype: of the metric; float64, or float32 for short horizons.
        device: of the metric.

    Raises:
        ArgumentError: a horizon, step, order or end out of range.
        ArgumentTypeError: a dtype other than float32 and float64.

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
        _check(horizon, dt, order, (start, goal), dtype)
        self.horizon = horizon
        self.dt = float(dt)
        self.order = order
        band = _metric(horizon, self.dt, order, start == "fixed", goal == "fixed")
        if weights is not None:
            band[:, 0] += _check_weights(weights, horizon)
        self.band = band.to(dtype=dtype, device=device)
        self._factor = banded_factor(self.band)

    def multiply(self, x: Tensor) -> Tensor:
        """The metric times ``x [..., horizon, dof]``: the gradient of half its square."""
        self._check_shape(x)
        return banded_product(self.band, x)

    def invert(self, gradient: Tensor) -> Tensor:
        """The inverse metric times a gradient ``[..., horizon, dof]``: a smooth direction."""
        self._check_shape(gradient)
        return banded_solve(self.band, gradient)

    def positions(self, variables: Tensor) -> Tensor:
        """From variables ``[..., horizon, dof]``, in which the metric is the identity."""
        self._check_shape(variables)
        return triangular_solve(self._factor, variables, transposed=True)

    def variables(self, positions: Tensor) -> Tensor:
        """From positions ``[..., horizon, dof]`` to variables; the inverse of `positions`."""
        self._check_shape(positions)
        return triangular_product(self._factor, positions, transposed=True)

    def step(self, parameters: Iterable[Tensor] | Tensor) -> None:
        """Replace the gradient of each parameter ``[..., horizon, dof]`` by the smooth direction.

        Raises:
            ArgumentError: a gradient of another horizon.
        """
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            if parameter.grad is not None:
                parameter.grad = self.invert(parameter.grad)

    def _check_shape(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[-2] != self.horizon:
            raise ArgumentError(
                "A trajectory does not fit the horizon of its preconditioner.",
                given=f"{tuple(x.shape)}",
                expected=f"[..., {self.horizon}, dof]",
            )
        if x.dtype != self.band.dtype or x.device != self.band.device:
            raise ArgumentTypeError(
                "A trajectory is of another dtype or device than its preconditioner.",
                given=f"{x.dtype} on {x.device}",
                expected=f"{self.band.dtype} on {self.band.device}",
            )


def _metric(horizon: int, dt: float, order: int, before: bool, after: bool) -> Tensor:
    """The band of the metric. A fixed end has ``order`` samples of zero change beyond it."""
    form = [math.comb(order, i) * (-1.0) ** (order - i) for i in range(order + 1)]
    band = torch.zeros(horizon, order + 1, dtype=torch.float64, device="cpu")
    first = -order if before else 0
    last = horizon if after else horizon - order
    # The difference that begins at sample b puts form[i] form[j] at row b + i, column b + j.
    for i, high in enumerate(form):
        for j in range(i + 1):
            rows = slice(max(first + i, i - j), max(min(last + i, horizon), 0))
            band[rows, i - j] += high * form[j]
    band *= dt ** (1 - 2 * order)
    # What the differences do not see (a constant, a slope, a bend) is held on the scale of the
    # whole duration; where an end is fixed they see everything.
    if not (before or after):
        band[:, 0] += dt * (dt * horizon) ** (-2 * order)
    return band


def _check_weights(weights: Tensor, horizon: int) -> Tensor:
    fits = isinstance(weights, Tensor) and weights.shape == (horizon,)
    if not fits or not bool(((weights >= 0) & torch.isfinite(weights)).all()):
        raise ArgumentError(
            "The weights do not fit the horizon, or are negative.",
            given=str(tuple(weights.shape)) if isinstance(weights, Tensor) else repr(weights),
            expected=f"a tensor [{horizon}] of finite numbers >= 0",
        )
    return weights.detach().to(dtype=torch.float64, device="cpu")


def _check(horizon: int, dt: float, order: int, ends: tuple[str, str], dtype: torch.dtype) -> None:
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
        raise ArgumentError(
            "The horizon is out of range.", given=repr(horizon), expected="1 sample or more"
        )
    number = isinstance(dt, (int, float)) and not isinstance(dt, bool)
    if not number or not 1 / MOST_SECONDS < dt < MOST_SECONDS:
        raise ArgumentError(
            "The step must be positive.",
            given=repr(dt),
            expected=f"seconds between {1 / MOST_SECONDS:g} and {MOST_SECONDS:g}",
        )
    if order not in (1, 2, 3) or isinstance(order, bool):
        raise ArgumentError("The order is out of range.", given=repr(order), expected="1, 2 or 3")
    for name, end in zip(("start", "goal"), ends, strict=True):
        if end not in ("fixed", "free"):
            raise ArgumentError(
                f"The {name} is of an unknown kind.", given=repr(end), expected="'fixed' or 'free'"
            )
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentTypeError(
            "A preconditioner has no such dtype.", given=str(dtype), expected="float32 or float64"
        )
