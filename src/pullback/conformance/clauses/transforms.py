"""`transforms`: `torch.func.grad`, `vjp`, `jacrev` and `hessian` agree with autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.conformance._clause import clause
from pullback.conformance._derivative import second_slopes
from pullback.conformance._evidence import FIRST_STEP, OTHER_STEP, compare
from pullback.conformance._failure import classify, describe
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._spans import has_basis, spans
from pullback.conformance._transforms import weigh
from pullback.conformance._vectors import flatten, products
from pullback.conformance.clauses._hints import COMPLETE, SCALAR
from pullback.report import Finding, Verdict

__all__ = ["transforms"]


@clause(
    "transforms",
    promise="`torch.func.grad`, `vjp`, `jacrev` and `hessian` agree with autograd.",
    why="torch.func.grad, vjp, jacrev and hessian must return what autograd returns. Code "
    "moved from one to the other would change its result.",
    breach="as a difference on a plane through the point, so that any size is cheap.",
    mend="The split form (`setup_context`), `pullback.Function`, or `pullback.complete(F)`.",
)
def transforms(probe: Probe) -> Finding:
    """Compare each transform with the Function's own backward."""
    lacking: dict[str, list[str]] = {}
    crashed: dict[str, list[str]] = {}
    for name, ask in _TRANSFORMS.items():
        try:
            wrong = ask(probe)
        except Exception as error:  # judged by its type
            kind = lacking if classify(error) is Verdict.LACKING else crashed
            kind.setdefault(describe(error, 120), []).append(name)
            continue
        if wrong is not None:
            expected, got = wrong
            return probe.broken(
                f"torch.func.{name} is silently wrong.",
                expected=expected, got=got, hint=COMPLETE, repro=_repro(name),
            )  # fmt: skip
    if crashed:
        return probe.crashes(f"torch.func fails in {_list(crashed)}", COMPLETE)
    if lacking:
        return probe.lacking(f"torch.func refuses {_list(lacking)}", COMPLETE)
    return probe.holds("torch.func.grad, vjp, jacrev and hessian agree with autograd.")


def _list(messages: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in messages.items())


Wrong = tuple[torch.Tensor, torch.Tensor] | None


def _grad(probe: Probe) -> Wrong:
    points = tuple(probe.point(0))  # copies: a forward may write to what it is given
    weights = probe.cotangents(probe.output_values())

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return weigh(probe.flat(*leaves), weights)

    got = torch.func.grad(loss, argnums=tuple(range(len(points))))(*points)
    return _first(probe, got, probe.backward(points, weights))


def _vjp(probe: Probe) -> Wrong:
    points = tuple(probe.point(0))  # copies: a forward may write to what it is given
    weights = probe.cotangents(probe.output_values())
    pull: Any = torch.func.vjp(probe.flat, *points)[1]
    return _first(probe, pull(tuple(weights)), probe.backward(points, weights))


def _jacrev(probe: Probe) -> Wrong:
    """On a plane through the point: two outputs, two inputs, whatever the sizes."""
    points, steps = probe.inputs.points(), _plane(probe)
    choices = [probe.cotangents(probe.output_values(), k) for k in range(2)]

    def small(t: torch.Tensor) -> torch.Tensor:
        found = probe.flat(*_moved(points, steps, t))
        return torch.stack([weigh(found, weights) for weights in choices])

    got = torch.func.jacrev(small)(torch.zeros(2, dtype=_real(points)))
    rows = [probe.backward(points, weights) for weights in choices]
    numbers = [[products(row, step)[0] for step in steps] for row in rows]
    expected = torch.tensor(numbers, dtype=torch.float64)
    return _first(probe, [got], [expected.to(got.dtype)])


def _hessian(probe: Probe) -> Wrong:
    """On the same plane, against finite differences of the Function's own backward."""
    points, steps, outputs = probe.inputs.points(), _plane(probe), probe.output_values()
    if has_basis(outputs):
        return _hessian(spans(probe))
    weights = probe.cotangents(outputs)

    def small(t: torch.Tensor) -> torch.Tensor:
        return weigh(probe.flat(*_moved(points, steps, t)), weights)

    got = torch.func.hessian(small)(torch.zeros(2, dtype=_real(points)))
    start = [*points, *weights]
    still = [torch.zeros_like(w) for w in weights]
    for i, along in enumerate(steps):
        for j, onto in enumerate(steps):
            # Either index may come first: a surrogate's Hessian need not be symmetric.
            found = [float(got[i, j]), float(got[j, i])]
            slope = _off(probe, start, [*along, *still], onto, found)
            if slope is not None:
                return torch.tensor(slope, dtype=torch.float64), got[i, j]
    return None


def _off(
    probe: Probe, start: Tensors, step: Tensors, onto: Tensors, found: list[float]
) -> float | None:  # fmt: skip
    """The slope of backward where, by two first steps, it is none of those found."""
    value, size = 0.0, max(map(abs, found))
    dtype = torch.float32 if probe.grain else probe.dtype
    for first in (OTHER_STEP, FIRST_STEP):
        slopes = second_slopes(probe, start, step, first)
        if slopes is None:
            return None
        estimate = slopes.weigh(flatten(onto))
        if any(compare(estimate, g, size, dtype, probe.grain) != "mismatch" for g in found):
            return None
        value = estimate.value
    return value


_TRANSFORMS: dict[str, Callable[[Probe], Wrong]] = {
    "grad": _grad,
    "vjp": _vjp,
    "jacrev": _jacrev,
    "hessian": _hessian,
}


def _plane(probe: Probe) -> list[Tensors]:
    return [probe.direction("first axis"), probe.direction("second axis")]


def _moved(points: Tensors, steps: list[Tensors], t: torch.Tensor) -> Tensors:
    return [x + t[0] * a + t[1] * b for x, a, b in zip(points, *steps, strict=True)]


def _real(points: Tensors) -> torch.dtype:
    return points[0].dtype.to_real()


def _first(probe: Probe, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Wrong:
    detached = [g.detach() for g in got]
    place = probe.differ(detached, expected, looser=1e4)
    return None if place is None else (expected[place], detached[place])


def _repro(name: str) -> list[str]:
    call = {
        "grad": "torch.func.grad(f)(x)",
        "vjp": "torch.func.vjp(f, x)[1](torch.ones((), dtype=x.dtype))",
        "jacrev": "torch.func.jacrev(f)(x)",
        "hessian": "torch.func.hessian(f)(x)",
    }[name]
    own = "functional.hessian" if name == "hessian" else "functional.jacobian"
    return [
        SCALAR,
        "x = xs[0].detach()",
        f"print('torch.func', {call})",
        f"print('autograd  ', torch.autograd.{own}(f, x))",
    ]
