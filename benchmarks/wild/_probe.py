"""Each transform of one Function: works, refuses, wrong or crashes.

The first-order gradient of the Function as published, under plain autograd, is the truth that every
transform is compared with; second order is compared with finite differences of that gradient.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.wild._case import Published
from benchmarks.wild._second_order import push_forward, second_order

__all__ = ["PROBES", "Subject", "prepare", "verdict_of"]

SEED = 20261
FIRST_RTOL = {torch.float64: 1e-9}
LOOSE_RTOL = 2e-3
SECOND_RTOL = 2e-4
BATCH = 3

# How torch says, by name, that a transform is not supported.
REFUSAL = re.compile(
    r"setup_context|generate_vmap_rule|vmap staticmethod|formula for jvp|jvp.{0,60}not (been )?impl"
    r"|once_differentiable|differentiate twice|does not support|not supported|Unsupported"
    r"|implement(ed)? the jvp|forward AD|forward mode AD|does not require grad"
    r"|element \d+ of tensors|Batching rule not implemented|We do not support batching",
    re.IGNORECASE,
)


class Wrong(Exception):
    """An answer without an error that is not the right one."""


class Torchs(Wrong):
    """The answer of torch itself for the Function as published, which differences do not confirm.

    A root has NaN where a saved output is zero.
    """


@dataclass
class Subject:
    """A Function bound to arguments: the tensors to differentiate, and everything else fixed."""

    case: Published
    function: type[torch.autograd.Function]
    arguments: tuple[Any, ...]
    places: tuple[int, ...]
    weights: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    intent: str = "surrogate"

    @property
    def points(self) -> list[torch.Tensor]:
        """The tensors to differentiate, as fresh leaves; a complex one as its two real parts."""
        values = [self.arguments[place].detach().clone() for place in self.places]
        return [torch.view_as_real(value) if value.is_complex() else value for value in values]

    def __call__(self, *points: torch.Tensor) -> list[torch.Tensor]:
        """The differentiable outputs."""
        if not torch.compiler.is_compiling():
            torch.manual_seed(SEED)
        arguments = list(self.arguments)
        for place, point in zip(self.places, points, strict=True):
            complex_ = self.arguments[place].is_complex()
            arguments[place] = torch.view_as_complex(point) if complex_ else point
        call = self.case.call or (lambda apply, *given: apply(*given))
        answer = call(self.function.apply, *arguments)
        return _leaves(answer)

    def values(self, points: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs where the points are differentiated, on which a value may depend."""
        return [output.detach() for output in self(*_leaves_at(points))]

    def objective(self, *points: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the outputs, linear in them."""
        outputs = self._weighted(self(*points))
        return sum(_inner(weight, output) for weight, output in outputs)

    def curved(self, *points: torch.Tensor) -> torch.Tensor:
        """The outputs used nonlinearly, so that the cotangent depends on the point.

        Linearly where backward is not linear in the cotangent: it has no transpose that says how
        the cotangent changes.
        """
        if self.intent == "nonlinear":
            return self.objective(*points)
        outputs = self._weighted(self(*points))
        return sum(
            _inner(weight, output) + 0.5 * _inner(output, output) for weight, output in outputs
        )

    def _weighted(self, outputs: Sequence[torch.Tensor]):
        return [
            (weight, output)
            for weight, output in zip(self.weights, outputs, strict=True)
            if weight is not None
        ]

    def pull(self, points, cotangents) -> list[torch.Tensor]:
        """The Function's own backward under plain autograd, zeros where it gives None."""
        leaves = _leaves_at(points)
        outputs = self(*leaves)
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if cotangent is not None and output.requires_grad
        ]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            leaves,
            [cotangent for _, cotangent in pairs],
            allow_unused=True,
        )
        return _filled(found, leaves)


def prepare(case: Published, seed: int = SEED) -> Subject:
    """Bind a case to its inputs and take the truth from plain autograd."""
    function = case.load()
    arguments = case.inputs(torch.Generator().manual_seed(seed))
    places = tuple(
        place
        for place, value in enumerate(arguments)
        if isinstance(value, torch.Tensor) and value.requires_grad
    )
    subject = Subject(case, function, arguments, places)
    leaves = [point.requires_grad_() for point in subject.points]
    outputs = subject(*leaves)
    generator = torch.Generator().manual_seed(seed + 1)
    subject.weights = [
        torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        if output.requires_grad
        else None
        for output in outputs
    ]
    if not any(weight is not None for weight in subject.weights):
        raise ValueError(f"{case.name}: no output requires a gradient")
    subject.gradients = subject.pull(subject.points, subject.weights)
    return subject


def probe_first_order(subject: Subject, truth: Subject) -> None:
    """Outputs and gradients equal the published ones bit for bit."""
    for got, expected in zip(
        subject.values(subject.points), truth.values(truth.points), strict=True
    ):
        _same_bits(got, expected, "output")
    found = subject.pull(subject.points, subject.weights)
    for got, expected in zip(found, truth.gradients, strict=True):
        _same_bits(got, expected, "gradient")


