"""`alias`: an output that is an input or a view is handled."""

from collections.abc import Iterator

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.comparison._values import same_bits
from pullback.conformance.probing._nodes import watched_marks

__all__ = ["alias"]


@clause(
    why="An output that shares memory with an input changes when that input is changed. "
    "Autograd has to know it, or it works with values that are gone.",
    breach="when an output is changed in place and an input, another output or a gradient "
    "goes wrong.",
    mend="Return a clone, or x.view_as(x), never memory that autograd cannot see is shared "
    "(.data, numpy, DLPack, set_, a cache).",
)
def alias(probe: Probe) -> Iterator[Finding | None]:
    """Change each output in place: inputs and other outputs must not change silently with it."""
    with watched_marks() as marks:
        handed, _, every = probe.exposed(probe.leaves())
    dirty = {t.data_ptr() for t in marks.dirty}
    shared = next((
        f"Output {k} shares memory with tensor argument {j}."
        for k, y in enumerate(every) for j, x in enumerate(handed)
        if y.numel() and _storage(x) == _storage(y) and y.data_ptr() not in dirty
    ), "")  # fmt: skip
    for k in probe.outputs:
        if every[k].data_ptr() not in dirty:
            yield _change(probe, k)
    if shared:
        yield probe.holds(f"{shared} A change of it in place is refused or followed by autograd.")
    yield probe.holds("No output shares memory with an input or another output.")


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def _change(probe: Probe, k: int) -> Finding | None:
    """Change output ``k`` in place under autograd; a finding where something else changed too."""
    leaves = probe.leaves()
    handed, _, every = probe.exposed(leaves)
    others = {probe.inputs.paths[j]: x for j, x in enumerate(handed)}
    others |= {f"output {j}": y for j, y in enumerate(every) if j != k}
    copies = {name: t.detach().clone() for name, t in others.items()}
    before = every[k].detach().clone()
    cotangents = probe.cotangents([before])
    factor = 2.0  # a power of two, so that no precision rounds it
    try:
        every[k].mul_(factor)
    except RuntimeError:
        return None  # torch refuses to change such a view: loud
    for name, now in others.items():
        if not same_bits(now, copies[name]):
            return _broken(probe, k, name, copies[name], now)
    try:
        got = probe.pull(leaves, cotangents, [every[k]])
    except RuntimeError:
        return None  # the saved output was changed: loud
    alone = probe.leaves()
    chosen = probe.exposed(alone)[-1][k]
    expected = probe.pull(alone, [factor * c for c in cotangents], [chosen])
    place = probe.differ([g.detach() for g in got], expected, looser=1e3)
    if place is None or probe.intent == "nonlinear":
        return None
    return _broken(probe, k, f"the gradient of {probe.path(place)}", expected[place], got[place])


def _broken(probe: Probe, k: int, name: str, expected: object, got: object) -> Finding:
    return probe.broken(
        f"Output {k} was changed in place, and {name} silently became wrong.",
        expected=expected,
        got=got,
        place=name,
        repro=[
            "every = lambda t: [a.detach().clone() for a in tree_leaves(t) "
            "if isinstance(a, torch.Tensor)]",
            "found = call(*args, **kwargs); ys = tree_leaves(found)",
            "print('before', every((args, kwargs)), every(found))",
            f"[y for y in ys if isinstance(y, torch.Tensor)][{k}].mul_(2)",
            "print('after ', every((args, kwargs)), every(found))",
        ],
    )
