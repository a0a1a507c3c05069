"""`Probe`: runs one subject at one set of inputs, the tool every clause works with."""

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance.comparison._values import close, copies, largest
from pullback.conformance.inputs._arguments import Arguments, is_continuous
from pullback.conformance.inputs._structure import keep, tangent
from pullback.conformance.inputs._tree import tensors
from pullback.conformance.inputs._vectors import (
    KINDS,
    Tensors,
    filled,
    flatten,
    normal,
    scale,
    spread,
)
from pullback.conformance.probing._nodes import accumulated, custom_nodes
from pullback.conformance.process._failure import Fault, classify, describe, is_written
from pullback.conformance.process._guard import reseed
from pullback.conformance.process._limits import CpuTrial, limited, patience_to_compile
from pullback.conformance.script._literal import drawn_by, steps_drawn_by
from pullback.conformance.script._teller import Teller
from pullback.internal.torch import function_of, versions_of
from pullback.report import Finding, Verdict

__all__ = ["Probe", "Tensors"]


@dataclass(frozen=True)
class Probe(Teller):
    """A subject, its inputs and what was learnt about them before the clauses ran.

    The first of its fields are those of `Teller`.
    """

    intent: str = "exact"  # the gradient intent, declared or inferred
    inferred: bool = True  # whether it was inferred
    reason: str = ""  # why it was inferred so
    # positions of the inputs that the derivative is asked of although another input is passed
    # straight through
    held: tuple[int, ...] = ()
    moving: tuple[int, ...] = ()  # positions among the output tensors by which these are held
    # whether what forward detaches is held as it is at a point (`_stopped`) beside it too
    stops: bool = False
    private: bool = False  # whether it has a generator of its own, put back before each run
    erratic: bool = False  # whether two runs differ all the same, beyond rounding
    unwritten: str = ""  # what holds memory that nothing has written, or an empty text
    rough: bool = False  # whether it computes in float32 although its outputs are float64
    # the precision of gradients, where that is less than forward computes in: one part in how many;
    # 0 where it is not
    grain: float = 0.0
    frees: bool = False  # whether forward gives the memory of its inputs back
    fault: Fault | None = None  # why a plain call is not judged, or ``None`` where it is
    patience: float = 120.0  # the seconds of CPU time after which one call is taken never to end
    timeout: float | None = None  # the seconds of work that a clause may take; ``None`` for any
    fresh: Any = None  # the first call of all (`_fresh.Fresh`), where ``first-call`` is asked for
    thorough: bool = False  # whether what takes long is tried too
    kin: str = "any"  # how the points and directions tried keep to those that forward accepts
    free: bool = False  # whether directions leave what inputs are (`tangent`), but for linear ones
    # the arguments that were given, where others have taken their place
    given: Arguments | None = None
    trial: CpuTrial | None = None  # of changed arguments that lie on a device
    # whether edits are tried in copies, as one has ended the process; who is told before
    in_copies: bool = False
    trying: Callable[[str], object] | None = None
    brief: bool = False  # whether no more of a finding is asked for than its verdict

    @property
    def constants(self) -> tuple[str, ...]:
        """The paths of the floating inputs that are not differentiated."""
        wanted = {*self.inputs.differentiable, *self.inputs.learnt}
        pairs = enumerate(zip(self.inputs.paths, self.inputs.values, strict=True))
        return tuple(path for k, (path, value) in pairs if k not in wanted and is_continuous(value))

    @property
    def draws(self) -> bool:
        """Whether the function draws random numbers, from any generator it was given or not."""
        return self.random or bool(self.inputs.generators)

    def at(self, inputs: Arguments, *, same: bool = False) -> "Probe":
        """The probe at other arguments; the ``same`` numbers may take the place of those given."""
        given = self.inputs if self.given is None else self.given
        away = any(value.device.type not in ("cpu", "meta") for value in inputs.values)
        tried = away and not same and inputs is not self.inputs
        trial = CpuTrial(lambda: given.build(given.leaves(given.points()))) if tried else None
        return replace(self, inputs=inputs, original=inputs, given=given, trial=trial)

    @property
    def limit(self) -> float:
        """The seconds of one call: in another precision than was given it may compile a kernel."""
        given = self.inputs if self.given is None else self.given
        pairs = zip(self.inputs.values, given.values, strict=False)
        compiles = any(value.dtype != known.dtype for value, known in pairs)
        return patience_to_compile(self.patience) if compiles else self.patience

    # Inputs -----------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The lowest precision among the differentiated inputs, as a real dtype."""
        if self.rough:
            return torch.float32
        found = [point.dtype.to_real() for point in self.inputs.points()]
        return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)

    @property
    def is_coarse(self) -> bool:
        """Whether its gradients have fewer digits than those of float64."""
        return self.grain > 0 or self.dtype != torch.float64

    def generator(self, label: object) -> torch.Generator:
        """A generator that depends on the seed and a label only."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{label}".encode()))

    def leaves(self, points: Sequence[torch.Tensor] | None = None) -> Tensors:
        """Fresh copies of the differentiated inputs that require a gradient."""
        return self.inputs.leaves(self.inputs.points() if points is None else points)

    def point(self, number: int) -> Tensors:
        """The given point for number 0, else one close to it, with the same structure."""
        points = self.inputs.points()
        if number == 0 or self.kin == "none":
            return [point.clone() for point in points]
        steps = self.direction(f"point {number}")
        moved = [keep(x, x + 0.02 * step) for x, step in zip(points, steps, strict=True)]
        return [x.clone() if m is None else m for x, m in zip(points, moved, strict=True)]

    def neighbour(self, number: int) -> Tensors:
        """A point close to the given one where the outputs have the shapes that they have there.

        How many entries a selection has depends on its values. The freest way to move that keeps
        them is taken; where there is none, the given point.
        """
        shapes = [y.shape for y in self.output_values()]
        kinds = list(KINDS)
        for kind in kinds[kinds.index(self.kin) :]:
            points = replace(self, kin=kind).point(number)
            with suppress(Exception):  # refused there
                if [y.shape for y in self.output_values(points)] == shapes:
                    return points
        return self.point(0)

    def direction(self, label: object, only: int | None = None) -> Tensors:
        """A random direction, scaled to each input, along which it keeps its structure.

        Another one for each label, and of one input alone where that is asked for.
        """
        points, generator = self.inputs.points(), self.generator(f"direction {label}")
        drawn = [spread(point, generator) for point in points]
        found = []
        for k, (point, numbers) in enumerate(zip(points, drawn, strict=True)):
            step = tangent(point, KINDS[self.kin](point, numbers * scale(point)), linear=self.free)
            found.append(step if only in (None, k) else step * 0)
        return steps_drawn_by(generator.initial_seed(), points, drawn, found)

    def output_values(self, points: Sequence[torch.Tensor] | None = None) -> Tensors:
        """The differentiated outputs of a fresh run, without history.

        Of leaves, where no gradient is asked for too: forward may ask what needs one.
        """
        return [y.detach() for y in self.evaluate(self.leaves(points))]

    # Runs -------------------------------------------------------------------------------------

    def run(self, leaves: Sequence[torch.Tensor], *, seeded: bool = True) -> Tensors:
        """Every output tensor at ``leaves``; generators start from the same state each time."""
        args, kwargs = self.inputs.build(leaves)
        if torch.compiler.is_compiling():  # Dynamo follows nothing of what keeps a limit
            return tensors(self.subject.call(*args, **kwargs))
        if self.trial is not None:
            with limited(self.limit):
                self.trial.of(self.subject.call, (args, kwargs))
        if seeded:
            reseed(self.seed)
        with limited(self.limit):
            return tensors(self.subject.call(*args, **kwargs))

    def exposed(self, leaves: Sequence[torch.Tensor]) -> tuple[Tensors, list[int], Tensors]:
        """The tensors the function was handed, their versions before, and every output tensor."""
        reseed(self.seed)
        args, kwargs = self.inputs.build(leaves)
        handed = tensors((args, kwargs))
        versions = versions_of(handed)
        with limited(self.limit):
            return handed, versions, tensors(self.subject.call(*args, **kwargs))

    def evaluate(self, leaves: Sequence[torch.Tensor], *, seeded: bool = True) -> Tensors:
        """The differentiated outputs at ``leaves``."""
        every = self.run(leaves, seeded=seeded)
        return [every[k] for k in self.outputs]

    def answer(self) -> Tensors:
        """Every output, then the gradients: a backward that does not run is told elsewhere."""
        leaves = self.leaves()
        every = self.run(leaves)
        found = [y.detach().clone() for y in every]  # backward may free what it was computed from
        outputs = [y for y in every if y.requires_grad and is_continuous(y)]
        if self.fault is not None:
            return found
        with suppress(Exception, SystemExit):
            found += copies(self.pull(leaves, self.cotangents(outputs), outputs))
        return found

    def flat(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The differentiated outputs as a function of the differentiated inputs alone."""
        return tuple(self.evaluate(leaves))

    def unseeded(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """As `flat`, without touching a generator; for what is traced or recomputed."""
        return tuple(self.evaluate(leaves, seeded=False))

    def cotangents(self, outputs: Sequence[torch.Tensor], label: object = "") -> Tensors:
        """Random cotangents like ``outputs``: contiguous, without history."""
        generator = self.generator(f"cotangent {label}")
        found = [normal(output, generator) for output in outputs]
        return drawn_by("normal", generator.initial_seed(), outputs, found)

    def spread(self, like: Sequence[torch.Tensor], label: object) -> Tensors:
        """Random weights like ``like``, none of them close to zero, so that each entry counts."""
        generator = self.generator(f"spread {label}")
        found = [spread(tensor, generator) for tensor in like]
        return drawn_by("spread", generator.initial_seed(), like, found)

    def pull(
        self,
        leaves: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        **options: Any,
    ) -> Tensors:
        """The gradients of ``sum <cotangent, output>``, zeros where torch answers ``None``."""
        return filled(leaves, self.answers(leaves, cotangents, outputs, **options))

    def answers(
        self,
        leaves: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None = None,
        **options: Any,
    ) -> list[torch.Tensor | None]:
        """As `pull`, with ``None`` where torch answers ``None``."""
        found = self.evaluate(leaves) if outputs is None else outputs
        pairs = [(y, g) for y, g in zip(found, cotangents, strict=True) if y.requires_grad]
        wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        gradients: list[torch.Tensor | None] = [None] * len(leaves)
        if not pairs or not wanted:
            return gradients
        answered = self.gradients(
            [y for y, _ in pairs], [leaves[k] for k in wanted], [g for _, g in pairs], **options
        )
        for k, gradient in zip(wanted, answered, strict=True):
            gradients[k] = gradient
        return gradients

    def gradients(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
        **options: Any,
    ) -> Sequence[torch.Tensor | None]:
        """What autograd answers for each input, by the way that the function takes."""
        with limited(self.limit):
            if self.accumulates:
                kept = list(self.inputs.owned.values())
                return accumulated(outputs, inputs, cotangents, kept, **options)
            return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, **options)

    def backward(
        self, points: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Tensors:
        """The Function's own backward at ``points``: a fresh run, gradients without history.

        It is handed copies of the cotangents: one that changes them is told of by `cotangent`.
        """
        handed = [cotangent.clone() for cotangent in cotangents]
        return [gradient.detach() for gradient in self.pull(self.leaves(points), handed)]

    # Comparisons ------------------------------------------------------------------------------

    def differ(
        self, got: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor],
        looser: float = 1.0, among: float = 0.0,
    ) -> int | None:  # fmt: skip
        """The position of the first tensor that differs beyond rounding; ``None`` is zero in it.

        Rounding also leaves some of terms that cancel, whose size ``among`` is.
        """
        least = max(torch.finfo(torch.float32).eps if self.rough else 0.0, self.grain)
        among = max(largest(expected), among)
        for k, (one, other) in enumerate(zip(filled(expected, got), expected, strict=True)):
            if one.shape != other.shape or not close(one, other, looser, least, among):
                return k
        return None

    # Findings about runs ----------------------------------------------------------------------

    def unlike(
        self,
        got: Sequence[torch.Tensor | None],
        expected: Sequence[torch.Tensor],
        detail: str,
        *,
        outputs: int = 0,
        looser: float = 1e3,
        **told: Any,
    ) -> Finding | None:
        """The finding that an output or, behind these, a gradient is another than it should be.

        ``None`` where all are equal within so many times the usual rounding. ``told`` is what else
        `broken` is told.
        """
        place = self.differ(got, expected, looser)
        if place is None:
            return None
        where = f"output {place}" if place < outputs else self.path(place - outputs)
        told.setdefault("place", where)
        return self.broken(detail, expected=expected[place], got=got[place], **told)

    def failed(
        self, error: BaseException, doing: str, hint: str = "", *,
        transform: bool = True, rule: str = "",
    ) -> Finding:  # fmt: skip
        """The finding for an error of the checked code: ``lacking`` if it refuses on purpose.

        It matters whether a transform of torch was tried or other data, and whether the author has
        written the method that is the rule for it.
        """
        written = any(is_written(kind, rule) for kind in self.functions())
        refuses = classify(error, transform=transform, written=written) is Verdict.LACKING
        said = f"{doing}: {describe(error)}"
        return self.lacking(said, hint) if refuses else self.raised(error, said, hint)

    def functions(self) -> list[Any]:
        """The Function that is checked, if it is one, and every other in the graph of a run."""
        outputs = self.evaluate(self.leaves())  # held: a node lives as long as what it made
        found = [function_of(node) for node in custom_nodes(outputs)]
        return [self.subject.function, *found] if self.subject.function is not None else found

    def path(self, position: int) -> str:
        """The path of a differentiated input."""
        return self.inputs.names()[position]

    def place(self, position: int, outputs: int) -> str:
        """What stands at a position of so many outputs, and then gradients."""
        if position < outputs:
            return f"output {position}"
        return f"the gradient of {self.path(position - outputs)}"

    def moved(
        self, points: Sequence[torch.Tensor], step: Sequence[torch.Tensor], t: float
    ) -> Tensors:
        """``points + t step``, brought back to what the points are where forward insists on it.

        The nearest rotation of X + t V, with V along rotations, is off by t^2: slopes are the same.
        """
        found = [x + t * v for x, v in zip(points, step, strict=True)]
        if self.kin != "kept":
            return found
        kept = [keep(x, made) for x, made in zip(points, found, strict=True)]
        return [one if two is None else two for one, two in zip(found, kept, strict=True)]

    def along(
        self, function: Callable[[Tensors], Tensors], step: Sequence[torch.Tensor],
        points: Sequence[torch.Tensor],
    ) -> Callable[[float], torch.Tensor]:  # fmt: skip
        """``t -> function(points + t step)`` as one real vector, for finite differences."""

        def at(t: float) -> torch.Tensor:
            moved = self.moved(points, step, t) if t else [x.clone() for x in points]
            found = flatten(function(moved))
            return found.float() if self.rough else found

        return at

    def line(self, step: Sequence[torch.Tensor]) -> Callable[[float], torch.Tensor]:
        """``t -> outputs`` at the given point moved by t steps, as one vector without history."""

        def outputs(moved: Tensors) -> Tensors:
            with torch.no_grad():
                return self.output_values(moved)

        return self.along(outputs, step, self.inputs.points())
