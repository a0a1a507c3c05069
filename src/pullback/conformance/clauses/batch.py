"""`batch`: an item's numbers do not depend on what else is in the batch."""

import time
from collections.abc import Iterator

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.evidence._related import Batch, data
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.probing._resize import stands_for

__all__ = ["batch"]

_SIZES = (7, 33, 130, 257)
_ENTRIES = 2**14
_FAR = 4096.0
_SECONDS = 3.0  # of work, after which no larger batch is tried: a check stays fast


@clause(
    why="What a model answers to one request must not change with the requests beside it, nor a "
    "sample's gradient with its place. Kernels that share a maximum among rows of a tile, or take "
    "another path for one row or for many, train well with one size of batch and not with another.",
    breach="beyond rounding, where items do not depend on each other in the batch that was given "
    "and in pairs: alone, in another order, in larger batches, beside much larger numbers. What "
    "differs within rounding is said.",
    mend="Let every row be computed from that row alone, in the same way in a batch of any "
    "size: reduce along its own dimensions, keep no path apart for one row or for many, "
    "and mask what lies beyond the last row.",
)
def batch(probe: Probe) -> Finding:
    """Run items in other company and at other places, where they are independent as given."""
    if probe.draws:
        return probe.skipped("It draws random numbers, in the order of the batch.")
    chosen = data(probe)
    if not chosen:
        return probe.skipped("No output has a row for each row of an input.")
    if stands_for(probe.inputs, len(probe.inputs.values[chosen[0]]), apart=chosen):
        return probe.skipped("A number among the arguments may stand for how many rows there are.")
    if _points_into_rows(probe, chosen):
        return probe.skipped("An integer argument may point to rows, which a part does not have.")
    whole = Batch.of(probe, chosen)
    exact = True
    last = whole.count - 1
    # The first and the last row beside one of the others, and after the other; beside a larger one,
    # where that is allowed: a grid for all rows changes with their size, in powers of two.
    for *pair, size in ((0, 1, 1), (2, 0, 1), (last, 0, 1), (1, last, 1), (0, 1, 8), (last, 0, 8)):
        try:
            place, same = whole.differs(torch.tensor(pair, device="cpu"), size)
        except Exception:  # the rows are of something that has as many
            if size > 1:
                continue
            return probe.skipped("A batch of two rows is refused.")
        if place >= 0:
            return probe.skipped("Rows depend on each other: they are no items of a batch.")
        exact = exact and same
    tried = []
    end = time.process_time() + _SECONDS
    for name, index, size in _others(whole, probe.intent == "exact"):
        if len(index) > whole.count and time.process_time() > end:
            tried.append("no larger ones (calls are slow)")
            break
        try:
            place, same = whole.differs(index, size)
        except Exception:  # noqa: S112 - loud, so not silently wrong
            continue
        if place >= 0:
            return _broken(whole, name, index, size, place)
        tried.append(name)
        exact = exact and same
    said = "bit for bit" if exact else "up to rounding"
    return probe.holds(f"Each row has the same numbers, {said}: {', '.join(dict.fromkeys(tried))}.")


def _points_into_rows(probe: Probe, chosen: tuple[int, ...]) -> bool:
    """Whether integers beside the rows may be numbers of rows: a kernel need not look at them."""
    values = probe.inputs.values
    count = len(values[chosen[0]])
    beside = [v for k, v in enumerate(values) if k not in chosen and v.numel()]
    whole = [v for v in beside if not is_continuous(v) and v.dtype != torch.bool]
    return any(0 < int(v.max()) < count for v in whole)


def _others(whole: Batch, far: bool) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Other company for the rows: what it is, the rows, and how much larger the others are."""
    count = whole.count
    every = torch.arange(count, device="cpu")
    yield from (("alone", every[row : row + 1], 1.0) for row in (0, count - 1))
    yield "in reverse", every.flip(0), 1.0
    yield "one place further", every.roll(1), 1.0
    if far:
        yield f"beside rows {_FAR:g} times as large", every, _FAR
    entries = max(v.numel() // count for v in (whole.probe.inputs.values[k] for k in whole.chosen))
    for size in _SIZES:
        if size > count and size * entries <= _ENTRIES:
            yield f"in a batch of {size}", torch.arange(size) % count, 1.0


def _broken(whole: Batch, name: str, index: torch.Tensor, size: float, place: int) -> Finding:
    got, expected = whole.rows(index, size)[place], whole.answers[place][index]
    last = 1 if size != 1.0 else len(index)
    rows = (got[:last] - expected[:last]).abs().reshape(last, -1).nan_to_num(nan=torch.inf)
    row = int(rows.amax(1).argmax())
    what = "output" if place < whole.outputs else "gradient"
    in_turn = torch.arange(len(index), device="cpu") % whole.count
    return whole.probe.broken(
        f"Row {int(index[row])} has another {what} {name} than in a batch of {whole.count}, where "
        f"rows do not depend on each other: it is off by {float(rows[row].max()):.3g}.",
        expected=expected[row], got=got[row], place=f"row {int(index[row])}",
        given={
            "w": [w if w.ndim and len(w) == whole.count else torch.zeros_like(w)
                  for w in whole.weights]
        },
        repro=[
            f"index = torch.arange({len(index)}) % {whole.count}" if torch.equal(index, in_turn)
            else f"index = torch.tensor({index.tolist()})",
            f"size = torch.tensor([1.0] + [{size}] * {len(index) - 1}, dtype=torch.float64)",
            "n = len(outs()[0])",
            "g = torch.autograd.grad(outs(), xs, w)",
            "print('in the batch', [t[index] for t in (*outs(), *g) if t.ndim and len(t) == n])",
            "def take(a):",
            "    if not isinstance(a, torch.Tensor) or not a.ndim or len(a) != n: return a",
            "    b = a.detach()[index] * (size.view(-1, *[1] * (a.ndim - 1)) if "
            "a.is_floating_point() or a.is_complex() else 1)",
            "    return b.to(a.dtype).requires_grad_(a.requires_grad)",
            "args = tree_map(take, args)",
            "xs = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor) and "
            "a.requires_grad]",
            "w = [v[index] if v.ndim and len(v) == n else v for v in w]",
            f"print({name!r}, outs(), torch.autograd.grad(outs(), xs, w))",
        ],
    )  # fmt: skip
