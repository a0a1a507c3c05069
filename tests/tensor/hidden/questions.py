"""Which transform asks: functions of a function, of its arguments and of one direction each.

The same question is put to the Function and to its plain formula; each is self-contained, so
that its source can be printed beside a failure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

__all__ = ["QUESTIONS", "Question", "loss", "stacked"]

Kind = Literal["reverse", "forward", "batched", "compiled"]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Question:
    """One transform, or a composition of some.

    Arguments:
        ask: takes the function, its arguments and directions of the same shapes.
        kind: ``"forward"`` where a tangent goes through the Function, which one that is not
            linear in the cotangent has to refuse.
        order: 1 where a first-order gradient is asked for, that nothing may refuse.
    """

    name: str
    ask: Callable[..., Any]
    kind: Kind
    order: int = 2


QUESTIONS: list[Question] = []


def question(kind: Kind, order: int = 2) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the questions."""

    def add(ask: Callable[..., Any]) -> Callable[..., Any]:
        QUESTIONS.append(Question(ask.__name__, ask, kind, order))
        return ask

    return add


def loss(f: Any, *args: torch.Tensor) -> torch.Tensor:
    """A scalar whose derivative depends on the value: cotangents depend on the inputs."""
    y = f(*args)
    weights = torch.arange(1, y.numel() + 1, dtype=y.dtype).reshape(y.shape) / 2
    return (weights * y).sum() + (y * y).sum() / 2


def inner(first: Any, second: Any) -> torch.Tensor:
    """The inner product of two tuples of tensors."""
    return sum((a * b).sum() for a, b in zip(first, second, strict=True) if a is not None)


def leaves(args: Tensors) -> Tensors:
    """The arguments as leaves that want gradients."""
    return tuple(a.detach().clone().requires_grad_() for a in args)


def every(args: Tensors) -> tuple[int, ...]:
    """All argument numbers."""
    return tuple(range(len(args)))


def stacked(args: Tensors) -> Tensors:
    """A batch of two of each argument."""
    return tuple(torch.stack([a, a * 0.8 + 0.1]) for a in args)


@question("reverse", order=1)
def first_order(f, args, v):
    args = leaves(args)
    return torch.autograd.grad(loss(f, *args), args)


