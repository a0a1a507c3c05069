"""`Pareto`: reflective evolution through the package gepa; and a Module as a program of gepa's."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, BudgetError, ProgramError
from pullback.internal._arguments import Count, check_counts, checked
from pullback.internal._extras import require
from pullback.tape import Variable, no_grad
from pullback.text._chat import count_calls
from pullback.text._evaluation import Evaluation
from pullback.text._failure import SHARE, Failures, tolerate, tolerating
from pullback.text._measure import Scored, Trace, at_once, scoring, text_parameters, traced
from pullback.text._module import Module
from pullback.text.lm import Plan
from pullback.text.lm._json import digest_of
from pullback.text.lm._run import account_of, check_plan, remark
from pullback.text.optim._comparison import RISK, Comparison, check_items, compare, level_of
from pullback.text.optim._tgd import TGD

__all__ = ["GepaProgram", "Pareto"]


class GepaProgram:
    """A Module as a program that gepa can optimise: an adapter for ``gepa.optimize``.

    A candidate is the texts of the parameters by their paths; gepa's samples are numbers of
    samples here. What gepa reflects on is the feedback to each parameter; critics are asked about
    what it does reflect on, and no more. A sample is never evaluated twice with the same
    texts; those of a batch are evaluated at once. A candidate that breaks the program, as a
    template without its fields does, scores 0. The texts of the module are its own between calls.

    Arguments:
        module: the program.
        metric: given the module and a sample, gives an `Evaluation`.
        samples: the data.
        writer: rewrites texts, so that constraints are kept; gepa's own prompt if None.
        at_once: how many samples at most at once.

    Raises:
        ArgumentError: the module has no text that may be changed.
    """

    @checked
    def __init__(
        self,
        module: Module,
        metric: Callable[[Any, Any], Evaluation],
        samples: Sequence[Any],
        writer: TGD | None = None,
        *,
        at_once: Count = 16,
    ) -> None:
        check_counts(samples=len(samples))
        self.at_once = at_once
        self.module, self.metric, self.samples = module, metric, samples
        self.parameters = text_parameters(module)
        if not self.parameters:
            raise ArgumentError("The module has no text that may be changed.")
        self.writer, self._start = writer, tuple(self.candidate.values())
        self.propose_new_texts = None if writer is None else self._propose
        self.evaluations = self.proposals = 0
        self.failure: Exception | None = None
        self._known: dict[tuple[tuple[str, ...], int], Trace] = {}
        self._versions = {
            (path, each.data): each._version for path, each in self.parameters.items()
        }

    @property
    def candidate(self) -> dict[str, str]:
        """The texts as they are."""
        return {path: parameter.data for path, parameter in self.parameters.items()}

    @checked
    def load(self, candidate: Mapping[str, str]) -> None:
        """Give the module the texts of a candidate.

        Raises:
            ArgumentError: it has other paths.
        """
        if candidate.keys() != self.parameters.keys():
            raise ArgumentError(
                "A candidate has other texts than the module.", given=", ".join(candidate),
                expected=", ".join(self.parameters),
            )  # fmt: skip
        with no_grad():
            for path, text in candidate.items():
                parameter = self.parameters[path]
                parameter.data = text
                # A text that comes back is the one that a graph has seen, so that feedback can
                # still be asked for: its version is again what it was.
                parameter._version = self._versions.setdefault((path, text), parameter._version)

    @contextmanager
    def _as(self, candidate: Mapping[str, str]) -> Iterator[None]:
        """Give the module the texts of a candidate inside."""
        before = self.candidate
        try:
            self.load(candidate)
            yield
        finally:
            self.load(before)

    def evaluate(
        self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        """Score samples with the texts of a candidate."""
        gepa = require("gepa", extra="gepa", purpose="text.optim.Pareto")
        with self._as(candidate):
            traces = self._traces(tuple(self.candidate.values()), batch)
        return gepa.EvaluationBatch(
            outputs=[None] * len(batch),
            scores=[trace.scored.score for trace in traces],
            trajectories=traces if capture_traces else None,
            num_metric_calls=len(batch),
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """What was said to each text that is to be rewritten."""
        traces = eval_batch.trajectories
        # A sample may stand in a batch twice: its critics are asked once, and not by two threads.
        asking = [partial(trace.said, self.parameters) for trace in dict.fromkeys(traces)]
        with self._as(candidate), tolerating():
            at_once(asking, self.at_once)
            told = [trace.said(self.parameters) for trace in traces]
        return {
            path: [
                {
                    "Score": trace.scored.score,
                    "Feedback": "\n".join(note.data for note in said[path]),
                }
                for trace, said in zip(traces, told, strict=True)
                if said.get(path)
            ]
            for path in components_to_update
        }

    def scores(self, samples: Sequence[int]) -> dict[tuple[str, ...], list[float]]:
        """The scores of each candidate that was evaluated on all of these samples, as they came."""
        return {
            own: [self._known[own, number].scored.score for number in samples]
            for own in dict.fromkeys(own for own, _ in self._known)
            if all((own, number) in self._known for number in samples)
        }

    def _traces(self, own: tuple[str, ...], batch: Sequence[int]) -> list[Trace]:
        todo = [number for number in dict.fromkeys(batch) if (own, number) not in self._known]
        texts = digest_of(own)

        def evaluate(number: int) -> Trace:
            with scoring(texts, number):
                return traced(partial(self.metric, self.module, self.samples[number]))

        try:
            found = at_once([partial(evaluate, number) for number in todo], self.at_once)
        except (ArgumentError, ProgramError) as error:
            if own == self._start or isinstance(error, ArgumentTypeError):
                raise  # the program's own, and not the candidate's
            found = [Trace(Scored(0.0, f"It breaks the program: {error.what}"))] * len(todo)
        self.evaluations += len(todo)
        self._known |= {(own, number): trace for number, trace in zip(todo, found, strict=True)}
        return [self._known[own, number] for number in batch]

    def _propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        assert self.writer is not None  # or gepa would use its own
        try:
            account = account_of(None)
            if account is not None:
                account.propose()
            self.proposals += 1
            with self._as(candidate):
                self.writer.zero_grad()
                for path in components_to_update:
                    notes = [Variable(row["Feedback"]) for row in reflective_dataset[path]]
                    self.parameters[path].grad = notes
                self.writer.attempt()  # where none is written, the texts are those from before
                return {path: self.parameters[path].data for path in components_to_update}
        except Exception as error:
            self.failure = error  # gepa goes on after what a proposal raises
            raise
        finally:
            self.writer.zero_grad()


@checked
class Pareto:
    """Reflective evolution (GEPA): keeps the candidates that are best on some sample.

    It runs the package gepa on a module; new texts are written by a `TGD`, so its constraints
    hold. gepa keeps no state on disk here.

    Arguments:
        module: what is optimised.
        writer: rewrites texts.
        metric: given the module and a sample, gives an `Evaluation`.
        train: samples to reflect on.
        held: samples to choose by; the training samples if None.
        evaluations: how many evaluations of a sample at most, the start included.
        minibatch: how many samples a reflection is on.
        seed: of the search.
        risk: the share of searches in which noise may be taken for better, as of `Validated`.
        max_failures: at which failure of a model it ends, or which share of all may fail, as of
            `train.Trainer`.

    Attributes:
        program: the `GepaProgram`.
        comparison: after `run`, the start and the best candidate on the held samples.
        stopped: after `run`, why it ended, and whether it searched too little to mean anything.

    Raises:
        ArgumentError: there are no samples, or the evaluations do not even measure the start.
        BudgetError: by `run`: the budget of the `Run` under way pays for no proposal; nothing was
            sent.
        ModelError: by `run`: too many answers of models failed.
        MissingExtraError: gepa is not installed.

    References:
        Agrawal et al., GEPA: reflective prompt evolution can outperform reinforcement learning,
        arXiv:2507.19457.
    """

    def __init__(
        self,
        module: Module,
        writer: TGD,
        metric: Callable[[Any, Any], Evaluation],
        train: Sequence[Any],
        held: Sequence[Any] | None = None,
        *,
        evaluations: Count,
        minibatch: Count = 3,
        seed: int = 0,
        risk: float = RISK,
        max_failures: float = SHARE,
    ) -> None:
        self._gepa = require("gepa", extra="gepa", purpose="text.optim.Pareto")
        held = train if held is None else held
        if not len(train) or not len(held):
            raise ArgumentError("There are no samples.", given=f"{len(train)} and {len(held)}")
        least = len(held) + 2 * min(minibatch, len(train))
        if evaluations < least:
            raise ArgumentError(
                "The evaluations do not pay for one proposal.", given=f"evaluations={evaluations}",
                expected=f"{least} or more: {len(held)} for the start, then a minibatch twice",
            )  # fmt: skip
        self.evaluations, self.minibatch, self.seed = evaluations, minibatch, seed
        self.risk = risk
        self.comparison: Comparison | None = None
        self.max_failures = Failures(max_failures).most
        self.stopped = ""
        self.program = GepaProgram(module, metric, [*train, *held], writer)
        self._train = list(range(len(train)))
        self._held = list(range(len(train), len(train) + len(held)))
        check_items(len(held), risk, 1)

    def plan(self) -> Plan:
        """What `run` will cost at least: each proposal is measured on a minibatch twice."""
        forward = min(count_calls(self.program.module), 1)  # more are not asked for each sample
        batch = 2 * min(self.minibatch, len(self._train))
        proposals = (self.evaluations - len(self._held)) // batch
        return Plan(forward * len(self._held), forward * batch + 1, proposals)

    def run(self) -> Any:
        """Search, and give the module the best texts; gives gepa's result.

        The texts are changed only if they are shown to score better on the held samples than the
        start, for one who looked at so many candidates. Where the budget ends the search, they are
        chosen among those that were measured, and there is no result.
        """
        plan = self.plan()
        check_plan(plan, account_of(None))
        program, start = self.program, self.program.candidate
        result = None
        with tolerate(self.max_failures) as failures:
            try:
                result = self._search(start)
                self.stopped = f"{program.evaluations} evaluations are done"
            except BudgetError as error:
                self.stopped = f"the budget is used up: {error.what}"
        self.stopped += f"; {program.proposals} proposals{remark(program.proposals)}"
        self.stopped += f"; {failures}" if failures.causes else ""
        program.load(self._chosen(start))
        return result

    def _chosen(self, start: dict[str, str]) -> dict[str, str]:
        """The best candidate that was measured, if its gain is too large to be luck."""
        found = self.program.scores(self._held)
        before = found.pop(tuple(start.values()), None)
        if before is None or not found:
            return start
        best, after = max(found.items(), key=lambda each: math.fsum(each[1]))  # of equals the first
        level = level_of(self.risk, len(found), len(found))
        self.comparison = comparison = compare(before, after, level)
        better = comparison.gain > 0 and comparison.chance <= level
        return dict(zip(start, best, strict=True)) if better else start

    def _search(self, start: dict[str, str]) -> Any:
        program = self.program
        program.failure = None
        result = self._gepa.optimize(
            seed_candidate=start,
            trainset=self._train,
            valset=self._held,
            adapter=self.program,
            reflection_lm=None,
            reflection_minibatch_size=min(self.minibatch, len(self._train)),
            max_metric_calls=self.evaluations,
            stop_callbacks=lambda state: program.failure is not None,
            seed=self.seed,
            logger=SimpleNamespace(log=lambda message: None),
        )
        if program.failure is not None:
            raise program.failure
        return result
