"""`index-width`: right where offsets pass 2^31."""

import mmap
from collections.abc import Callable

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.evidence._screen import Run, died
from pullback.conformance.process._failure import describe
from pullback.conformance.process._forked import ProcessDied, forked

__all__ = ["index_width"]

_FAR = 2**31 + 2**12
_NEAR = 2**13
_ROOM = 2**12  # entries that a tensor may have
# Of a kernel that reads rows far apart, memory is committed for the pages that it touches alone.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_REPRO = [
    "import mmap",
    "count = 2**31 + 2**13",
    "lazy = mmap.mmap(-1, count * xs[0].element_size(), flags=34 | 0x4000)  # private, no reserve",
    "far = torch.frombuffer(lazy, dtype=xs[0].dtype)",
    "x = xs[0].detach()",
    "dim = next(d for d, n in enumerate(x.shape) if n > 1)",
    "strides = list(torch.empty(x.shape).select(dim, 0).stride())",
    "strides.insert(dim, (2**31 + 2**12) // (x.shape[dim] - 1))",
    "moved = far.as_strided(x.shape, strides).copy_(x).requires_grad_()",
    "def show(name, t):",
    "    given = tree_map(lambda a: t if a is xs[0] else a, args)",
    "    ys = tree_leaves(call(*given, **kwargs))",
    "    ys = [y for y in ys if isinstance(y, torch.Tensor) and y.requires_grad]",
    "    print(name, ys, torch.autograd.grad(ys, t, [torch.ones_like(y) for y in ys]))",
    "show('near', xs[0])",
    "show('far ', moved)",
]


def _store(like: torch.Tensor, reach: int) -> torch.Tensor:
    """So many entries and some more, of which the pages that are touched take memory."""
    count = reach + 2 * _ROOM
    if like.device.type != "cpu":
        return torch.empty(count, dtype=like.dtype, device=like.device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    lazy = mmap.mmap(-1, count * like.element_size(), flags=flags)
    return torch.frombuffer(lazy, dtype=like.dtype)


def _apart(tensor: torch.Tensor, reach: int) -> torch.Tensor:
    """The tensor with its last row so far from its first, where it has rows."""
    dim = next((d for d, n in enumerate(tensor.shape) if n > 1), None)
    if dim is None:
        return tensor
    strides = list(torch.empty(tensor.shape, device="meta").select(dim, 0).stride())
    strides.insert(dim, -(-reach // (tensor.shape[dim] - 1)))
    store = _store(tensor, strides[dim] * tensor.shape[dim])
    return store.as_strided(tensor.shape, strides).copy_(tensor)


def _behind(tensor: torch.Tensor, reach: int) -> torch.Tensor:
    """The tensor in one piece, so far from where its memory begins."""
    return _store(tensor, reach)[reach:][: tensor.numel()].view(tensor.shape).copy_(tensor)


_WAYS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rows 2^31 entries apart": _apart,
    "2^31 entries behind where their memory begins": _behind,
}


@clause(
    why="A kernel that multiplies a row by a stride in 32 bits is right in every test and reads or "
    "writes other memory at the size of a real batch: long sequences, large vocabularies and "
    "experts pass 2^31 entries.",
    breach="against contiguous copies of the same few numbers, with rows of inputs and cotangents "
    "2^31 entries apart, or as far from where their memory begins; and as the end of the process, "
    "of which a copy makes these calls. Memory is taken for the pages that are touched alone; on a "
    "GPU for all, where there is enough.",
    mend="Compute offsets in 64 bits before they are multiplied: `row.to(tl.int64) * stride` "
    "in Triton, `int64_t` or `size_t` in C++; or refuse tensors that reach so far.",
)
def index_width(probe: Probe) -> Finding:
    """Put rows of inputs and cotangents far apart in memory, in a copy of the process."""
    points = probe.inputs.points()
    if probe.draws:
        return probe.skipped("It draws random numbers, in the order in which a tensor lies.")
    if max(x.numel() for x in points) > _ROOM:
        return probe.skipped("The inputs are too large to be put far apart.")
    if points[0].device.type != "cpu":
        wanted = sum(x.element_size() for x in points) * 2 * _FAR
        module = torch.get_device_module(points[0].device)
        told = hasattr(module, "mem_get_info")
        if not told or module.mem_get_info(points[0].device)[0] < wanted:
            return probe.skipped(f"It takes {wanted / 2**30:.0f} GiB of memory on a GPU.")
    try:
        return forked(lambda: _look(probe))
    except ProcessDied as death:
        return died(probe, "With offsets beyond 2^31 the process dies:", death, repro=_REPRO)


def _look(probe: Probe) -> Finding:
    outputs = probe.output_values()
    points, cotangents = probe.inputs.points(), probe.cotangents(outputs)
    expected = _run(probe, points, cotangents)
    refused = []
    for where, put in _WAYS.items():
        for kind in ("inputs", "cotangents"):
            near, far = (
                ([put(x, reach) for x in points], cotangents) if kind == "inputs"
                else (points, [put(g, reach) for g in cotangents])
                for reach in (_NEAR, _FAR)
            )  # fmt: skip
            try:
                if probe.differ(_run(probe, *near), expected, looser=1e4) is not None:
                    return probe.skipped("Other strides give other numbers already: see layout.")
                got = _run(probe, *far)
            except Exception as error:  # loud, so not silently wrong
                refused.append(f"{kind} with {where} ({describe(error, 60)})")
                continue
            wrong = probe.unlike(
                got, expected, f"Other numbers for {kind} with {where} than for contiguous ones.",
                outputs=len(outputs), looser=1e4, repro=_REPRO,
            )  # fmt: skip
            if wrong is not None:
                return wrong
    if refused:
        return probe.lacking(f"Refused: {'; '.join(refused)}.")
    return probe.holds("The same numbers where offsets pass 2^31, of inputs and of cotangents.")


def _run(probe: Probe, points: Tensors, cotangents: Tensors) -> Tensors:
    return [t.contiguous().clone() for t in Run.laid(probe, points, cotangents).every]
