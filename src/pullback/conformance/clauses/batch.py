"""`batch`: an item's numbers do not depend on what else is in the batch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pullback.conformance._clause import clause
from pullback.conformance._items import changed, data
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._resize import stands_for
from pullback.conformance._structure import keep
from pullback.conformance._values import same_bits
from pullback.report import Finding

__all__ = ["batch"]

_SIZES = (7, 33, 130, 257)
_ENTRIES = 2**14
_FAR = 4096.0
_SECONDS = 3.0  # of work, after which no larger batch is tried: a check stays fast


@dataclass(frozen=True)
class _Batch:
    """Rows for a batch, and what is asked of each.

    Arguments:
        probe: the subject, at all the rows.
        chosen: the tensors that have them.
        weights: the cotangent of each row of each output.
        answers: the rows of outputs and gradients, all rows together.
    """

    probe: Probe
    chosen: tuple[int, ...]
    weights: Tensors
    answers: Tensors

    @classmethod
    def of(cls, probe: Probe, chosen: tuple[int, ...]) -> "_Batch":
        """All rows that were given, and rows close to them where these are fewer than three."""
        given, near = probe.inputs, probe.inputs.with_points(probe.neighbour(2))
        while len(given.values[chosen[0]]) < 3:
            pairs = zip(given.values, near.values, strict=True)
            given = given.with_values(
                [torch.cat([a, b]) if k in chosen else a for k, (a, b) in enumerate(pairs)]
            )
        probe = probe.at(given)
        weights = probe.cotangents(probe.output_values())
        made = cls(probe, chosen, weights, [])
        return cls(probe, chosen, weights, made.rows(torch.arange(made.count)))

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.probe.inputs.values[self.chosen[0]])

    def rows(self, index: torch.Tensor, size: float = 1.0) -> Tensors:
        """Outputs and gradients of a batch of some rows; the first as it is, others by ``size``."""

        def take(value: torch.Tensor) -> torch.Tensor:
            part = value[index.to(value.device)]
            if size == 1.0 or not value.is_floating_point():
                return part
            part = torch.cat([part[:1], size * part[1:]])
            kept = keep(value, part)
            if kept is not None and not torch.equal(kept[:1], part[:1]):
                raise ValueError("The first row would be another one.")  # as where rows rise
            return part if kept is None else kept

        other = self.probe.at(changed(self.probe.inputs, self.chosen, take))
        leaves = other.leaves()
        outputs = other.evaluate(leaves)
        # What has no row for each item says nothing of items, and its gradient is left out.
        has_rows = [y.ndim > 0 and len(y) == len(index) for y in outputs]
        cotangents = [
            w[index.to(w.device)] if found else torch.zeros_like(y)
            for y, w, found in zip(outputs, self.weights, has_rows, strict=True)
        ]
        gradients = other.pull(leaves, cotangents, outputs)
        found = [y.detach() for y, rows in zip(outputs, has_rows, strict=True) if rows]
        wanted = zip(self.probe.inputs.differentiable, gradients, strict=True)
        return found + [g.detach() for k, g in wanted if k in self.chosen]

    def differs(self, index: torch.Tensor, size: float = 1.0) -> tuple[int, bool]:
        """Which answer to the first or, at size 1, any row is another than in the whole batch.

        Returns:
            The position of the answer, -1 for none; and whether all have the same bits.
        """
        got = self.rows(index, size)
        last = 1 if size != 1.0 else len(index)
        expected = [a[index[:last].to(a.device)] for a in self.answers]
        got = [a[:last] for a in got]
        place = self.probe.differ(got, expected, looser=1e3)
        exact = all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
        return (-1 if place is None else place), exact


@clause(
    promise="An item's numbers do not depend on what else is in the batch.",
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
    whole = _Batch.of(probe, chosen)
    exact = True
    for pair in _pairs(whole.count):
        try:
            place, same = whole.differs(torch.tensor(pair))
        except Exception:  # the rows are of something that has as many
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


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """The first and the last row beside one of the others, and after the other."""
    for row in (0, count - 1):
        yield row, (row + 1) % count
        yield (row + 2) % count, row


def _others(whole: _Batch, far: bool) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Other company for the rows: what it is, the rows, and how much larger the others are."""
    count = whole.count
    every = torch.arange(count)
    yield from (("alone", every[row : row + 1], 1.0) for row in (0, count - 1))
    yield "in reverse", every.flip(0), 1.0
    yield "one place further", every.roll(1), 1.0
    if far:
        yield f"beside rows {_FAR:g} times as large", every, _FAR
    entries = max(v.numel() // count for v in (whole.probe.inputs.values[k] for k in whole.chosen))
    for size in _SIZES:
        if size > count and size * entries <= _ENTRIES:
            yield f"in a batch of {size}", torch.arange(size) % count, 1.0


def _broken(whole: _Batch, name: str, index: torch.Tensor, size: float, place: int) -> Finding:
    got, expected = whole.rows(index, size)[place], whole.answers[place][index]
    last = 1 if size != 1.0 else len(index)
    rows = (got[:last] - expected[:last]).abs().reshape(last, -1).nan_to_num(nan=torch.inf)
    row = int(rows.amax(1).argmax())
    count = len(whole.answers) - sum(k in whole.chosen for k in whole.probe.inputs.differentiable)
    what = "output" if place < count else "gradient"
    return whole.probe.broken(
        f"Row {int(index[row])} has another {what} {name} than in a batch of {whole.count}, where "
        f"rows do not depend on each other: it is off by {float(rows[row].max()):.3g}.",
        expected=expected[row], got=got[row], place=f"row {int(index[row])}",
        given={
            "w": [w if w.ndim and len(w) == whole.count else torch.zeros_like(w)
                  for w in whole.weights]
        },
        repro=[
            f"index = {_written(index, whole.count)}",
            f"size = torch.tensor([1.0] + [{size}] * {len(index) - 1}, dtype=torch.float64)",
            "n = len(outs()[0])",
            "g = torch.autograd.grad(outs(), xs, w)",
            "print('in the batch', [t[index] for t in (*outs(), *g) if t.ndim and len(t) == n])",
            "def take(a):",
            "    if not isinstance(a, torch.Tensor) or not a.ndim or len(a) != n: return a",
            "    b = a.detach()[index] * (size.view(-1, *[1] * (a.ndim - 1)) if "
            "a.is_floating_point() else 1)",
            "    return b.to(a.dtype).requires_grad_(a.requires_grad)",
            "args = tree_map(take, args)",
            "xs = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor) and "
            "a.requires_grad]",
            "w = [v[index] if v.ndim and len(v) == n else v for v in w]",
            f"print({name!r}, outs(), torch.autograd.grad(outs(), xs, w))",
        ],
    )  # fmt: skip


def _written(index: torch.Tensor, count: int) -> str:
    """The rows as an expression."""
    if torch.equal(index, torch.arange(len(index)) % count):
        return f"torch.arange({len(index)}) % {count}"
    return f"torch.tensor({index.tolist()})"
