"""Transforms of torch.func, alone and in pairs, of one item or of several beside each other.

Each is a function of the same four: inputs x, cotangents w of the outputs, a direction v of the
inputs, and another one, u. What it must give follows from the Function's own backward B alone: B
itself, its product with a direction, or how B changes along one by finite differences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from pullback.conformance.evidence._derivative import second_slopes
from pullback.conformance.evidence._evidence import Slopes, compare
from pullback.conformance.inputs._vectors import flatten, products
from pullback.conformance.probing._probe import Probe, Tensors

__all__ = ["ALONE", "NESTED", "PAIRS", "Batch", "Transform", "grad", "jvp", "push", "weigh"]

_BATCH = 3

Parts = tuple[torch.Tensor, ...]
Item = tuple[Parts, Parts, Parts, Parts]
Wrong = tuple[object, object] | None


@dataclass(frozen=True)
class Batch:
    """Items beside each other, each with cotangents and two directions."""

    probe: Probe  # the subject; its own inputs are the first item
    items: tuple[Item, ...]  # the four parts of each item
    # how B changes along the direction of an item, once that is known
    changes: dict[int, Slopes | None] = field(default_factory=dict)

    @classmethod
    def of(cls, probe: Probe) -> "Batch":
        """Three items close to each other."""
        points = [probe.point(number) for number in (0, *range(2, _BATCH + 1))]
        return cls(probe, tuple(
            (
                tuple(x), tuple(probe.cotangents(probe.output_values(x), f"item {k}")),
                tuple(probe.direction(f"item {k}")), tuple(probe.direction(f"onto {k}")),
            )
            for k, x in enumerate(points)
        ))  # fmt: skip

    @property
    def given(self) -> dict[str, Sequence[torch.Tensor]]:
        """What a script of the first item is given beside its inputs."""
        return dict(zip("wvu", self.items[0][1:], strict=True))

    @property
    def stacked(self) -> Item:
        """The parts of every item, stacked along a first dimension."""
        parts = zip(*self.items, strict=True)
        found = [tuple(torch.stack(p) for p in zip(*part, strict=True)) for part in parts]
        return (found[0], found[1], found[2], found[3])

    def fresh(self, k: int) -> Item:
        """An item with copies of its inputs: a forward may write to what it is given."""
        points, weights, step, onto = self.items[k]
        return tuple(x.clone() for x in points), weights, step, onto

    def call(self, *points: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of one item."""
        return self.probe.flat(*points)

    def map(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.func.vmap` of a function, over every argument."""
        return torch.func.vmap(function, randomness="same" if self.probe.random else "error")

    def change(self, k: int) -> Slopes | None:
        """How the Function's own backward changes along the direction of an item."""
        if k not in self.changes:
            points, weights, step, _ = self.items[k]
            still = [torch.zeros_like(w) for w in weights]
            found = second_slopes(self.probe, [*points, *weights], [*step, *still])
            self.changes[k] = found
        return self.changes[k]

    def slopes(self) -> Tensors:
        """The Function's own gradients, item by item."""
        every = [self.probe.backward(points, weights) for points, weights, *_ in self.items]
        return [torch.stack(parts) for parts in zip(*every, strict=True)]


def push(
    probe: Probe, points: Sequence[torch.Tensor], step: Sequence[torch.Tensor | None]
) -> tuple[Tensors, list[torch.Tensor | None]]:
    """Outputs and tangents, detached from forward mode; a step of ``None`` is no tangent at all."""
    with forward_ad.dual_level():
        duals = [
            x.clone() if v is None else forward_ad.make_dual(x.clone(), v)
            for x, v in zip(points, step, strict=True)
        ]
        pairs = [forward_ad.unpack_dual(y) for y in probe.evaluate(duals)]
        return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]


def weigh(outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The real sum of every entry of the outputs times its weight."""
    terms = [(w.conj() * y).real.sum() for w, y in zip(weights, outputs, strict=True)]
    return torch.stack([term.to(terms[0].dtype) for term in terms]).sum()


# Functions of a function and of some of the four --------------------------------------------------


def grad(function: Callable[..., Any], x: Parts, w: Parts) -> Any:
    """The gradient of <w, f>."""
    return torch.func.grad(lambda *moved: weigh(function(*moved), w), tuple(range(len(x))))(*x)


def jvp(function: Callable[..., Any], x: Parts, v: Parts) -> Any:
    """The tangent of f along v."""
    return torch.func.jvp(function, x, v)[1]


def _hessian(function: Callable[..., Any], x: Parts, w: Parts, v: Parts, *shape: int) -> Any:
    """The second derivative of <w, f> along v, for each of so many items."""

    def along(t: torch.Tensor) -> torch.Tensor:
        moved = [
            a + t.reshape(*shape, *[1] * (a.ndim - len(shape))).to(a.dtype) * b
            for a, b in zip(x, v, strict=True)
        ]
        return weigh(function(*moved), w)

    start = torch.zeros(shape, dtype=x[0].dtype.to_real(), device=x[0].device)
    return torch.func.hessian(along)(start)


def _on_plane(
    transform: Callable[..., Any], ask: Callable[..., torch.Tensor], x: Parts, *steps: Parts
) -> Any:
    """A transform at the origin of the plane of two directions, whatever the sizes."""

    def small(t: torch.Tensor) -> torch.Tensor:
        return ask(*(a + t[0] * v + t[1] * u for a, v, u in zip(x, *steps, strict=True)))

    return transform(small)(x[0].new_zeros(2, dtype=x[0].dtype.to_real()))


def _rows(w: Parts) -> tuple[Parts, Parts]:
    return w, tuple(part * part.abs() for part in w)


def _weigh_rows(outputs: Parts, w: Parts) -> torch.Tensor:
    return torch.stack([weigh(outputs, row) for row in _rows(w)])


def _vmap(ask: Callable[..., Any]) -> Callable[..., Any]:
    return lambda batch, *item: batch.map(partial(ask, batch))(*item)


# What they must give ------------------------------------------------------------------------------


def _gradients(batch: Batch, ask: Callable[..., Any]) -> Wrong:
    """Gradients of one item."""
    points, weights, *_ = batch.items[0]
    return _first(batch, ask(batch, *batch.fresh(0)), batch.probe.backward(points, weights))


def _products(batch: Batch, ask: Callable[..., Any]) -> Wrong:
    """<B, v> of one item, for two cotangents and two directions."""
    points, weights, *steps = batch.items[0]
    every = [batch.probe.backward(points, row) for row in _rows(weights)]
    got = ask(batch, *batch.fresh(0))
    expected = [[products(found, step)[0] for step in steps] for found in every]
    return _first(batch, [got], [got.new_tensor(expected)])


def _first(batch: Batch, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Wrong:
    detached = [g.detach() for g in got]
    place = batch.probe.differ(detached, expected, looser=1e4)
    return None if place is None else (expected[place], detached[place])


def _slopes(batch: Batch, ask: Callable[..., Any]) -> Wrong:
    """Gradients of all items."""
    return _first(batch, ask(batch, *batch.stacked), batch.slopes())


def _tangents(batch: Batch, ask: Callable[..., Any]) -> Wrong:
    """Tangents of every item, <w, Jv>, against <J'w, v>."""
    tangents = [t.detach() for t in ask(batch, *batch.stacked)]
    for k, (points, weights, step, _) in enumerate(batch.items):
        got, magnitude = products(weights, [t[k] for t in tangents])
        expected, scale = products(batch.probe.backward(points, weights), step)
        tolerance = max(magnitude, scale) * torch.finfo(batch.probe.dtype).eps ** 0.6
        if abs(got - expected) > tolerance:
            return f"{expected:.8g} (<J'w, v>, item {k})", f"{got:.8g} (<w, Jv>)"
    return None


def _bend(batch: Batch, ask: Callable[..., Any], other: int | None = None) -> Wrong:
    """How <B, u> changes along v, item by item; ``other`` is a part that is left to multiply."""

    def at(k: int) -> float:
        found = ask(batch, *batch.fresh(k))
        if other is None:
            return float(found)
        return products(batch.items[k][other], [t.detach() for t in found])[0]

    return _wrong_everywhere(batch, at, onto=3)


def _curves(batch: Batch, ask: Callable[..., Any]) -> Wrong:
    """How <B, v> changes along v, of all items at once."""
    found = ask(batch, *batch.stacked).detach()
    return _wrong_everywhere(batch, lambda k: float(found[k]), onto=2)


def _wrong_everywhere(batch: Batch, at: Callable[[int], float], onto: int) -> Wrong:
    """Against differences of B: wrong only where every item says so, for one may be at a kink."""
    wrong: Wrong = None
    eps = torch.finfo(torch.float32 if batch.probe.grain else batch.probe.dtype).eps
    for k, item in enumerate(batch.items):
        got, found = at(k), batch.change(k)
        if found is None:
            return None
        estimate = found.weigh(flatten(item[onto]))
        match = compare(estimate, got, abs(got), eps, batch.probe.grain)
        tiny = max(abs(got), abs(estimate.value)) < 1e-9 * estimate.magnitude
        if match != "mismatch" or tiny:
            return None
        pair = torch.tensor([estimate.value, got], dtype=torch.float64)
        wrong = wrong or (pair[0], pair[1])
    return wrong


@dataclass(frozen=True)
class Transform:
    """A transform, or one of another."""

    ask: Callable[..., Any]  # the function of a batch and of four parts
    # compares what it answers with the Function's own backward
    judge: Callable[[Batch, Callable[..., Any]], Wrong]
    source: str  # how it is written: of what `ALONE_OF` defines, or of items ``X``, ``V`` and ``f``
    parts: str  # what it must give, where ``B`` is the Function's own backward

    def shown(self) -> list[str]:
        """Lines of a script that show both, of what `ALONE_OF` defines."""
        return [
            *ALONE_OF,
            f"print('torch.func', {self.source})",
            f"print('autograd  ', {self.parts})",
        ]

    def wrong(self, batch: Batch) -> Wrong:
        """What is expected and what it gives, where these differ."""
        return self.judge(batch, self.ask)


ALONE_OF = [
    "zs = [x.detach() for x in xs]",
    "def at(*new):",
    "    global args; own = args",
    "    args = tree_map(lambda a: next((n for x, n in zip(xs, new) if x is a), a), own)",
    "    ys = outs(); args = own",
    "    return tuple(ys)",
    "def weighed(ys, ws): return sum((c.conj() * y).real.sum() for c, y in zip(ws, ys))",
    "def f(t, ws=w):",
    "    return weighed(at(*[x + t[0] * a + t[1] * b for x, a, b in zip(zs, v, u)]), ws)",
    "def B(ws, h=0.0):",
    "    new = [(x + h * a).requires_grad_() for x, a in zip(zs, v)]",
    "    return torch.autograd.grad(weighed(at(*new), ws), new, materialize_grads=True)",
    "zero = zs[0].real.new_zeros(2)",
]
"""Lines of a script that define what `ALONE` and `NESTED` are written of, with `Batch.given`."""
_BEND = "(weighed(B(w, 1e-5), u) - weighed(B(w, -1e-5), u)) / 2e-5"
_ROWS = "(w, [c * c.abs() for c in w])"
ALONE: dict[str, Transform] = {
    "grad": Transform(
        lambda b, x, w, v, u: grad(b.call, x, w), _gradients,
        "torch.func.grad(lambda *z: weighed(at(*z), w), tuple(range(len(zs))))(*zs)", "B(w)",
    ),
    "vjp": Transform(
        lambda b, x, w, v, u: torch.func.vjp(b.call, *x)[1](w), _gradients,
        "torch.func.vjp(at, *zs)[1](tuple(w))", "B(w)",
    ),
    "jacrev": Transform(
        lambda b, x, w, v, u: _on_plane(
            torch.func.jacrev, lambda *moved: _weigh_rows(b.call(*moved), w), x, v, u
        ),
        _products,
        f"torch.func.jacrev(lambda t: torch.stack([f(t, ws) for ws in {_ROWS}]))(zero)",
        f"torch.stack([weighed(B(ws), d) for ws in {_ROWS} for d in (v, u)]).view(2, 2)",
    ),
    "hessian": Transform(  # how <B, u> changes along v
        lambda b, x, w, v, u: _on_plane(
            torch.func.hessian, lambda *moved: weigh(b.call(*moved), w), x, v, u
        )[1, 0],
        _bend, "torch.func.hessian(f)(zero)[1, 0]", _BEND,
    ),
}  # fmt: skip
NESTED = Transform(  # how the tangent along u changes along v
    lambda b, x, w, v, u: jvp(lambda *moved: jvp(b.call, moved, u), x, v),
    partial(_bend, other=1),
    "weighed(jvp(lambda *z: jvp(at, z, tuple(u))[1], tuple(zs), tuple(v))[1], w)", _BEND,
)  # fmt: skip

_B = "B(X)"
_BV = "(B(X).conj() * V).real.flatten(1).sum(1)"
_DB = "(B(X + 1e-6 * V) - B(X - 1e-6 * V)) / 2e-6"
PAIRS: dict[str, Transform] = {
    "vmap of grad": Transform(
        _vmap(lambda b, x, w, v, u: grad(b.call, x, w)), _slopes, "vmap(grad(f))(X)", _B
    ),
    "grad of vmap": Transform(
        lambda b, x, w, v, u: grad(b.map(b.call), x, w), _slopes,
        "grad(lambda Z: vmap(f)(Z).sum())(X)", _B,
    ),
    "vmap of jvp": Transform(
        _vmap(lambda b, x, w, v, u: jvp(b.call, x, v)), _tangents,
        "vmap(lambda z, v: jvp(f, (z,), (v,))[1])(X, V)", _BV,
    ),
    "jvp of vmap": Transform(
        lambda b, x, w, v, u: jvp(b.map(b.call), x, v), _tangents,
        "jvp(vmap(f), (X,), (V,))[1]", _BV,
    ),
    "jvp of grad": Transform(
        lambda b, x, w, v, u: jvp(lambda *moved: grad(b.call, moved, w), x, v),
        partial(_bend, other=3),
        "torch.stack([jvp(grad(f), (z,), (v,))[1] for z, v in zip(X, V)])", _DB,
    ),
    "grad of jvp": Transform(
        lambda b, x, w, v, u: grad(lambda *moved: jvp(b.call, moved, u), x, w),
        partial(_bend, other=2),
        "torch.stack([grad(lambda z: jvp(f, (z,), (v,))[1])(z) for z, v in zip(X, V)])", _DB,
    ),
    "hessian of vmap": Transform(  # one number for each item: it is diagonal
        lambda b, x, w, v, u: _hessian(b.map(b.call), x, w, v, len(x[0])).diagonal(), _curves,
        "jvp(grad(lambda Z: vmap(f)(Z).sum()), (X,), (V,))[1]", _DB,
    ),
    "vmap of hessian": Transform(
        _vmap(lambda b, x, w, v, u: _hessian(b.call, x, w, v)), _curves,
        "vmap(lambda z, v: jvp(grad(f), (z,), (v,))[1])(X, V)", _DB,
    ),
}  # fmt: skip
