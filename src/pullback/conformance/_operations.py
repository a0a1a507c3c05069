"""A wrong backward as the operations that it consists of, each of which may run in another way."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from pullback.conformance._mends import Stand, Undo, around, mended
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._source import Source, source_here
from pullback.internal.torch import OpOverload, OpOverloadPacket, pytree

__all__ = ["Backward", "Edit", "Run", "Step", "edited"]

_MOST = 2**17  # entries of a tensor that is noted
_PATIENCE = 5.0  # seconds of work: with another operand a loop may have no end

Run = Callable[[Sequence[Any]], Any]
Edit = Callable[[Run, Sequence[Any]], Any]


def edited(place: int, change: Callable[[Any], Any]) -> Edit:
    """An edit that changes one of the leaves."""
    return lambda run, leaves: run([change(v) if k == place else v for k, v in enumerate(leaves)])


class Step(NamedTuple):
    """An operation of backward."""

    leaves: Sequence[Any]  # those of its arguments
    found: Any  # its result
    source: Source  # where it is written; that of the whole has no place
    changes: bool  # whether it writes its result into an argument

    @property
    def said(self) -> str:
        """How it is written."""
        return self.source.said if self.source.name else "it"

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it is written, as far as that is to be had."""
        return self.source.where, self.source.text or self.source.name, self.source.column


@dataclass
class Backward:
    """A backward, run with some of its steps edited; the first step is the whole of it.

    What a loop does again and again is written once: steps that are written at one place of the
    source are edited together.
    """

    probe: Probe  # the subject
    points: Tensors  # the differentiated inputs
    weights: Tensors  # the cotangents
    # what keeps the structure of each point, of its gradient too
    within: Sequence[Callable[[torch.Tensor], torch.Tensor]]
    steps: list[Step] = field(default_factory=list)  # what the latest run consisted of
    names: Sequence[str] = ()  # what the leaves of the first step are
    edited: tuple[Collection[int], Edit] | None = None  # the steps that run in another way, and how
    called: ClassVar[str] = "Backward"
    answered: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
        subject = mended(self.probe.subject, [self.around()])
        if subject is not None:
            patience = min(self.probe.patience, _PATIENCE)
            self.probe = replace(self.probe, subject=subject, patience=patience)

    def around(self) -> Undo:
        """Lets the author's rule run through `run`."""
        return around(back=self.run)

    def ask(self) -> Tensors:
        """What the author's rule answers."""
        return self.probe.backward(self.points, self.weights)

    def answers(self, *edited: Any) -> Tensors | None:
        """The gradients, with steps edited where some are named; ``None`` where that fails."""
        self.steps, self.edited = [], edited or None
        try:
            return [keep(t) for keep, t in zip(self.within, self.ask(), strict=True)]
        except Exception:  # whatever does not take what is no operand of its own
            return None

    def run(self, method: Any, ctx: Any, *given: Any) -> Any:
        """The author's rule, as one step and those within it."""
        saved, own = ctx.saved_tensors, vars(ctx)
        self.names = [
            *(f"ctx.saved_tensors[{k}]" for k in range(len(saved))),
            *(f"ctx.{name}" for name in own),
            *("" for _ in given),
        ]

        def whole(leaves: Sequence[Any]) -> Any:
            rest = leaves[len(saved) + len(own) :]
            held = dict(zip(own, leaves[len(saved) :], strict=False))
            with _Operations(self):
                return method(Stand(ctx, saved_tensors=tuple(leaves[: len(saved)]), **held), *rest)

        return self.step(whole, [*saved, *own.values(), *given], lambda: Source(""))

    def passes(self) -> bool:
        """Whether the next step runs as it is and nobody looks at it; it is counted then."""
        passing = self.edited is not None and len(self.steps) not in self.edited[0]
        if passing:
            self.steps.append(_EDITED)
        return passing

    def step(
        self, run: Run, leaves: Sequence[Any], written: Callable[[], Source], *,
        changes: bool = False,
    ) -> Any:  # fmt: skip
        """One step, noted, or edited where it is one of those to edit."""
        number = len(self.steps)
        if self.edited is not None:
            self.steps.append(_EDITED)
            return self.edited[1](run, leaves) if number in self.edited[0] else run(leaves)
        self.steps.append(Step([_kept(leaf) for leaf in leaves], None, written(), changes))
        found = run(leaves)
        self.steps[number] = self.steps[number]._replace(found=_kept(found))
        return found


_EDITED = Step((), None, Source(""), False)  # nobody reads the steps of a run that is edited


def _kept(value: Any) -> Any:
    """A copy, as what is computed next may write there; ``None`` for what is too large for one."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone() if value.numel() <= _MOST else None


class _Operations(TorchFunctionMode):
    """Makes a step of a backward of each operation."""

    def __init__(self, backward: Backward) -> None:
        super().__init__()
        self._backward = backward

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, (OpOverload, OpOverloadPacket)):  # a kernel that may trust its numbers
            return func(*args, **(kwargs or {}))
        if self._backward.passes():
            return func(*args, **(kwargs or {}))
        leaves, form = pytree.tree_flatten((tuple(args), kwargs or {}))

        def run(leaves: Sequence[Any]) -> Any:
            args, kwargs = pytree.tree_unflatten(list(leaves), form)
            return func(*args, **kwargs)

        name = getattr(func, "__name__", "")
        changes = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
        return self._backward.step(
            run,
            leaves,
            lambda: source_here(name, leaves),
            changes=changes or "out" in (kwargs or {}),
        )