@question("reverse")
def grad_of_grad(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(loss(f, *args), args, create_graph=True)
    return torch.autograd.grad(inner(first, v), args)


@question("reverse")
def grad_of_grad_of_one_call(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(f(*args).sum(), args, create_graph=True)
    return torch.autograd.grad(inner(first, v) + 0 * sum(a.sum() for a in args), args)


@question("reverse")
def allow_unused(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(f(*args).sum(), args, create_graph=True)
    total = inner(first, v)
    if not total.requires_grad:
        return (None,) * len(args)
    return torch.autograd.grad(total, args, allow_unused=True)


@question("reverse")
def materialized(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(f(*args).sum(), args, create_graph=True)
    total = inner(first, v) + args[0].sum()
    return torch.autograd.grad(total, args, materialize_grads=True)


@question("reverse")
def with_respect_to_the_cotangent(f, args, v):
    args = leaves(args)
    y = f(*args)
    g = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).requires_grad_()
    first = torch.autograd.grad(y, args, g, create_graph=True)
    return torch.autograd.grad(inner(first, v), (g, *args), allow_unused=True)


@question("reverse")
def summed_with_other_terms(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(loss(f, *args), args, create_graph=True)
    return torch.autograd.grad(inner(first, v) + sum((a**3).sum() for a in args), args)


@question("reverse")
def penalty_beside_the_loss(f, args, v):
    args = leaves(args)
    value = loss(f, *args)
    first = torch.autograd.grad(value, args, create_graph=True)
    (value + inner(first, first)).backward()
    return tuple(a.grad for a in args)


@question("reverse")
def backward_twice(f, args, v):
    args = leaves(args)
    value = loss(f, *args)
    value.backward(create_graph=True, retain_graph=True)
    first = [a.grad for a in args]
    for a in args:
        a.grad = None
    inner(first, v).backward()
    return tuple(a.grad for a in args)


@question("reverse", order=3)
def third_order(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(loss(f, *args), args, create_graph=True)
    second = torch.autograd.grad(inner(first, v), args, create_graph=True)
    return torch.autograd.grad(inner(second, v), args)


@question("reverse")
def part_of_the_inputs(f, args, v):
    args = tuple(a.detach().clone() for a in args)
    last = args[-1].requires_grad_()
    (first,) = torch.autograd.grad(loss(f, *args), last, create_graph=True)
    return torch.autograd.grad((first * v[-1]).sum(), last)


@question("reverse")
def inside_a_network(f, args, v):
    args = leaves(args)
    value = loss(lambda *a: f(*(b.sin() + 1 for b in a)).cos(), *args)
    first = torch.autograd.grad(value, args, create_graph=True)
    return torch.autograd.grad(inner(first, v), args)


@question("reverse")
def functional_hessian(f, args, v):
    return torch.autograd.functional.hessian(lambda *a: loss(f, *a), args)


@question("reverse")
def functional_hvp(f, args, v):
    return torch.autograd.functional.hvp(lambda *a: loss(f, *a), args, v)[1]


@question("reverse")
def functional_jvp(f, args, v):
    return torch.autograd.functional.jvp(f, args, v)[1]


@question("reverse", order=1)
def func_grad(f, args, v):
    return grad(lambda *a: loss(f, *a), every(args))(*args)


@question("reverse")
def func_grad_of_grad(f, args, v):
    first = grad(lambda *a: loss(f, *a), every(args))
    return grad(lambda *a: inner(first(*a), v), every(args))(*args)


@question("reverse")
def func_vjp_of_vjp(f, args, v):
    def pulled(*a):
        value, pull = vjp(f, *a)
        return pull(value)

    return vjp(pulled, *args)[1](v)


@question("reverse")
def func_grad_inside_of_autograd(f, args, v):
    args = leaves(args)
    first = grad(lambda *a: loss(f, *a), every(args))(*args)
    return torch.autograd.grad(inner(first, v), args, allow_unused=True)


@question("reverse")
def func_jacrev(f, args, v):
    return jacrev(f, every(args))(*args)


@question("reverse")
def func_jacrev_of_jacrev(f, args, v):
    return jacrev(jacrev(lambda *a: loss(f, *a), every(args)), every(args))(*args)


@question("reverse", order=3)
def func_third_order(f, args, v):
    def second(*a):
        first = grad(lambda *b: loss(f, *b), every(args))
        return inner(grad(lambda *b: inner(first(*b), v), every(args))(*a), v)

    return grad(second, every(args))(*args)


@question("forward")
def func_hessian(f, args, v):
    return hessian(lambda *a: loss(f, *a), every(args))(*args)


@question("forward")
def func_hessian_without_gradients(f, args, v):
    with torch.no_grad():
        return hessian(lambda *a: loss(f, *a), every(args))(*args)


@question("forward")
def func_jvp(f, args, v):
    return jvp(f, args, v)[1]


@question("forward")
def func_jacfwd(f, args, v):
    return jacfwd(f, every(args))(*args)


@question("forward")
def func_linearize(f, args, v):
    return linearize(f, *args)[1](*v)


@question("forward")
def jacfwd_of_jacfwd(f, args, v):
    return jacfwd(jacfwd(lambda *a: loss(f, *a), every(args)), every(args))(*args)


@question("forward")
def jacfwd_of_jacfwd_without_gradients(f, args, v):
    with torch.no_grad():
        return jacfwd(jacfwd(lambda *a: loss(f, *a), every(args)), every(args))(*args)


@question("forward")
def jacrev_of_jacfwd(f, args, v):
    return jacrev(jacfwd(lambda *a: loss(f, *a), every(args)), every(args))(*args)


@question("forward")
def jvp_of_jvp(f, args, v):
    return jvp(lambda *a: jvp(lambda *b: loss(f, *b), a, v)[1], args, v)[1]


@question("forward")
def jvp_of_grad(f, args, v):
    return jvp(grad(lambda *a: loss(f, *a), every(args)), args, v)[1]


@question("forward")
def grad_of_jvp(f, args, v):
    return grad(lambda *a: jvp(lambda *b: loss(f, *b), a, v)[1], every(args))(*args)


@question("forward")
def dual_numbers(f, args, v):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(a, t) for a, t in zip(args, v, strict=True)]
        return forward_ad.unpack_dual(f(*duals)).tangent


@question("forward")
def dual_numbers_that_want_gradients(f, args, v):
    args = leaves(args)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(a, t) for a, t in zip(args, v, strict=True)]
        tangent = forward_ad.unpack_dual(loss(f, *duals)).tangent
        return torch.autograd.grad(tangent, args)


@question("forward")
def dual_numbers_through_backward(f, args, v):
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(a.detach().clone().requires_grad_(), t)
            for a, t in zip(args, v, strict=True)
        ]
        first = torch.autograd.grad(loss(f, *duals), duals)
        return tuple(forward_ad.unpack_dual(g).tangent for g in first)


@question("forward")
def hessian_in_forward_mode_of_functional(f, args, v):
    return torch.autograd.functional.hessian(
        lambda *a: loss(f, *a), args, vectorize=True, outer_jacobian_strategy="forward-mode"
    )


@question("batched", order=1)
def func_vmap(f, args, v):
    return vmap(f)(*stacked(args))


@question("batched", order=1)
def vmap_of_grad(f, args, v):
    return vmap(grad(lambda *a: loss(f, *a), every(args)))(*stacked(args))


@question("batched", order=1)
def grad_of_vmap(f, args, v):
    many = stacked(args)
    return grad(lambda *a: vmap(lambda *b: loss(f, *b))(*a).sum(), every(many))(*many)


@question("batched", order=1)
def vmap_over_the_last(f, args, v):
    return vmap(grad(lambda *a: loss(f, *a), every(args)), in_dims=1)(*(a.T for a in stacked(args)))


@question("batched")
def vmap_of_grad_of_grad(f, args, v):
    first = grad(lambda *a: loss(f, *a), every(args))
    return vmap(grad(lambda *a: inner(first(*a), v), every(args)))(*stacked(args))


@question("batched")
def autograd_of_vmap_of_grad(f, args, v):
    many = leaves(stacked(args))
    first = vmap(grad(lambda *a: loss(f, *a), every(args)))(*many)
    return torch.autograd.grad(inner(first, [m.detach() for m in many]), many)


@question("batched")
def gradients_batched(f, args, v):
    args = leaves(args)
    first = torch.autograd.grad(loss(f, *args), args, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in first])
    rows = torch.eye(flat.numel(), dtype=flat.dtype)
    return torch.autograd.grad(flat, args, rows, is_grads_batched=True)


@question("forward")
def vmap_of_hessian(f, args, v):
    return vmap(hessian(lambda *a: loss(f, *a), every(args)))(*stacked(args))


@question("forward")
def vmap_of_jvp(f, args, v):
    return vmap(lambda *a: jvp(f, a, v)[1])(*stacked(args))


@question("forward")
def jvp_of_vmap_of_grad(f, args, v):
    many = stacked(args)
    return jvp(vmap(grad(lambda *a: loss(f, *a), every(args))), many, many)[1]


def compiled(f: Any, backend: str) -> Any:
    """Compile into one graph, or not at all."""
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend=backend)


