"""A seven-joint arm moves through two via points with least jerk, within its limits.

    python examples/arm.py [picture.png]

Three things are shown: the sampled optimum converges to the piecewise quintic with the square of
the step; limits on velocity, acceleration and jerk are kept; and a cost of one's own is optimised
in a few evaluations once the optimiser works in the metric of smoothness.
"""

import math
import sys

import torch

from pullback.trajectory import Limits, Preconditioner, minimum_jerk, minimum_time, plot, quintic

POINTS = torch.tensor(
    [
        [0.00, -0.50, 0.00, -1.90, 0.00, 1.50, 0.70],
        [0.55, 0.05, 0.25, -1.35, -0.35, 1.95, 1.10],
        [1.00, 0.40, -0.15, -1.70, 0.30, 2.35, 0.45],
        [1.40, 0.10, 0.10, -2.10, 0.00, 2.00, 0.00],
    ],
    dtype=torch.float64,
)
TIMES = [0.0, 0.65, 1.30, 2.0]
LIMITS = Limits(velocity=1.4, acceleration=5.0, jerk=60.0)


def convergence() -> float:
    """Print the distance to the quintic for growing numbers of samples; return the slope."""
    curve = quintic(POINTS, TIMES)
    sizes, errors = [64, 128, 256, 512], []
    for samples in sizes:
        motion = minimum_jerk(POINTS, TIMES, samples=samples)
        exact = curve.sample(motion.times.clamp(max=TIMES[-1]))
        errors.append(float((motion.position - exact.position).abs().max()))
    print("Sampled optimum against the piecewise quintic")
    for samples, error in zip(sizes, errors, strict=True):
        print(f"  {samples:4d} samples   largest difference {error:.2e} rad")
    slope = math.log(errors[0] / errors[-1]) / math.log(sizes[-1] / sizes[0])
    print(f"  slope {slope:.2f}\n")
    return slope


def evaluations(most: int = 2500) -> tuple[int, int]:
    """Optimise a cost of one's own, preconditioned and raw; return the evaluations of both."""
    horizon, duration = 128, 2.0
    dt = duration / (horizon + 1)
    via = {round(t / dt) - 1: q for t, q in zip(TIMES[1:3], POINTS[1:3], strict=True)}
    before, after = POINTS[:1].expand(3, 7), POINTS[-1:].expand(3, 7)
    straight = torch.lerp(POINTS[0], POINTS[-1], _ease(horizon))
    weights = torch.zeros(horizon, dtype=torch.float64)
    weights[list(via)] = 1e5
    metric = Preconditioner(horizon, dt, weights=weights)

    def cost(x: torch.Tensor) -> torch.Tensor:
        jerk = torch.cat([before, x, after]).diff(n=3, dim=0) / dt**3
        through = sum((x[k] - q).square().sum() for k, q in via.items())
        # A posture that the arm prefers, no quadratic: the elbow is reluctant to stretch.
        posture = 100 * dt * torch.cos(x[:, 3] / 2).square().sum()
        return 0.5 * dt * jerk.square().sum() + 0.5e5 * through + posture

    def descend(start: torch.Tensor, to_positions: object) -> tuple[int, float]:
        assert callable(to_positions)
        z = start.clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [z],
            max_iter=most,
            max_eval=most,
            history_size=20,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-5,
            tolerance_change=1e-12,
        )
        count = 0

        def closure() -> torch.Tensor:
            nonlocal count
            count += 1
            optimiser.zero_grad()
            value = cost(to_positions(z))
            value.backward()
            return value

        optimiser.step(closure)
        return count, cost(to_positions(z.detach())).item()

    smooth = descend(torch.zeros_like(straight), lambda z: straight + metric.positions(z))
    raw = descend(straight, lambda z: z)
    print("L-BFGS on a cost of one's own: jerk, via points, a preferred posture")
    print(f"  preconditioned  {smooth[0]:5d} evaluations, cost {smooth[1]:.3f}")
    print(f"  raw positions   {raw[0]:5d} evaluations, cost {raw[1]:.3f} (stopped there)\n")
    return smooth[0], raw[0]


def _ease(horizon: int) -> torch.Tensor:
    s = (torch.arange(horizon, dtype=torch.float64) + 1) / (horizon + 1)
    return (10 * s**3 - 15 * s**4 + 6 * s**5).unsqueeze(-1)


def main(picture: str) -> None:
    convergence()
    evaluations()
    plain = minimum_jerk(POINTS, TIMES)
    kept = minimum_jerk(POINTS, TIMES, limits=LIMITS)
    fast = minimum_time(POINTS, LIMITS, times=TIMES)
    print("Largest values      velocity  acceleration    jerk  duration")
    for name, motion in (("no limits", plain), ("within limits", kept), ("stretched", fast)):
        peaks = [getattr(motion, kind).abs().max() for kind in LIMITS.given]
        print("  {:<15} {:9.3f} {:13.3f} {:7.2f}".format(name, *peaks), end="")
        print(f" {motion.times[-1]:8.3f} s")
    figure = plot(
        kept,
        LIMITS,
        points=POINTS,
        times=TIMES,
        title="Least jerk through two via points, within limits",
    )
    figure.savefig(picture, dpi=130)
    print(f"\nWrote {picture}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "arm.png")
