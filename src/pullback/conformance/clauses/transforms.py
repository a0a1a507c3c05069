"""`transforms`: `torch.func.grad`, `vjp`, `jacrev` and `hessian` agree with autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pullback.conformance._clause import clause
from pullback.conformance._derivative import second_slopes
from pullback.conformance._failure import classify, describe
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._spans import has_basis, spans
from pullback.conformance._vectors import flatten, products
from pullback.report import Finding, Verdict

__all__ = ["transforms"]

_HINT = "Write Function from pullback instead, or use pullback.complete(F)."


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
    for name, compare in _TRANSFORMS.items():
        try:
            wrong = compare(probe)
        except Exception as error:  # judged by where it is raised
            kind = lacking if classify(error) is Verdict.LACKING else crashed
            kind.setdefault(describe(error, 120), []).append(name)
            continue
        if wrong is not None:
            expected, got = wrong
            return probe.broken(
                f"torch.func.{name} is silently wrong.",
                expected=expected, got=got, hint=_HINT, repro=_repro(name),
            )  # fmt: skip
    if crashed:
        return probe.crashes(f"torch.func fails in {_list(crashed)}", _HINT)
    if lacking:
        return probe.lacking(f"torch.func refuses {_list(lacking)}", _HINT)
    return probe.holds("torch.func.grad, vjp, jacrev and hessian agree with autograd.")


def _list(messages: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in messages.items())


Wrong = tuple[torch.Tensor, torch.Tensor] | None


def _grad(probe: Probe) -> Wrong:
    points = tuple(probe.point(0))  # copies: a forward may write to what it is given
    weights = probe.cotangents(_outputs(probe))

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return _weighted(probe.flat(*leaves), weights)

    got = torch.func.grad(loss, argnums=tuple(range(len(points))))(*points)
    return _first(probe, got, probe.backward(points, weights))


def _vjp(probe: Probe) -> Wrong:
    points = tuple(probe.point(0))  # copies: a forward may write to what it is given
    weights = probe.cotangents(_outputs(probe))
    pull: Any = torch.func.vjp(probe.flat, *points)[1]
    return _first(probe, pull(tuple(weights)), probe.backward(points, weights))


def _jacrev(probe: Probe) -> Wrong:
    """On a plane through the point: two outputs, two inputs, whatever the sizes."""
    points, steps = probe.inputs.points(), _plane(probe)
    choices = [probe.cotangents(_outputs(probe), k) for k in range(2)]

    def small(t: torch.Tensor) -> torch.Tensor:
        found = probe.flat(*_moved(points, steps, t))
        return torch.stack([_weighted(found, weights) for weights in choices])

    got = torch.func.jacrev(small)(torch.zeros(2, dtype=_real(points)))
    rows = [probe.backward(points, weights) for weights in choices]
    numbers = [[products(row, step)[0] for step in steps] for row in rows]
    expected = torch.tensor(numbers, dtype=torch.float64)
    return _first(probe, [got], [expected.to(got.dtype)])


def _hessian(probe: Probe) -> Wrong:
    """On the same plane, against finite differences of the Function's own backward."""
    points, steps, outputs = probe.inputs.points(), _plane(probe), _outputs(probe)
    if has_basis(outputs):
        return _hessian(spans(probe))
    weights = probe.cotangents(outputs)

    def small(t: torch.Tensor) -> torch.Tensor:
        return _weighted(probe.flat(*_moved(points, steps, t)), weights)

    got = torch.func.hessian(small)(torch.zeros(2, dtype=_real(points)))
    still = [torch.zeros_like(y) for y in outputs]
    for i, along in enumerate(steps):
        slopes = second_slopes(probe, [*points, *weights], [*along, *still])
        for j, onto in enumerate(steps):
            if slopes is None:
                continue
            estimate = slopes.weigh(flatten(onto))
            sizes = [abs(estimate.value), estimate.magnitude, float(got.abs().max())]
            # Either index may come first: a surrogate's Hessian need not be symmetric.
            gap = min(
                abs(float(got[i, j]) - estimate.value), abs(float(got[j, i]) - estimate.value)
            )
            rough = 1e-4 if got.dtype == torch.float64 else 5e-2
            if estimate.smooth and gap > rough * max(sizes) + 10 * estimate.error:
                return torch.tensor(estimate.value, dtype=torch.float64), got[i, j]
    return None


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


def _weighted(outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    terms = [(w.conj() * y).real.sum() for w, y in zip(weights, outputs, strict=True)]
    return torch.stack([term.to(terms[0].dtype) for term in terms]).sum()


def _outputs(probe: Probe) -> Tensors:
    return probe.output_values()


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
        "def f(x): return sum(y.sum() for y in tree_leaves(call("
        "*[x if a is xs[0] else a for a in args], **kwargs)))",
        "x = xs[0].detach()",
        f"print('torch.func', {call})",
        f"print('autograd  ', torch.autograd.{own}(f, x))",
    ]
