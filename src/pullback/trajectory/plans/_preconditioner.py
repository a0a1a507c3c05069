"""`Preconditioner`: make the user's own cost of a trajectory easy for an optimiser."""

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from typing import Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.torch import is_functorch_wrapped_tensor
from pullback.trajectory._arguments import check_device
from pullback.trajectory._knots import MOST_SECONDS
from pullback.trajectory._plain import plain
from pullback.trajectory.kernels.banded import triangular_product, triangular_solve
from pullback.trajectory.plans._decimal_factor import DIGITS, decimal_factor, decimal_solve

__all__ = ["Preconditioner"]

# Of an inverse, as a part of the largest entry. Third differences of 4,096 samples leave 1e-7.
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

    All operations take time linear in the horizon, and are differentiable
    in the trajectories that they are given. They compute in float64
    with a factor found in decimals, since the condition of third differences leaves a float64
    factorisation no digits at a few hundred samples. One solve at construction is compared with
    the exact one.

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
        check_device(device)
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
        squares = _squared_differences(horizon, order, *self._ends)
        self._factor = _factor(squares, self._scale, diagonal).to(device)
        self._diagonal = diagonal.unsqueeze(-1).to(device)

    def multiply(self, x: Tensor) -> Tensor:
        """The metric times ``x [..., horizon, dof]``: the gradient of half its square."""
        self._check_shape(x)
        exact, (before, after) = x.to(torch.float64), (self.order * end for end in self._ends)
        # As differences of differences: a product with the band would lose what cancels in it.
        change = _differences(exact, self.order, before, after)
        force = (-1) ** self.order * _differences(change, self.order, self.order, self.order)
        force = force.narrow(-2, before, self.horizon)
        return (self._scale * force + self._diagonal * exact).to(self.dtype)

    def invert(self, gradient: Tensor) -> Tensor:
        """The inverse metric times a gradient ``[..., horizon, dof]``: a smooth direction."""
        self._check_shape(gradient)
        return _solve(self._factor, gradient.to(torch.float64)).to(self.dtype)

    def positions(self, variables: Tensor) -> Tensor:
        """From variables ``[..., horizon, dof]``, in which the metric is the identity."""
        self._check_shape(variables)
        exact = variables.to(torch.float64)
        return triangular_solve(self._factor, exact, transposed=True).to(self.dtype)

    def variables(self, positions: Tensor) -> Tensor:
        """From positions ``[..., horizon, dof]`` to variables; the inverse of `positions`."""
        self._check_shape(positions)
        exact = positions.to(torch.float64)
        return triangular_product(self._factor, exact, transposed=True).to(self.dtype)

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
        if x.dtype != self.dtype or x.device != self._factor.device:
            raise ArgumentTypeError(
                "A trajectory is of another dtype or device than its preconditioner.",
                given=f"{x.dtype} on {x.device}",
                expected=f"{self.dtype} on {self._factor.device}",
            )


def _differences(x: Tensor, order: int, before: int, after: int) -> Tensor:
    """Of samples ``[..., n, dof]`` with so many zeros before and after them."""
    return torch.nn.functional.pad(x, (0, 0, before, after)).diff(n=order, dim=-2)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    half = triangular_solve(factor, right, transposed=False)
    return triangular_solve(factor, half, transposed=True)


def _factor(squares: Tensor, scale: float, diagonal: Tensor) -> Tensor:
    """The factor of ``scale`` times a band of whole numbers and a diagonal.

    Raises:
        ArgumentError: float64 does not solve with it.
    """
    with localcontext(prec=DIGITS):
        rows = [[Decimal(entry) * Decimal(scale) for entry in row] for row in squares.tolist()]
        for row, more in zip(rows, diagonal.tolist(), strict=True):
            row[0] += Decimal(more)
    exact = decimal_factor(rows)
    factor = torch.tensor(
        [[float(entry) for entry in row] for row in exact], dtype=torch.float64, device="cpu"
    )
    ones = torch.ones_like(factor[:, :1])
    truth = [float(entry) for entry in decimal_solve(exact, [Decimal(1)] * len(exact))]
    expected = torch.tensor(truth, dtype=torch.float64, device="cpu").unsqueeze(-1)
    off = float((_solve(factor, ones) - expected).abs().max() / expected.abs().max())
    if not off <= _PRECISION:
        raise ArgumentError(
            "The metric is conditioned too badly for float64.",
            given=f"a horizon of {len(exact)}, whose inverse is off by {off:.1g} of itself",
            expected=f"at most {_PRECISION:g}",
            mend="Optimise fewer samples and resample the result, or lower the order.",
        )
    return factor


def _squared_differences(horizon: int, order: int, before: bool, after: bool) -> Tensor:
    """Their band. A fixed end has ``order`` samples of zero change beyond it."""
    form = [math.comb(order, i) * (-1.0) ** (order - i) for i in range(order + 1)]
    band = torch.zeros(horizon, order + 1, dtype=torch.float64, device="cpu")
    first = -order if before else 0
    last = horizon if after else horizon - order
    # The difference that begins at sample b puts form[i] form[j] at row b + i, column b + j.
    for i, high in enumerate(form):
        for j in range(i + 1):
            rows = slice(max(first + i, i - j), max(min(last + i, horizon), 0))
            band[rows, i - j] += high * form[j]
    return band


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
