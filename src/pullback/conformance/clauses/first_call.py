"""`first-call`: the first call answers as every later one."""

import re
from collections.abc import Iterator
from contextlib import suppress

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.probing._fresh import GIVEN, Answers, Fresh
from pullback.conformance.process._forked import ProcessDied

__all__ = ["first_call"]

_REPRO = [
    "def show(name):",
    "    ys = outs()",
    "    w = [torch.ones_like(y) for y in ys]",
    "    print(name, ys, torch.autograd.grad(ys, xs, w, allow_unused=True))",
    "show('first')",
    "given = args",
    "def larger(a): return torch.cat([3 * a.detach()] * 5, -1) if a.ndim else 3 * a.detach()",
    "import itertools",
    "def other(a): return next(factors) * a.detach()",
    "def whole(a): return ~a if a.dtype is torch.bool else a if a.is_complex() else "
    "(a.long() // 2).to(a.dtype)",
    "for change in (other, larger, lambda a: a.detach().float()):",
    "    factors = itertools.cycle((3.0, 0.5, 2.0))",
    "    args = tree_map(lambda a: a if not torch.is_tensor(a) else whole(a) if not "
    "a.is_floating_point() else change(a).requires_grad_(a.requires_grad), given)",
    "    try: print('others', outs())",
    "    except Exception as error: print('others', error)",
    "args = given",
    "show('again')",
]
_LEAVES = "leaves = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]"
_KEPT = [
    "own, made = args, {{id(a): o.requires_grad_(a.requires_grad) for a, o in zip({0}, others)}}",
    "args = tree_map(lambda a: made.get(id(a), a), args)",
    "sum(y.real.sum() for y in outs()).backward()",
    "args = own",
    "for name in ('after another call', 'first'):",
    "    ys = outs()",
    "    print(name, ys, torch.autograd.grad(ys, xs, w, allow_unused=True))",
    "    {1}.clear()",
]


@clause(
    why="Autotuning runs a kernel several times where the result lies, buffers are made at the "
    "size of the first call, tables are cached by the shape alone: one call in a program is then "
    "another than in its tests, and a resumed run goes on elsewhere.",
    breach="beside a copy of the process from before the first call, as far as the check has made "
    "it: other numbers, integers, options and sizes, another dtype, and then the arguments given.",
    mend="Keep nothing between calls that changes an answer: key what is cached by all that it "
    "depends on (shape, dtype, device, numbers, options), and let autotuning work on "
    "copies of what it overwrites.",
)
def first_call(probe: Probe) -> Iterator[Finding | None]:
    """Compare calls after many others with the first one, and with those of a process without."""
    fresh = probe.fresh
    if not isinstance(fresh, Fresh):
        yield probe.skipped("No process without calls is at hand.")
    if probe.private:
        yield probe.skipped("It draws from a generator of its own: see deterministic.")
    apart: Answers = {}
    with suppress(ProcessDied):  # by other arguments, as a kernel does that asks for no shapes
        apart = fresh.copy.ask(probe.patience) if fresh.copy is not None else {}
    later = fresh.later(probe.patience, others=bool(apart))
    for name, expected, got in [
        (GIVEN, fresh.first, later[GIVEN]),
        *((name, answer, later[name]) for name, answer in apart.items() if name in later),
    ]:
        yield _compare(probe, fresh, name, expected, got)
    if not apart:
        yield probe.holds("The first call answers as it does after others.")
    yield probe.holds("Calls answer as they do in a process that has made none before.")


def _compare(
    probe: Probe, fresh: Fresh, name: str, first: Tensors | None, later: Tensors | None
) -> Finding | None:
    if first is None:  # loud, so not silently wrong
        return None
    if later is None or len(later) < len(first):
        return probe.crashes(
            f"A call with {name} works first and fails after other calls.", repro=_REPRO
        )
    pairs = list(zip(later, first, strict=False))
    place = probe.differ(later[: len(first)], first, looser=1e3)
    place = next((k for k, (a, b) in enumerate(pairs) if a.dtype != b.dtype), place)
    if place is None:
        return None
    said, there, repro, given, got = "", probe, _REPRO, {}, later[place]
    kept = fresh.kept_in(name, place, first[place])
    if kept is not None:
        what = re.findall(r"\w+", kept.path)[-1]
        said = f"What `{what}` keeps of one call is read by another: once empty, it is right. "
    if kept is not None and kept.is_in_reach:
        there, like = probe.at(kept.arguments), kept.like
        free = [k for k in range(len(like.values)) if k not in like.owned]
        known = free == [*like.differentiable]  # by the script already
        names = "xs" if known else "leaves", kept.path
        repro = [*([] if known else [_LEAVES]), *(line.format(*names) for line in _KEPT)]
        cotangents = there.cotangents(there.output_values())
        given = {"w": cotangents, "others": [like.values[k] for k in free]}
        alone = kept.later[place : place + 1]
        if alone and probe.differ(alone, [first[place]], looser=1e3) is not None:
            (got,) = alone
    return there.broken(
        f"{said}A call with {name} answers otherwise after other calls than first.",
        expected=first[place], got=got,
        place=f"answer {place} (outputs, then gradients)", repro=repro, given=given,
    )  # fmt: skip
