"""`layout`: any strides, expanded, empty and zero-dimensional tensors give the same numbers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.comparison._values import (
    broadcast,
    expanded,
    offset,
    same_bits,
    strided,
    transposed,
)
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._structure import ties_matrices
from pullback.conformance.inputs._vectors import nudged
from pullback.conformance.probing._mends import by_autograd
from pullback.conformance.process._failure import attempt, describe, raised
from pullback.conformance.process._guard import reseed
from pullback.internal.torch import pytree

__all__ = ["layout"]

_DRAWS, _ROUNDED = 3, 8.0  # times that entries are moved, and by how many units of rounding
_FEW = "Let backward take what forward takes, or let forward refuse it with an error."
_EMPTY = "The hole is torch's own: answer there by yourself, with zeros of the input's shape."


@clause(
    why="Transposed, expanded, empty and zero-dimensional tensors are everyday inputs. A "
    "kernel that assumes contiguous memory reads other numbers than the tensor holds. "
    "`sum().backward()` sends expanded cotangents; `gradcheck` only ever feeds "
    "contiguous ones.",
    breach="against contiguous copies of the same numbers.",
    mend="Call .contiguous() before raw memory is touched, and use reshape, not view.",
)
def layout(probe: Probe) -> Finding:
    """Compare other memory layouts of the same numbers with contiguous ones."""
    if probe.draws and (probe.inputs.generators or _draws_in_backward(probe)):
        return probe.skipped("It draws random numbers, in the order in which a tensor lies.")
    points = probe.inputs.points()
    outputs = probe.output_values()
    cotangents = probe.cotangents(outputs)
    usual: Tensors = []
    for what, (of_inputs, of_cotangents, _) in _LAYOUTS.items():
        moved, turned = [*map(of_inputs, points)], [*map(of_cotangents, cotangents)]
        plain = [_plain(x) for x in moved], [_plain(g) for g in turned]
        expected = attempt(lambda these=plain: Run.laid(probe, *these).every, None)
        if expected is None:
            continue  # other numbers, which the function may refuse
        usual = usual or expected
        ways = (("inputs", moved, plain[1]), ("cotangents", plain[0], turned))
        for kind, xs, gs in ways[probe.draws :]:  # what is drawn is by the order of the inputs
            try:
                run = Run.laid(probe, xs, gs)
            except Exception as error:  # judged by its type
                return probe.failed(error, f"{what} {kind} are refused")
            place = _place(probe, run.every, expected, usual)
            if place is not None and not _is_tied(probe, plain, expected, usual):
                k = place - len(outputs)
                pair = expected[place], [*run.outputs, *run.answered][place]
                there = replace(probe, inputs=probe.inputs.with_points(plain[0]))
                return _broken(there, (what, kind), pair, k, plain[1])
    if not usual:
        return probe.skipped("A backward of contiguous copies does not run.")
    if probe.draws:
        return probe.holds("Cotangents give the same numbers however they lie in memory.")
    return _degenerate(probe) or probe.holds(
        "Transposed, strided, expanded, empty and zero-dimensional tensors give the same numbers."
    )


def _draws_in_backward(probe: Probe) -> bool:
    """Whether gradients are others where generators are set anew between forward and backward."""
    found = []
    for seed in (0, 1):
        leaves = probe.leaves()
        outputs = probe.evaluate(leaves)
        reseed(probe.seed + seed)
        found.append(probe.pull(leaves, probe.cotangents(outputs), outputs))
    return not all(map(same_bits, *found))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers by themselves, from the start of their memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _place(probe: Probe, got: Tensors, expected: Tensors, usual: Tensors) -> int | None:
    """The first tensor that differs, for its size at the inputs that were given.

    Where every row is the same, what cancels is rounding alone: of no size to compare with.
    """
    for k, (one, other, given) in enumerate(zip(got, expected, usual, strict=True)):
        pair = [torch.cat((t.reshape(-1), given.reshape(-1))) for t in (one, other)]
        if one.shape != other.shape or probe.differ(*([t] for t in pair), looser=1e4) is not None:
            return k
    return None


def _is_tied(
    probe: Probe, plain: tuple[Tensors, Tensors], expected: Tensors, usual: Tensors
) -> bool:
    """Whether rounding alone gives other numbers: of rows that are the same one is the nearest.

    Then what is summed in another order, as that of another layout is, may take another row.
    """
    drawn = probe.generator("tied")
    for _ in range(_DRAWS):
        moved = [nudged(x, drawn, _ROUNDED * torch.finfo(x.dtype).eps) for x in plain[0]]
        found = attempt(lambda these=moved: Run.laid(probe, these, plain[1]).every, None)
        if found is not None and _place(probe, found, expected, usual) is not None:
            return True
    return False


_Lay = Callable[[torch.Tensor], torch.Tensor]
_STRIDED = "torch.stack([t * 0, t], -1)[..., 1]"
# How inputs are laid out, how cotangents are, and how a script does it. A cotangent is of no kind:
# any may be one row, one number, or one in each row, as that of a sum.
_LAYOUTS: dict[str, tuple[_Lay, _Lay, str]] = {
    "Transposed": (transposed, transposed, f"t.mT.contiguous().mT if t.ndim > 1 else {_STRIDED}"),
    "Strided": (strided, strided, _STRIDED),
    "Offset": (offset, offset, "torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape)"),
    "Expanded": (expanded, lambda g: g[:1].expand(g.shape) if g.ndim else g,
                 "t[:1].expand(t.shape) if t.ndim and bool((t == t[:1]).all()) else t"),
    "Broadcast": (lambda x: x, broadcast, "t.reshape(-1)[:1].expand(t.numel()).view(t.shape)"),
    "Spread": (lambda x: x, lambda g: g[..., :1].expand(g.shape) if g.ndim else g,
               "t[..., :1].expand(t.shape) if t.ndim else t"),
}  # fmt: skip


def _degenerate(probe: Probe) -> Finding | None:
    """Empty and zero-dimensional inputs, where the function itself is defined for them."""
    for what, small in _small(probe):
        there = replace(probe, inputs=probe.inputs.with_values(small))
        if raised(there.output_values) is not None:
            continue  # not defined there, as for a matrix product of numbers
        try:
            run = Run.of(there)
        except Exception as error:  # forward took it, so backward has to
            if _is_the_callers(there):
                continue  # what was handed over does not take it
            doing = f"Forward takes {what} inputs, backward fails"
            own = by_autograd(there.subject)  # whether the derivative of forward fails as well
            if own is not None and raised(lambda s=own, p=there: Run.of(replace(p, subject=s))):
                said = f"{doing}, as torch's own derivative of forward does: {describe(error)}"
                return probe.lacking(said, _EMPTY)
            return probe.failed(error, doing, _FEW, transform=False)
        if what == "zero-dimensional":  # the last one
            return _one_element(there, run)
    return None


def _is_the_callers(probe: Probe) -> bool:
    """Whether what fails is a function among the arguments, which forward or backward calls.

    Of a module or another object that can be called it is taken for granted.
    """
    failed = [value for value in probe.inputs.others() if callable(value)]
    if not failed or not all(isinstance(value, FunctionType) for value in failed):
        return bool(failed)
    failed.clear()

    def heard(value: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return value(*args, **kwargs)
            except Exception:
                failed.append(value)
                raise

        return call if isinstance(value, FunctionType) else value

    args = pytree.tree_map(heard, probe.inputs.args)
    raised(lambda: Run.of(replace(probe, inputs=replace(probe.inputs, args=args))))
    return bool(failed)


def _small(probe: Probe) -> Iterator[tuple[str, Tensors]]:
    """Every tensor argument emptied along the same dimension, or reduced to a number.

    One of them alone would no longer fit the others, although broadcasting may hide it; and one
    row may be a parameter that has no batch to be emptied.
    """
    every = probe.inputs.values
    rows = {x.shape[0] if x.ndim else 0 for x in every}
    tied = any(map(ties_matrices, every))
    if len(rows) == 1 and rows != {0} and (rows != {1} or len(every) == 1) and not tied:
        yield "empty", [x[:0] for x in every]
    if all(x.numel() for x in every) and _is_elementwise(probe):
        yield "zero-dimensional", [x.reshape(-1)[0] for x in every]


def _is_elementwise(probe: Probe) -> bool:
    """Whether one entry of each input makes one entry of each output, by itself.

    Nothing else is given the dimensions of a number: a row of a norm or a softmax is not one.
    """
    points, outputs = probe.inputs.points(), probe.output_values()
    if {t.shape for t in (*points, *outputs, *probe.inputs.values)} != {points[0].shape}:
        return False
    step = probe.direction("elementwise")
    numbers = torch.arange(points[0].numel(), device=points[0].device)
    first = numbers.view(points[0].shape) == 0
    for moves in (first, ~first):  # a prefix depends on what is before it
        moved = [x + 0.02 * v * moves for x, v in zip(points, step, strict=True)]
        found = zip(outputs, probe.output_values(moved), strict=True)
        if any(bool((a != b)[~moves].any()) for a, b in found):
            return False
    return True


def _one_element(probe: Probe, run: Run) -> Finding | None:
    """A number and a vector of one number have the same gradient where forward is the same."""
    if any(y.numel() != 1 for y in run.outputs):  # forward broadcasts with what is not an argument
        return None
    pair = [x.reshape(1) for x in probe.inputs.points()], [g.reshape(1) for g in run.cotangents]
    vector = attempt(lambda: Run.laid(probe, *pair), None)
    outputs = [y.reshape(1) for y in run.outputs]
    if vector is None or probe.differ(outputs, vector.outputs, looser=1e4) is not None:
        return None  # a vector is not accepted, or means something else
    tail = [g.reshape(()) if g.numel() == 1 else g for g in vector.gradients]
    place = probe.differ(run.gradients, tail, looser=1e4)
    if place is None:
        return None
    found = tail[place], run.gradients[place]
    return _broken(probe, ("zero-dimensional", "inputs"), found, place, run.cotangents)


def _broken(
    probe: Probe, which: tuple[str, str], pair: tuple[torch.Tensor, torch.Tensor | None],
    place: int, cotangents: Tensors,
) -> Finding:  # fmt: skip
    (what, kind), (expected, got) = which, pair
    path = probe.path(place) if 0 <= place < len(probe.inputs.differentiable) else "an output"
    moves = (
        "new = [lay(x.detach()).requires_grad_() for x in xs]",
        "args = tree_map(lambda a: next((n for x, n in zip(xs, new) if x is a), a), args)",
        "xs = new",
    )
    alone = kind == "inputs" and what != "zero-dimensional"  # which has cotangents of its own
    return probe.broken(
        f"{what} {kind} give other numbers than contiguous ones.",
        expected=expected,
        got=got,
        place=path,
        given={"w": cotangents},
        repro=[
            "print('as it is', torch.autograd.grad(outs(), xs, w, allow_unused=True), outs())",
            f"def lay(t): return {_LAYOUTS[what][2] if what in _LAYOUTS else 't.reshape(1)'}",
            *(moves if kind == "inputs" else ()),
            f"g = [{'t.clone()' if alone else 'lay(t)'} for t in w]",
            # As they lie in memory: a copy would be contiguous.
            "print('laid out', torch.autograd.grad(outs(), xs, [*g], allow_unused=True), outs())",
        ],
    )
