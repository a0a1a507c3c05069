"""The clause `compositions`."""

from collections.abc import Callable, Sequence

import torch

from pullback.conformance._batch import Batch, weigh
from pullback.conformance._clause import clause
from pullback.conformance._evidence import compare, differentiate
from pullback.conformance._failure import describe
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import flatten, products
from pullback.conformance.clauses._hints import SCALAR
from pullback.conformance.clauses._push import push
from pullback.report import Finding

__all__ = ["compositions"]


@clause(
    "compositions",
    promise="Each pair of transforms equals its parts, or refuses by itself.",
    why="Gradients of each sample, Hessian-vector products and Laplace approximations are "
    "transforms of transforms. Each level asks other rules of a Function, so that two that are "
    "right alone may be wrong together.",
    breach="against a loop over the Function's own backward, and against finite differences of it: "
    "vmap of grad, grad of vmap, vmap of jvp, jvp of vmap, jvp of grad, grad of jvp, hessian of "
    "vmap and vmap of hessian. Compiled ones are judged by `compile`.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def compositions(probe: Probe) -> Finding:
    """Compare each pair of transforms with what the Function's own backward says."""
    batch = Batch.of(probe)
    answered: list[str] = []
    refused: dict[str, list[str]] = {}
    # A nonlinear backward has no transpose, and torch has no tangents for operators.
    reverse = probe.intent == "nonlinear" or _has_no_tangent(batch)
    for name, ask in _PAIRS.items():
        if reverse and "grad of vmap" != name != "vmap of grad":
            continue
        try:
            wrong = ask(batch)
        except Exception as error:  # loud: `transforms`, `vmap` and `forward` say how clearly
            refused.setdefault(describe(error, 100), []).append(name)
            continue
        answered.append(name)
        if wrong is not None:
            expected, got = wrong
            return probe.broken(
                f"The {name} is silently wrong.",
                expected=expected, got=got, hint=_HINT, repro=_repro(name),
            )  # fmt: skip
    said = "; ".join(f"{', '.join(names)}: {text}" for text, names in refused.items())
    if not answered:
        return probe.skipped(f"Every pair is refused, as its parts are: {said}.")
    more = f" Refused: {said}." if said else ""
    return probe.holds(f"Right, each against its parts: {', '.join(answered)}.{more}")


_HINT = "Leave out jvp and vmap and let pullback.Function derive them, or use pullback.complete(F)."
Wrong = tuple[object, object] | None


def _has_no_tangent(batch: Batch) -> bool:
    """Whether it is an operator of torch.library whose tangent torch drops."""
    if batch.probe.subject.operator is None:
        return False
    _, tangents = push(batch.probe, batch.items[0], batch.steps[0])
    return any(tangent is None for tangent in tangents)


def _differ(batch: Batch, got: Sequence[torch.Tensor], expected: Tensors) -> Wrong:
    detached = [g.detach() for g in got]
    place = batch.probe.differ(detached, expected, looser=1e4)
    return None if place is None else (expected[place], detached[place])


def _vmap_of_grad(batch: Batch) -> Wrong:
    count = len(batch.items[0])
    slope = torch.func.grad(batch.loss(count), argnums=tuple(range(count)))
    got = batch.map(slope)(*batch.stacked(batch.items), *batch.stacked(batch.weights))
    return _differ(batch, got, batch.slopes())


def _grad_of_vmap(batch: Batch) -> Wrong:
    count = len(batch.items[0])
    weights = batch.stacked(batch.weights)

    def total(*stacked: torch.Tensor) -> torch.Tensor:
        return weigh(batch.map(batch.probe.flat)(*stacked), weights)

    got = torch.func.grad(total, argnums=tuple(range(count)))(*batch.stacked(batch.items))
    return _differ(batch, got, batch.slopes())


def _vmap_of_jvp(batch: Batch) -> Wrong:
    count = len(batch.items[0])

    def push(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.jvp(batch.probe.flat, given[:count], given[count:])[1]

    got = batch.map(push)(*batch.stacked(batch.items), *batch.stacked(batch.steps))
    return _transposed(batch, got)


def _jvp_of_vmap(batch: Batch) -> Wrong:
    points, steps = batch.stacked(batch.items), batch.stacked(batch.steps)
    return _transposed(batch, torch.func.jvp(batch.map(batch.probe.flat), points, steps)[1])


def _transposed(batch: Batch, tangents: Sequence[torch.Tensor]) -> Wrong:
    """Tangents of every item against <J'w, v>."""
    for k, (item, weights, step) in enumerate(
        zip(batch.items, batch.weights, batch.steps, strict=True)
    ):
        got, magnitude = products(weights, [t.detach()[k] for t in tangents])
        expected, scale = products(batch.probe.backward(item, weights), step)
        tolerance = max(magnitude, scale) * torch.finfo(batch.probe.dtype).eps ** 0.6
        if abs(got - expected) > tolerance:
            return f"{expected:.8g} (<J'w, v>, item {k})", f"{got:.8g} (<w, Jv>)"
    return None


def _jvp_of_grad(batch: Batch) -> Wrong:
    count = len(batch.items[0])

    def slope(k: int) -> float:
        def at(*points: torch.Tensor) -> tuple[torch.Tensor, ...]:
            loss = batch.loss(count)
            return torch.func.grad(loss, tuple(range(count)))(*points, *batch.weights[k])

        found = torch.func.jvp(at, tuple(batch.items[k]), tuple(batch.steps[k]))[1]
        return products(batch.steps[0], [t.detach() for t in found])[0]

    return _bends(batch, slope, batch.steps[0])


def _grad_of_jvp(batch: Batch) -> Wrong:
    """The gradient of <w, Jv> by the inputs, along another direction."""
    count = len(batch.items[0])
    onto = batch.steps[0]

    def slope(k: int) -> float:
        def pushed(*points: torch.Tensor) -> torch.Tensor:
            tangents = torch.func.jvp(batch.probe.flat, points, tuple(onto))[1]
            return weigh(tangents, batch.weights[k])

        found = torch.func.grad(pushed, tuple(range(count)))(*batch.items[k])
        return products(batch.steps[k], [t.detach() for t in found])[0]

    return _bends(batch, slope, onto)


def _bends(batch: Batch, slope: Callable[[int], float], onto: Tensors) -> Wrong:
    """d/dt <B(x + t v), u> by the transforms against finite differences of backward itself."""
    missed: list[Wrong] = []
    for k in range(len(batch.items)):
        got = slope(k)
        wrong = _against(batch, k, batch.steps[k], onto, got)
        if wrong is None:
            return None
        missed.append(wrong if wrong[0] is not _UNCLEAR else None)
    return next((m for m in missed if m is not None), None) if None not in missed else None


_UNCLEAR = object()


def _against(batch: Batch, k: int, step: Tensors, onto: Tensors, got: float) -> Wrong:
    """The difference, ``None`` if they agree, or a pair with `_UNCLEAR`."""

    def backward(moved: Tensors) -> Tensors:
        return batch.probe.backward(moved, batch.weights[k])

    estimate = differentiate(batch.probe.along(backward, step, batch.items[k]), flatten(onto))
    match = compare(estimate, got, abs(got), batch.probe.dtype)
    if match == "match":
        return None
    if match == "unclear" or max(abs(got), abs(estimate.value)) < 1e-9 * estimate.magnitude:
        return _UNCLEAR, _UNCLEAR
    return f"{estimate.value:.8g} +- {estimate.error:.1g} (differences of backward)", f"{got:.8g}"


def _hessian_of_vmap(batch: Batch) -> Wrong:
    """The second derivative along one line for each item, at once."""
    points, steps = batch.stacked(batch.items), batch.stacked(batch.steps)
    weights = batch.stacked(batch.weights)

    def along(t: torch.Tensor) -> torch.Tensor:
        # One number for each item: the Hessian is diagonal.
        moved = [
            x + t.reshape(-1, *[1] * (x.ndim - 1)).to(x.dtype) * v
            for x, v in zip(points, steps, strict=True)
        ]
        return weigh(batch.map(batch.probe.flat)(*moved), weights)

    start = torch.zeros(len(batch.items), dtype=points[0].dtype.to_real(), device=points[0].device)
    found = torch.func.hessian(along)(start)
    return _curves(batch, found.detach().diagonal())


def _vmap_of_hessian(batch: Batch) -> Wrong:
    count = len(batch.items[0])

    def bend(*given: torch.Tensor) -> torch.Tensor:
        points, steps = given[:count], given[count : 2 * count]

        def along(t: torch.Tensor) -> torch.Tensor:
            moved = [x + t.to(x.dtype) * v for x, v in zip(points, steps, strict=True)]
            return weigh(batch.probe.flat(*moved), given[2 * count :])

        start = torch.zeros((), dtype=points[0].dtype.to_real(), device=points[0].device)
        return torch.func.hessian(along)(start)

    stacked = [batch.stacked(part) for part in (batch.items, batch.steps, batch.weights)]
    return _curves(batch, batch.map(bend)(*[t for part in stacked for t in part]).detach())


def _curves(batch: Batch, found: torch.Tensor) -> Wrong:
    wrong = [
        _against(batch, k, batch.steps[k], batch.steps[k], float(found[k]))
        for k in range(len(batch.items))
    ]
    if any(w is None or w[0] is _UNCLEAR for w in wrong):
        return None
    return wrong[0]


_PAIRS: dict[str, Callable[[Batch], Wrong]] = {
    "vmap of grad": _vmap_of_grad,
    "grad of vmap": _grad_of_vmap,
    "vmap of jvp": _vmap_of_jvp,
    "jvp of vmap": _jvp_of_vmap,
    "jvp of grad": _jvp_of_grad,
    "grad of jvp": _grad_of_jvp,
    "hessian of vmap": _hessian_of_vmap,
    "vmap of hessian": _vmap_of_hessian,
}

_CALLS = {
    "vmap of grad": "vmap(grad(f))(X)",
    "grad of vmap": "grad(lambda Z: vmap(f)(Z).sum())(X)",
    "vmap of jvp": "vmap(lambda z, v: jvp(f, (z,), (v,))[1])(X, V)",
    "jvp of vmap": "jvp(vmap(f), (X,), (V,))[1]",
    "jvp of grad": "torch.stack([jvp(grad(f), (z,), (v,))[1] for z, v in zip(X, V)])",
    "grad of jvp": "torch.stack([grad(lambda z: jvp(f, (z,), (v,))[1])(z) for z, v in zip(X, V)])",
    "hessian of vmap": "jvp(grad(lambda Z: vmap(f)(Z).sum()), (X,), (V,))[1]",
    "vmap of hessian": "vmap(lambda z, v: jvp(grad(f), (z,), (v,))[1])(X, V)",
}


def _repro(name: str) -> list[str]:
    second = not name.startswith("vmap of g") and "grad of v" not in name
    bends = name in ("jvp of grad", "grad of jvp", "hessian of vmap", "vmap of hessian")
    own = "(B(X + 1e-6 * V) - B(X - 1e-6 * V)) / 2e-6" if bends else "B(X)"
    own = "(B(X) * V).flatten(1).sum(1)" if second and not bends else own
    return [
        "from torch.func import grad, jvp, vmap; x = xs[0].detach(); V = torch.randn(3, *x.shape)",
        SCALAR,
        "def b(z): z = z.clone().requires_grad_(); return torch.autograd.grad(f(z), z)[0]",
        "def B(Z): return torch.stack([b(z) for z in Z])",
        "X = torch.stack([x, 1.1 * x, 0.9 * x]); V = V.to(x)",
        f"print('composed', {_CALLS[name]})",
        f"print('parts   ', {own})",
    ]
