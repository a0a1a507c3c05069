"""What a Function answers, beside what is right: from reverse mode and one-hot rows alone."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tests.tensor.both import BOTH
from tests.tensor.ordinary.row import Point, Row

from pullback.errors import PullbackError

__all__ = ["ANSWERS", "Answer", "of"]

func = torch.func
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Answer:
    """One answer of one Function, made in one of two ways, at one point."""

    row: str
    way: str
    point: str
    question: str
    verdict: str
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.row}, {self.way}, {self.point}, {self.question}"


# What is asked. Each takes a function of the differentiable arguments alone.


def outputs(row: Row, apply: Callable[..., Any], args: Point) -> Callable[..., Tensors]:
    """A function of the differentiable arguments, of the outputs that have a gradient."""
    places = row.differentiable(args)

    def f(*given: torch.Tensor) -> Tensors:
        if row.random:
            torch.manual_seed(7)
        all_args = list(args)
        for place, value in zip(places, given, strict=True):
            all_args[place] = value
        y = apply(*all_args)
        y = y if isinstance(y, tuple) else (y,)
        chosen = range(len(y)) if row.outputs is None else row.outputs
        return tuple(y[i] for i in chosen)

    return f


def loss(f: Callable[..., Tensors]) -> Callable[..., torch.Tensor]:
    """A scalar whose cotangents depend on the values, with weights that break symmetry."""

    def scalar(*given: torch.Tensor) -> torch.Tensor:
        return sum((_like(y, 0.5, 1.5) * y + y * y / 2).sum() for y in f(*given))

    return scalar


def _like(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, x.numel(), dtype=x.dtype).reshape(x.shape)


def directions(given: Tensors) -> Tensors:
    """One tangent for each argument."""
    return tuple(_like(x, 1.0, -0.4) + 0.3 for x in given)


def _leaves(given: Tensors) -> Tensors:
    return tuple(x.detach().clone().requires_grad_() for x in given)


def _matrix(blocks: Any, given: Tensors) -> torch.Tensor:
    return torch.cat(
        [
            torch.cat([b.reshape(x.numel(), -1) for b in row], 1)
            for row, x in zip(blocks, given, strict=True)
        ]
    )


def _stacked(given: Tensors, ordinary: bool) -> Tensors:
    return tuple(torch.stack([x, 1.01 * x if ordinary else x]) for x in given)


def first_order(f: Any, given: Tensors, ordinary: bool) -> Any:
    leaves = _leaves(given)
    return torch.autograd.grad(loss(f)(*leaves), leaves, materialize_grads=True)


def second_order(f: Any, given: Tensors, ordinary: bool) -> Any:
    leaves = _leaves(given)
    first = torch.autograd.grad(loss(f)(*leaves), leaves, create_graph=True, materialize_grads=True)
    total = sum((g * v).sum() for g, v in zip(first, directions(given), strict=True))
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in given)
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def by_cotangent(f: Any, given: Tensors, ordinary: bool) -> Any:
    """The derivative of a gradient in its cotangent, beside that in the inputs."""
    leaves = _leaves(given)
    values = f(*leaves)
    cotangents = tuple(_like(y, 0.7, 1.2).requires_grad_() for y in values)
    first = torch.autograd.grad(
        values, leaves, cotangents, create_graph=True, materialize_grads=True
    )
    total = sum((g * v).sum() for g, v in zip(first, directions(given), strict=True))
    return torch.autograd.grad(total, (*cotangents, *leaves), materialize_grads=True)


def jvp(f: Any, given: Tensors, ordinary: bool) -> Any:
    return func.jvp(f, given, directions(given))


def hessian(f: Any, given: Tensors, ordinary: bool) -> Any:
    blocks = func.hessian(loss(f), tuple(range(len(given))))(*given)
    return _matrix(blocks, given)


def vmap_of_grad(f: Any, given: Tensors, ordinary: bool) -> Any:
    gradient = func.grad(loss(f), tuple(range(len(given))))
    return func.vmap(gradient)(*_stacked(given, ordinary))


ANSWERS: dict[str, Callable[..., Any]] = {
    ask.__name__: ask
    for ask in (first_order, second_order, by_cotangent, jvp, hessian, vmap_of_grad)
}


# What is right, by reverse mode of the truth.


def _true_jvp(f: Any, given: Tensors) -> Any:
    leaves = _leaves(given)
    values, tangents = f(*leaves), []
    for y in values:
        rows = [
            torch.autograd.grad(
                y, leaves, unit.reshape(y.shape), retain_graph=True, materialize_grads=True
            )
            for unit in torch.eye(y.numel(), dtype=y.dtype)
        ]
        parts = [
            sum((g * v).sum() for g, v in zip(row, directions(given), strict=True)) for row in rows
        ]
        tangents.append(torch.stack(parts).reshape(y.shape))
    return tuple(y.detach() for y in values), tuple(tangents)


def _true_hessian(f: Any, given: Tensors) -> torch.Tensor:
    leaves = _leaves(given)
    first = torch.autograd.grad(loss(f)(*leaves), leaves, create_graph=True, materialize_grads=True)
    flat = torch.cat([g.reshape(-1) for g in first])
    rows = []
    for entry in flat:
        one = (
            torch.autograd.grad(entry, leaves, retain_graph=True, materialize_grads=True)
            if entry.requires_grad
            else [torch.zeros_like(x) for x in given]
        )
        rows.append(torch.cat([g.reshape(-1) for g in one]))
    return torch.stack(rows)


def _true(question: str, f: Any, given: Tensors, ordinary: bool) -> Any:
    if question == "jvp":
        return _true_jvp(f, given)
    if question == "hessian":
        return _true_hessian(f, given)
    if question == "vmap_of_grad":
        many = [
            first_order(f, one, ordinary) for one in zip(*_stacked(given, ordinary), strict=True)
        ]
        return tuple(torch.stack(parts) for parts in zip(*many, strict=True))
    return ANSWERS[question](f, given, ordinary)


class _Context:
    """What forward and backward may ask of a context, for `rerun`."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def rerun(bare: type[torch.autograd.Function]) -> Callable[..., Any]:
    """A Function of the inputs alone: its backward runs forward and backward of ``bare``."""
    rule = getattr(bare.backward, "__wrapped__", bare.backward)  # once_differentiable

    class Rerun(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
            ctx.args = [None if isinstance(a, torch.Tensor) else a for a in args]
            ctx.save_for_backward(*(args[i] for i in ctx.places))
            return _forward(bare, _Context(ctx.needs_input_grad), args)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            args = list(ctx.args)
            for place, value in zip(ctx.places, ctx.saved_tensors, strict=True):
                args[place] = value
            again = _Context(ctx.needs_input_grad)
            _forward(bare, again, args)
            return rule(again, *cotangents)

    return Rerun.apply


def _forward(bare: Any, ctx: _Context, args: Any) -> Any:
    if bare.setup_context is torch.autograd.Function.setup_context:
        return bare.forward(ctx, *args)
    output = bare.forward(*args)
    bare.setup_context(ctx, tuple(args), output)
    return output


def _truth(row: Row, point: str) -> Callable[..., Any]:
    if row.formula is not None and (point == "ordinary" or row.random):  # draws the same numbers
        return row.formula
    return row.bare.apply if row.plain else rerun(row.bare)


# Both beside each other.


def _is_asked(row: Row, question: str) -> bool:
    if row.intent == "nonlinear":
        return question not in ("jvp", "hessian")
    # torch refuses to draw numbers under vmap, which its hessian is made of.
    return not (row.random and question in ("hessian", "vmap_of_grad"))


def _judge(ask: Callable[[], Any], want: Any) -> tuple[str, str]:
    try:
        got = ask()
    except PullbackError as error:
        return "refused", str(error).replace("\n", " ")
    except Exception as error:
        return "foreign", f"{type(error).__name__}: {str(error)[:300]}"
    try:
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8, equal_nan=True)
    except AssertionError:
        return "wrong", f"got {got}, want {want}".replace("\n", "")
    return "right", ""


@cache
def of(row: Row) -> tuple[Answer, ...]:
    """All answers of one Function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(_all(row))


def _all(row: Row) -> Iterator[Answer]:
    # Kinks first: what is seen at first use must not decide later.
    for point, args in sorted(row.points.items(), key=lambda item: item[0] == "ordinary"):
        given = tuple(args[i] for i in row.differentiable(args))
        for question in filter(lambda question: _is_asked(row, question), ANSWERS):
            yield from _one(row, point, args, given, question)


def _one(row: Row, point: str, args: Point, given: Tensors, question: str) -> Iterator[Answer]:
    ordinary = point == "ordinary"
    want = _true(question, outputs(row, _truth(row, point), args), given, ordinary)
    for way in BOTH:
        f = outputs(row, way(row.bare, gradient=row.intent).apply, args)
        verdict, why = _judge(lambda f=f: ANSWERS[question](f, given, ordinary), want)
        yield Answer(row.name, way.__name__, point, question, verdict, why)