def probe_grad(subject: Subject, truth: Subject) -> None:
    """`torch.func.grad` equals autograd."""
    order = tuple(range(len(truth.places)))
    found = torch.func.grad(subject.objective, argnums=order)(*subject.points)
    _close(found, truth.gradients, "torch.func.grad")


def probe_forward(subject: Subject, truth: Subject) -> None:
    """`torch.func.jvp` is the transpose of backward."""
    tangents = _like(subject.points)
    outputs, moved = torch.func.jvp(
        lambda *points: tuple(subject(*points)), tuple(subject.points), tuple(tangents)
    )
    _close(outputs, truth.values(truth.points), "the value under jvp")
    if truth.intent == "nonlinear":  # it has no transpose: a tangent can only be the derivative
        _close(
            moved, push_forward(truth, tangents), "Jv against finite differences", rtol=SECOND_RTOL
        )
        return
    pairs = [pair for pair in zip(truth.weights, moved, strict=True) if pair[0] is not None]
    got = sum(_inner(weight, tangent) for weight, tangent in pairs)
    pairs = list(zip(truth.gradients, tangents, strict=True))
    expected = sum(_inner(gradient, tangent) for gradient, tangent in pairs)
    scale = sum(_inner(gradient.abs(), tangent.abs()) for gradient, tangent in pairs)
    _close([got], [expected], "<w, Jv> against <J'w, v>", scale=scale)


def probe_vmap(subject: Subject, truth: Subject) -> None:
    """`torch.vmap`, and backward through it, equal a loop."""
    others = [truth, *(prepare(truth.case, SEED + 10 * item) for item in range(1, BATCH))]
    rows = [list(other.points) for other in others]
    batch = [torch.stack(column).requires_grad_() for column in zip(*rows, strict=True)]
    outputs = torch.vmap(lambda *points: tuple(subject(*points)), randomness="same")(*batch)
    loop = [truth.values(row) for row in rows]
    for place, output in enumerate(outputs):
        _close([output], [torch.stack([item[place] for item in loop])], "the value under vmap")
    pairs = [pair for pair in zip(outputs, truth.weights, strict=True) if pair[1] is not None]
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        batch,
        [weight.expand(output.shape).contiguous() for output, weight in pairs],
        allow_unused=True,
    )
    pulled = [truth.pull(row, truth.weights) for row in rows]
    expected = [torch.stack(column) for column in zip(*pulled, strict=True)]
    _close(_filled(found, batch), expected, "the gradient through vmap")


def probe_hessian(subject: Subject, truth: Subject) -> None:
    """`torch.func.hessian` is the derivative of the Function's own backward."""
    points = subject.points
    order = tuple(range(len(points)))
    # What torch.func.hessian is, with the randomness that it does not let one choose.
    once = torch.func.jacrev(subject.curved, argnums=order)
    blocks = torch.func.jacfwd(once, argnums=order, randomness="same")(*points)
    directions = _like(points)
    got = [
        sum(
            (block * direction).reshape(*point.shape, -1).sum(-1)
            for block, direction in zip(row, directions, strict=True)
        )
        for row, point in zip(blocks, points, strict=True)
    ]
    _close_to_second(got, subject, truth, directions, "torch.func.hessian", transposed=False)


def probe_double(subject: Subject, truth: Subject) -> None:
    """Reverse over reverse is the derivative of the Function's own backward."""
    leaves = [point.requires_grad_() for point in subject.points]
    directions = _like(leaves)
    first = torch.autograd.grad(
        subject.curved(*leaves), leaves, create_graph=True, allow_unused=True
    )
    pairs = [pair for pair in zip(first, directions, strict=True) if pair[0] is not None]
    projected = sum(_inner(gradient, direction) for gradient, direction in pairs)
    if not projected.requires_grad:
        got = [torch.zeros_like(leaf) for leaf in leaves]
    else:
        got = _filled(torch.autograd.grad(projected, leaves, allow_unused=True), leaves)
    # <H v, .> by rows: the Hessian of a right backward may be asymmetric (a surrogate), so the
    # transposed product is what reverse over reverse gives.
    _close_to_second(got, subject, truth, directions, "reverse over reverse", transposed=True)


def _close_to_second(
    got, subject: Subject, truth: Subject, directions, what: str, *, transposed: bool
) -> None:
    """Refuse a second derivative that differences do not confirm; say if it is torch's own."""
    expected, noise = second_order(truth, directions, transposed=transposed)
    try:
        _close(got, expected, what, rtol=SECOND_RTOL, noise=noise)
    except Wrong as error:
        if subject.function is truth.function:
            raise
        theirs = _second_of_torch(truth, directions, transposed=transposed)
        pairs = zip(got, theirs, strict=True)
        if all(torch.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True) for a, b in pairs):
            raise Torchs(str(error)) from error
        raise