@question("compiled", order=1)
def compile_forward_and_backward(f, args, v):
    args = leaves(args)
    return torch.autograd.grad(compiled(lambda *a: loss(f, *a), "aot_eager")(*args), args)


@question("compiled", order=1)
def compile_grad(f, args, v):
    return compiled(grad(lambda *a: loss(f, *a), every(args)), "eager")(*args)


@question("compiled")
def compile_grad_of_grad(f, args, v):
    first = grad(lambda *a: loss(f, *a), every(args))
    return compiled(grad(lambda *a: inner(first(*a), v), every(args)), "aot_eager")(*args)


@question("compiled")
def compile_jvp(f, args, v):
    return compiled(lambda *a: jvp(f, a, v)[1], "eager")(*args)


@question("compiled")
def compile_jacfwd(f, args, v):
    return compiled(jacfwd(f, every(args)), "aot_eager")(*args)


@question("compiled")
def compile_hessian(f, args, v):
    return compiled(hessian(lambda *a: loss(f, *a), every(args)), "eager")(*args)


@question("compiled", order=1)
def compile_vmap_of_grad(f, args, v):
    first = grad(lambda *a: loss(f, *a), every(args))
    return compiled(vmap(first), "aot_eager")(*stacked(args))


@question("compiled")
def compile_then_twice(f, args, v):
    args = leaves(args)
    value = compiled(lambda *a: loss(f, *a), "eager")(*args)
    first = torch.autograd.grad(value, args, create_graph=True)
    return torch.autograd.grad(inner(first, v), args)
