"""`memory`: what is kept for backward is used by it, once."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.comparison._values import same_bits
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.probing._nodes import Saved, custom_nodes
from pullback.conformance.probing._resize import resizings
from pullback.conformance.process._failure import attempt
from pullback.conformance.process._forked import ProcessDied, forked

__all__ = ["memory"]

_LARGER, _ENTRIES = 64, 2**12
_UNREAD = (
    "Save what backward reads alone: a shape, dtype or device can stand on ctx as it is, and what "
    "is needed for a gradient that nobody asked for (ctx.needs_input_grad) need not be saved."
)
_TWICE = "Save the tensor itself, not a copy: save_for_backward notices a change in place."
_LARGE = (
    "Save the inputs and compute it again in backward, or save a smaller form of it (a view keeps "
    "the whole memory that it looks at: save a clone of the part)."
)


@dataclass
class _Kept:
    """What one call keeps, and what backward is handed in its place."""

    # for a number of a saved tensor, what backward reads instead of it
    instead: dict[int, torch.Tensor] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=list)  # what was saved, in order
    # the numbers of those that a custom Function saved
    own: list[int] = field(default_factory=list)
    # the memory of what goes in and out: its address and what it is
    known: dict[int, torch.Tensor] = field(default_factory=dict)
    bytes: int = 0  # how much goes in and out

    def run(self, probe: Probe, *, second: bool = False) -> Tensors:
        """The gradients, of second order too, with every saved tensor noted."""
        leaves, saved = probe.leaves(), Saved(self.instead)
        self.tensors = saved.tensors
        with saved:
            handed, _, every = probe.exposed(leaves)
            outputs = [every[k] for k in probe.outputs]
            for node in custom_nodes(outputs):
                _ = node.saved_tensors
            self.own = list(dict.fromkeys(saved.read))
            through = [t for t in (*handed, *every) if t.numel()]
            self.known = {t.untyped_storage().data_ptr(): t.detach() for t in through}
            self.bytes = sum(t.untyped_storage().nbytes() for t in self.known.values())
            cotangents = [g.requires_grad_(second) for g in probe.cotangents(outputs)]
            gradients = probe.pull(leaves, cotangents, outputs, create_graph=second)
            if second:
                plain, sources = replace(probe, accumulates=False), [*leaves, *cotangents]
                gradients = plain.pull(sources, probe.spread(gradients, "memory"), gradients)
            return [g.detach() for g in gradients]

    def intermediates(self) -> Iterator[tuple[int, torch.Tensor]]:
        """What the Function saved that neither goes in nor comes out, by number."""
        for number in self.own:
            tensor = self.tensors[number]
            if tensor.numel() and tensor.untyped_storage().data_ptr() not in self.known:
                yield number, tensor


@clause(
    why="Between forward and backward a training step holds what every layer has saved: that is "
    "what fills a GPU. What backward never reads, what is there twice, and a matrix that is larger "
    "than all it is computed from, is paid for by the length of a batch.",
    breach="as gradients, of second order too, that stay the same when backward is handed other "
    "numbers for a saved tensor; as a saved copy of an input, an output or another saved tensor; "
    "and as a saved intermediate that is larger than inputs and outputs together, at larger sizes. "
    "Each is `untidy`. The bytes that a call keeps are said.",
    mend="Save inputs and outputs as they are, only those that backward reads, and compute large "
    "intermediates again.",
)
def memory(probe: Probe) -> Iterator[Finding | None]:
    """Hand backward other numbers for each saved tensor, and count what is kept."""
    kept = _Kept()
    if attempt(lambda: kept.run(probe), None) is None:
        yield probe.skipped("Saved-tensor hooks, which tell what is kept, are refused: see hooks.")
    if not kept.own:
        yield probe.holds("A call keeps nothing by itself.")
    yield _unread(probe, kept)
    yield _copied(probe, kept)
    yield _large(probe, kept)
    storages = {kept.tensors[k].untyped_storage().data_ptr(): k for k in kept.own}
    own = sum(kept.tensors[k].untyped_storage().nbytes() for k in storages.values())
    more = sum(t.untyped_storage().nbytes() for _, t in kept.intermediates())
    yield probe.holds(
        f"A call keeps {own:,} bytes in {len(kept.own)} tensor(s), {more:,} of them neither "
        f"inputs nor outputs ({kept.bytes:,} bytes go in and out)."
    )


def _unread(probe: Probe, kept: _Kept) -> Finding | None:
    asked = (probe, _asking_for_all(probe))  # what one gradient reads is saved for any of them
    for number in kept.own:
        tensor = kept.tensors[number]
        others = list(_others(tensor))
        if not others or any(_matters(p, number, other) for p in asked for other in others):
            continue
        return probe.untidy(
            f"Backward does not read the numbers of saved tensor {kept.own.index(number)}, "
            f"{_described(tensor)}: the gradients are the same with others in its place.",
            expected="what backward reads", got=f"{tensor.untyped_storage().nbytes():,} bytes more",
            place=f"ctx.saved_tensors[{kept.own.index(number)}]", hint=_UNREAD,
        )  # fmt: skip
    return None


def _asking_for_all(probe: Probe) -> Probe:
    """The same call with a gradient asked for each of its inputs."""
    given = probe.inputs
    every = (k for k, v in enumerate(given.values) if is_continuous(v) and k not in given.owned)
    return probe.at(given.with_differentiable([*every]))


def _others(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Other numbers of the same kind; none for integers, which may be handles or indices."""
    if not tensor.numel():
        return
    if is_continuous(tensor):
        # A mask of them may be the same with no numbers, or with those of one sign.
        factors = 1.5 + torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape) % 7
        larger = factors.to(tensor.dtype) * tensor.abs() + 0.25
        yield from (torch.full_like(tensor, torch.nan), -larger, larger)
    elif tensor.dtype == torch.bool:
        yield ~tensor


