"""Transforms of torch.func in compiled code: the derivative of an operator is an operator again.

torch drops the backward of a Function that it traces below such a transform. So a Function stands
there as an operator without a state, whose gradient, tangent and batch are each an operator of
the same kind: it runs `torch.func.vjp`, `torch.func.jvp` or `torch.vmap` of what the first one
runs, when the graph runs. With f the Function, and any of these programs in the place of f again:

    vjp:  (x, u) -> uT f'(x)        jvp:  (x, t) -> f'(x) t        vmap:  x -> f(x[0]), f(x[1]), ...

Forward runs once more for each, which is what a program without a state costs.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pullback.internal.torch import end_what_a_graph_began, nested_forward_mode, recording
from pullback.tensor.compiled._site import Site, apart, find, keep, without_values
from pullback.tensor.values._levels import is_differentiable

__all__ = ["transformed"]


class _Program:
    """What an operator runs that is derived of a Function.

    Arguments:
        source: what it is derived of, a site or a program.
        way: ``"vjp"``, ``"jvp"`` or ``"vmap"``.
        count: of the tensors that the source takes.
        moving: which of these are differentiable, or by which dimension each is batched.
        flowing: which of the outputs of the source are differentiable.
    """

    def __init__(self, source: Any, way: str, count: int, moving: Any, flowing: Any) -> None:
        self.source, self.way, self.count = source, way, count
        self.name = source.name
        self.moving, self.flowing = moving, flowing
        self.constants = _constants(source) if way == "vmap" else ()
        self.derived: dict[Any, tuple[str, _Program]] = {}

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given, beside = tensors[: self.count], tensors[self.count :]
        if self.way == "vmap":
            return list(torch.vmap(lambda *x: tuple(_run(self.source, x)), self.moving)(*given))

        def move(*moved: torch.Tensor) -> tuple[torch.Tensor, ...]:
            every = list(given)
            for place, tensor in zip(self.moving, moved, strict=True):
                every[place] = tensor
            outputs = _run(self.source, every)
            return tuple(outputs[i] for i in self.flowing)

        at = tuple(given[i].contiguous() for i in self.moving)  # no tangent is written to a repeat
        if self.way == "jvp":
            with nested_forward_mode():
                return list(torch.func.jvp(move, at, tuple(beside))[1])
        return list(torch.func.vjp(move, *at)[1](tuple(beside)))


def _run(program: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return program.apply(tensors)[1] if isinstance(program, Site) else program.run(tensors)


def _constants(program: Any) -> Sequence[int]:
    """Which outputs are declared to have no derivative."""
    if not isinstance(program, Site):
        return program.constants
    words = program.outline
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == "constant"]


def _derive(key: str, *what: Any) -> str:
    source = find(key)
    if what not in source.derived:
        program = _Program(source, *what)
        source.derived[what] = keep(program), program
    return source.derived[what][0]


def transformed(key: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Run a site below transforms of torch.func; it goes into the graph of Dynamo as it is."""
    return _Transformed.apply(key, *tensors)


class _Transformed(torch.autograd.Function):
    """An operator with the derivatives that torch asks for."""

    @staticmethod
    def forward(key: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.pullback.run_program(key, list(tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.key, *tensors = inputs
        constants = _constants(find(ctx.key))
        ctx.moving = tuple(i for i, x in enumerate(tensors) if is_differentiable(x))
        ctx.flowing = tuple(
            i for i, y in enumerate(output) if is_differentiable(y) and i not in constants
        )
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(y for i, y in enumerate(output) if i not in ctx.flowing))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        key = _derive(ctx.key, "vjp", len(tensors), ctx.moving, ctx.flowing)
        found = iter(_Transformed.apply(key, *tensors, *(cotangents[i] for i in ctx.flowing)))
        return (None, *(next(found) if i in ctx.moving else None for i in range(len(tensors))))

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        key = _derive(ctx.key, "jvp", len(tensors), ctx.moving, ctx.flowing)
        given = [
            torch.zeros_like(tensors[i]) if (t := tangents[1 + i]) is None else t
            for i in ctx.moving
        ]
        found = iter(_Transformed.apply(key, *tensors, *given))
        count = 1 + max((*ctx.flowing, *_constants(find(ctx.key))), default=-1)
        return tuple(next(found) if i in ctx.flowing else None for i in range(count))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        key, *tensors = args
        dims = in_dims[1:]
        source = find(key)
        if isinstance(source, Site) and not source.outline:  # one item tells what it returns
            pairs = zip(tensors, dims, strict=True)
            _Transformed.apply(key, *(t if dim is None else t.select(dim, 0) for t, dim in pairs))
        key = _derive(key, "vmap", len(tensors), dims, ())
        outputs = _Transformed.apply(key, *tensors)
        return outputs, (0,) * len(outputs)


@torch.library.custom_op("pullback::run_program", mutates_args=())
def run_program(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run what an operator stands for, forward or in the backward of a graph."""
    program = find(key)
    try:
        with recording(), torch.set_grad_enabled(isinstance(program, Site)):
            if not isinstance(program, Site):
                outputs = program.run([tensor.detach() for tensor in tensors])
            else:
                outline, outputs = program.apply(program.leaves(tensors))
                program.confirm(outline, outputs)
    except Exception:
        end_what_a_graph_began()
        raise
    return apart([output.detach() for output in outputs], tensors)


@run_program.register_fake
def _(key: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    program = find(key)
    if isinstance(program, Site):
        return program.learn(tensors)
    return without_values(program.name, program.run, tensors)
