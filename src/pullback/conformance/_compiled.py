"""What a Function gives when it is compiled, in each way that it can be."""

import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._mends import by_autograd
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._resize import resizings
from pullback.conformance._transforms import ALONE, PAIRS, Batch, jvp
from pullback.conformance._tree import tensors

__all__ = ["Way", "composed_ways", "has_compiler", "plain_ways", "refused_way"]


@dataclass(frozen=True)
class Way:
    """One way to compile, and what eager code gives."""

    name: str  # as one would write it
    run: Callable[[], Tensors]  # gives the answer of compiled code
    eager: Callable[[], Tensors]  # gives what is expected
    source: str = "f"  # a function of x that shows it, where ``f`` is the Function


def has_compiler() -> bool:
    """Whether a C++ compiler is here, which inductor needs for the CPU."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


def plain_ways(probe: Probe) -> Iterator[Way]:
    """The Function itself, forward and backward.

    Yields:
        aot_eager first: what it refuses the others refuse too. Where all is asked for, then shapes
        that may change, then inductor, the slowest.
    """
    cotangents = probe.cotangents(probe.output_values())

    def eager() -> Tensors:
        return _both(probe, probe.subject.call, cotangents)

    def once(backend: str) -> Tensors:
        return _both(probe, _compiled(probe, backend), cotangents)

    def resized(other: Probe) -> Tensors:
        """Compile for shapes that may change, and change them."""
        call = _compiled(probe, dynamic=True)
        return [*_both(probe, call, cotangents), *_both(other, call)]

    yield Way("torch.compile(fullgraph=True)", lambda: once("aot_eager"), eager)
    if not probe.thorough:
        return
    other = _other_size(probe)
    if other is not None:
        yield Way(
            "torch.compile(dynamic=True)",
            lambda: resized(other),
            lambda: [*eager(), *_both(other, other.subject.call)],
        )
    if has_compiler():
        yield Way(
            "torch.compile(backend='inductor')",
            lambda: once("inductor"),
            eager,
        )


# How each is written, whether it takes all items at once, and a function of x that shows it.
_INSIDE: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "torch.func.grad(f)": (ALONE["grad"].ask, False, "torch.func.grad(f)"),
    "torch.func.jvp(f)": (
        lambda b, x, w, v, u: jvp(b.call, x, v), False,
        "lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]",
    ),
    "torch.func.vmap(torch.func.grad(f))": (
        PAIRS["vmap of grad"].ask, True,
        "lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x]))",
    ),
    "torch.func.grad(torch.func.vmap(f))": (
        PAIRS["grad of vmap"].ask, True,
        "torch.func.grad(lambda x: torch.func.vmap(f)(torch.stack([x, x])).sum())",
    ),
    "torch.func.jvp(torch.func.grad(f))": (
        PAIRS["jvp of grad"].ask, False,
        "lambda x: torch.func.jvp(torch.func.grad(f), (x,), (torch.ones_like(x),))[1]",
    ),
}  # fmt: skip


def composed_ways(probe: Probe) -> list[Way]:
    """Transforms of the Function, and compositions of them, where eager code answers.

    Returns:
        First all of them compiled at once, then each alone: to be asked only if that is refused.
    """
    batch = Batch.of(probe)
    alone = []
    for name in _INSIDE:
        way = _way(batch, name)
        try:
            way.eager()
        except Exception:  # noqa: S112 - refused in eager code: the other clauses say how
            continue
        alone.append(name)
    ways = [_way(batch, name) for name in alone]
    return [_way(batch, *alone), *ways] if len(ways) > 1 else ways


def refused_way(probe: Probe) -> Way | None:
    """`torch.func.grad`, where eager code refuses it, beside the Function's own backward.

    torch's compiler may answer all the same: it differentiates what it sees of forward. Where that
    gives the same numbers there is nothing to see, and nothing is compiled for it.
    """
    batch = Batch.of(probe)
    if _is_derivative(probe, batch):
        return None
    way = _way(batch, "torch.func.grad(f)")
    try:
        way.eager()
    except Exception:  # as eager torch does without setup_context
        points, weights, *_ = batch.items[0]
        return replace(way, eager=lambda: probe.backward(points, weights))
    return None


def _is_derivative(probe: Probe, batch: Batch) -> bool:
    """Whether autograd gives the numbers of the Function's own backward by following forward."""
    subject = by_autograd(probe.subject)
    if subject is None:
        return False
    points, weights, *_ = batch.items[0]
    try:
        found = replace(probe, subject=subject).backward(points, weights)
    except Exception:  # autograd cannot follow it
        return False
    return probe.differ(found, probe.backward(points, weights), looser=1e4) is None


def _way(batch: Batch, *names: str) -> Way:
    """Some transforms, compiled at once."""
    chosen = [_INSIDE[name] for name in names]
    given = [batch.stacked if stacked else batch.items[0] for _, stacked, _ in chosen]

    def whole(*parts: Any) -> list[Any]:
        return [ask(batch, *part) for (ask, *_), part in zip(chosen, parts, strict=True)]

    shown = ", ".join(names)
    return Way(
        f"torch.compile({shown})", lambda: _flat(_compile(whole)(*given)),
        lambda: _flat(whole(*given)), chosen[0][2],
    )  # fmt: skip


def _flat(answer: Any) -> Tensors:
    return [t.detach() for t in tensors(answer)]


def _compile(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    """Compile a function whose code nobody has compiled before, so that nothing is left behind."""
    code = function.__code__.replace()
    again = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return torch.compile(again, fullgraph=True, backend=backend, **options)


def _compiled(probe: Probe, *how: str, **options: Any) -> Callable[..., Any]:
    call = probe.subject.call

    def run(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    compiled = _compile(run, *how, **options)
    return lambda *args, **kwargs: compiled(args, kwargs)


def _both(probe: Probe, call: Callable[..., Any], cotangents: Tensors | None = None) -> Tensors:
    """Outputs and gradients of a way to call the Function."""
    leaves = probe.leaves()
    args, kwargs = probe.inputs.build(leaves)
    every = tensors(call(*args, **kwargs))
    outputs = [every[k] for k in probe.outputs]
    given = probe.cotangents(outputs) if cotangents is None else cotangents
    return [t.detach() for t in (*outputs, *probe.pull(leaves, given, outputs))]


def _other_size(probe: Probe) -> Probe | None:
    """The probe at a size one or two larger that eager code takes."""
    for resizing in resizings(probe.inputs, 2**10, 2**16, probe.generator("dynamic")):
        for size in (resizing.size + 1, resizing.size + 2):
            if not 2 < size <= resizing.largest:
                continue  # Dynamo takes 0 and 1 for constants
            inputs = resizing.at(size)
            if inputs is None:
                continue
            other = probe.at(inputs)
            try:
                _both(other, other.subject.call)
            except Exception:  # noqa: S112 - that size is refused
                continue
            return other
    return None