def _second_of_torch(truth: Subject, directions, *, transposed: bool) -> list[torch.Tensor]:
    """H v or H' v by autograd alone, for the Function as published."""
    leaves = _leaves_at(truth.points)
    asked = {"create_graph": True, "allow_unused": True}
    first = _filled(torch.autograd.grad(truth.curved(*leaves), leaves, **asked), leaves)
    if transposed:
        projected = sum(_inner(gradient, v) for gradient, v in zip(first, directions, strict=True))
        return _filled(torch.autograd.grad(projected, leaves, allow_unused=True), leaves)
    # H v is the derivative of H' u along v.
    others = [torch.zeros_like(leaf).requires_grad_() for leaf in leaves]
    projected = sum(_inner(gradient, u) for gradient, u in zip(first, others, strict=True))
    pulled = _filled(torch.autograd.grad(projected, leaves, **asked), leaves)
    along = sum(_inner(row, v) for row, v in zip(pulled, directions, strict=True))
    return _filled(torch.autograd.grad(along, others, allow_unused=True), others)


def probe_compile(subject: Subject, truth: Subject) -> None:
    """`torch.compile(fullgraph=True)` equals eager, forward and backward."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *points: tuple(subject(*points)), fullgraph=True, backend="aot_eager"
    )
    leaves = [point.requires_grad_() for point in subject.points]
    outputs = compiled(*leaves)
    _close(outputs, truth.values(truth.points), "the compiled value")
    pairs = [pair for pair in zip(outputs, truth.weights, strict=True) if pair[1] is not None]
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        leaves,
        [weight for _, weight in pairs],
        allow_unused=True,
    )
    _close(_filled(found, leaves), truth.gradients, "the compiled gradient")


PROBES: dict[str, Callable[[Subject, Subject], None]] = {
    "first_order": probe_first_order,
    "grad": probe_grad,
    "forward": probe_forward,
    "vmap": probe_vmap,
    "hessian": probe_hessian,
    "compile": probe_compile,
    "double": probe_double,
}


def verdict_of(error: BaseException | None) -> tuple[str, str]:
    """`works`, `refuses`, `torch`, `wrong` or `crashes`, and the first line of what was said."""
    if error is None:
        return "works", ""
    said = f"{type(error).__name__}: {error}".strip().replace(f"{Path.cwd()}/", "")
    line = " ".join(said.split())[:220]
    if isinstance(error, Wrong):
        return "torch" if isinstance(error, Torchs) else "wrong", line
    if type(error).__module__.startswith("pullback") or REFUSAL.search(said):
        return "refuses", line
    return "crashes", line


def _leaves_at(points: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [point.detach().clone().requires_grad_() for point in points]


def _leaves(answer: Any) -> list[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        if answer.is_complex():
            return [torch.view_as_real(answer.resolve_conj())]
        return [answer] if answer.is_floating_point() else []
    if isinstance(answer, tuple | list):
        return [leaf for item in answer for leaf in _leaves(item)]
    return []


def _inner(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left * right).sum()


def _like(points: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED + 2)
    return [
        torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point.dtype)
        for point in points
    ]


def _filled(found, like) -> list[torch.Tensor]:
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for gradient, leaf in zip(found, like, strict=True)
    ]


def _same_bits(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise Wrong(f"{what}: {got.dtype} {tuple(got.shape)}, not {expected.dtype}")
    if not torch.equal(got.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)):
        raise Wrong(f"{what}: not the published bits")


def _close(found, expected, what: str, rtol: float | None = None, scale=None, noise=None) -> None:
    allowed = [torch.zeros(())] * len(expected) if noise is None else noise
    for got, right, doubt in zip(found, expected, allowed, strict=True):
        if not isinstance(got, torch.Tensor):
            raise Wrong(f"{what}: {got!r}, not a tensor")
        if got.shape != right.shape:
            raise Wrong(f"{what}: shape {tuple(got.shape)}, not {tuple(right.shape)}")
        tolerance = FIRST_RTOL.get(right.dtype, LOOSE_RTOL) if rtol is None else rtol
        if got.dtype not in FIRST_RTOL:
            tolerance = max(tolerance, LOOSE_RTOL)
        if not right.numel():
            continue
        size = right.detach().abs().max() if scale is None else scale
        apart = (got.detach().to(right.dtype) - right.detach()).abs()
        # The error is measured against the largest entry, and against 1e-3 where all are tiny.
        allowance = doubt.clamp(max=1e-2 * float(size))
        if not (apart <= tolerance * max(float(size), 1e-3) + allowance).all():
            error = float(apart.max())
            raise Wrong(f"{what}: off by {error:.3g} where the size is {float(size):.3g}")