def _matters(probe: Probe, number: int, other: torch.Tensor) -> bool:
    """Whether a gradient changes with a saved tensor, of second order where that is not refused."""
    for second in (False, True):
        calls = (_Kept(), _Kept({number: other}))
        expected, got = (attempt(partial(c.run, probe, second=second), None) for c in calls)
        if expected is None:  # there is no second order
            return False
        if got is None or not all(map(same_bits, got, expected)):  # it is read, and may not fit
            return True
    return False


def _copied(probe: Probe, kept: _Kept) -> Finding | None:
    seen = dict(kept.known)
    for number, tensor in kept.intermediates():
        for one in seen.values():
            if one.data_ptr() != tensor.data_ptr() and _is_told(tensor) and same_bits(one, tensor):
                return probe.untidy(
                    f"Saved tensor {kept.own.index(number)}, {_described(tensor)}, is a copy of "
                    "an input, an output or another saved tensor.",
                    expected="the tensor itself", hint=_TWICE,
                    got=f"{tensor.untyped_storage().nbytes():,} bytes more",
                    place=f"ctx.saved_tensors[{kept.own.index(number)}]",
                )  # fmt: skip
        seen[tensor.untyped_storage().data_ptr()] = tensor
    return None


def _is_told(tensor: torch.Tensor) -> bool:
    """Whether equal numbers are hardly so by chance: of both signs, and several."""
    if not tensor.is_floating_point() or tensor.numel() < 4:
        return False
    return bool((tensor > 0).any() and (tensor < 0).any()) and len(tensor.unique()) > 2


def _large(probe: Probe, given: _Kept) -> Finding | None:
    """A finding where an intermediate is larger than all that goes in and out, and grows with it.

    What is as large at the given size, as the state of a generator or a table, is no batch's cost.

    Sizes that forward does not ask for may not fit each other, and a kernel then reads what is not
    there: they are tried in a copy of the process, where none has had them already (`first-call`).
    """
    if probe.fresh is not None and probe.fresh.copy is not None and probe.fresh.copy.answered:
        return _at_larger_sizes(probe, given)
    with suppress(ProcessDied):
        return forked(lambda: _at_larger_sizes(probe, given))
    return None


def _at_larger_sizes(probe: Probe, given: _Kept) -> Finding | None:
    before = {number: t.untyped_storage().nbytes() for number, t in given.intermediates()}
    drawn = probe.generator("memory")
    for resizing in resizings(probe.inputs, _LARGER, _ENTRIES, drawn):
        inputs = resizing.at(resizing.largest)
        kept = _Kept()
        if inputs is None:
            continue
        with suppress(Exception):  # such a size is refused
            kept.run(probe.at(inputs))
        for number, tensor in kept.intermediates():
            size = tensor.untyped_storage().nbytes()
            if size > max(kept.bytes, before.get(number, 0)):
                return probe.untidy(
                    f"Saved tensor {kept.own.index(number)}, {_described(tensor)}, is larger than "
                    f"all inputs and outputs, at {resizing.largest} of {resizing.where}.",
                    expected=f"no more than {kept.bytes:,} bytes", got=f"{size:,} bytes",
                    place=f"ctx.saved_tensors[{kept.own.index(number)}]", hint=_LARGE,
                )  # fmt: skip
    return None


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
