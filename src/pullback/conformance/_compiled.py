"""What a Function gives when it is compiled, in each way that it can be."""

import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._batch import Batch
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._resize import resizings
from pullback.conformance._tree import tensors

__all__ = ["Way", "composed_ways", "has_compiler", "plain_ways", "refused_way"]


@dataclass(frozen=True)
class Way:
    """One way to compile, and what eager code gives.

    Arguments:
        name: as one would write it.
        run: gives the answer of compiled code.
        eager: gives what is expected.
    """

    name: str
    run: Callable[[], Tensors]
    eager: Callable[[], Tensors]


def has_compiler() -> bool:
    """Whether a C++ compiler is here, which inductor needs for the CPU."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


def plain_ways(probe: Probe) -> Iterator[Way]:
    """The Function itself, forward and backward.

    Arguments:
        probe: the subject.

    Yields:
        aot_eager first: what it refuses the others refuse too. Where all is asked for, then shapes
        that may change, then inductor, the slowest.
    """
    cotangents = probe.cotangents(probe.output_values())

    def eager() -> Tensors:
        return _both(probe, probe.subject.call, cotangents)

    yield Way("torch.compile(fullgraph=True)", lambda: _once(probe, cotangents, "aot_eager"), eager)
    if not probe.thorough:
        return
    other = _other_size(probe)
    if other is not None:
        yield Way(
            "torch.compile(dynamic=True)",
            lambda: _resized(probe, other, cotangents),
            lambda: [*eager(), *_both(other, other.subject.call)],
        )
    if has_compiler():
        yield Way(
            "torch.compile(backend='inductor')",
            lambda: _once(probe, cotangents, "inductor"),
            eager,
        )


def composed_ways(probe: Probe) -> list[Way]:
    """Transforms of the Function, and compositions of them, where eager code answers.

    Arguments:
        probe: the subject.

    Returns:
        First all of them compiled at once, then each alone: to be asked only if that is refused.
    """
    batch = Batch.of(probe)
    found: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {}
    for name, (function, inputs) in _transforms(batch).items():
        try:
            function(*inputs)
        except Exception:  # noqa: S112 - refused in eager code: the other clauses say how
            continue
        found[name] = function, inputs
    if not found:
        return []

    def every(*_: torch.Tensor) -> list[Any]:
        return [function(*inputs) for function, inputs in found.values()]

    alone = [_way(name, function, inputs) for name, (function, inputs) in found.items()]
    together = _way(", ".join(found), every, ())
    return [together, *alone] if len(alone) > 1 else alone


def refused_way(probe: Probe) -> Way | None:
    """`torch.func.grad`, where eager code refuses it, beside the Function's own backward.

    torch's compiler may answer all the same: it differentiates what it sees of forward.

    Arguments:
        probe: the subject.
    """
    batch = Batch.of(probe)
    name = "torch.func.grad(f)"
    function, inputs = _transforms(batch)[name]
    try:
        function(*inputs)
    except Exception:  # as eager torch does without setup_context
        way = _way(name, function, inputs)
        return replace(way, eager=lambda: probe.backward(batch.items[0], batch.weights[0]))
    return None


def _way(name: str, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Way:
    def run() -> Tensors:
        def whole(*given: torch.Tensor) -> Any:
            return function(*given)

        return _flat(_compile(whole)(*inputs))

    return Way(f"torch.compile({name})", run, lambda: _flat(function(*inputs)))


def _flat(answer: Any) -> Tensors:
    return [t.detach() for t in tensors(answer)]


_Transform = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _transforms(batch: Batch) -> dict[str, _Transform]:
    """Each transform as a function of tensors, with its inputs."""
    probe = batch.probe
    points, weights, steps = (tuple(part[0]) for part in (batch.items, batch.weights, batch.steps))
    count = len(points)
    stacked = (*batch.stacked(batch.items), *batch.stacked(batch.weights))

    def loss(*given: torch.Tensor) -> torch.Tensor:
        pairs = zip(given[count:], probe.unseeded(*given[:count]), strict=True)
        return sum(((w.conj() * y).real.sum() for w, y in pairs), torch.zeros(()))

    def slope(*given: torch.Tensor) -> Any:
        return torch.func.grad(loss, argnums=tuple(range(count)))(*given)

    def slopes(*given: torch.Tensor) -> Any:
        return torch.func.vmap(slope)(*given)

    def total(*given: torch.Tensor) -> Any:
        def summed(*inside: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(loss)(*inside, *given[count:]).sum()

        return torch.func.grad(summed, argnums=tuple(range(count)))(*given[:count])

    def push(*given: torch.Tensor) -> Any:
        return torch.func.jvp(probe.unseeded, given[:count], given[count:])[1]

    def bend(*given: torch.Tensor) -> Any:
        def inside(*moved: torch.Tensor) -> Any:
            return slope(*moved, *weights)

        return torch.func.jvp(inside, given[:count], given[count:])[1]

    return {
        "torch.func.grad(f)": (slope, (*points, *weights)),
        "torch.func.jvp(f)": (push, (*points, *steps)),
        "torch.func.vmap(torch.func.grad(f))": (slopes, stacked),
        "torch.func.grad(torch.func.vmap(f))": (total, stacked),
        "torch.func.jvp(torch.func.grad(f))": (bend, (*points, *steps)),
    }


def _compile(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    """Compile a function whose code nobody has compiled before, so that nothing is left behind."""
    code = function.__code__.replace()
    again = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return torch.compile(again, fullgraph=True, backend=backend, **options)


def _caller(probe: Probe) -> Callable[..., Any]:
    call = probe.subject.call

    def run(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


def _once(probe: Probe, cotangents: Tensors, backend: str) -> Tensors:
    compiled = _compile(_caller(probe), backend)
    return _both(probe, lambda *args, **kwargs: compiled(args, kwargs), cotangents)


def _resized(probe: Probe, other: Probe, cotangents: Tensors) -> Tensors:
    """Compile for shapes that may change, and change them."""
    compiled = _compile(_caller(probe), dynamic=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled(args, kwargs)

    return [*_both(probe, call, cotangents), *_both(other, call)]


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
