"""`Trainer`: the loop from data to better texts."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from pullback.errors import ArgumentError, ArgumentTypeError, BudgetError
from pullback.internal._arguments import Count, Natural, checked, reading
from pullback.internal._text import shown
from pullback.tape import at
from pullback.text._chat import count_calls
from pullback.text._failure import SHARE, Failures, tolerate
from pullback.text._measure import searching
from pullback.text._module import Module, refuse_edited, write_json
from pullback.text.lm import Account, Plan, Spending, current_run
from pullback.text.lm._run import account_of, check_plan, remark, within_budget
from pullback.text.optim._comparison import Comparison
from pullback.text.optim._optimizer import Optimizer
from pullback.text.optim._validated import Outcome, read_outcome
from pullback.text.train._data import DataLoader
from pullback.text.train._steps import means, means_of, run_step, step_of, told

__all__ = ["Result", "Trainer"]


@dataclass
class Result:
    """What a run of `Trainer.fit` did.

    Arguments:
        plan: what was to be expected.
        history: for each epoch the mean of each metric.
        outcomes: what became of each proposal that was measured.
        stopped: why it ended, in words.
        proposals: how many times new texts were asked for.
        failures: of the models, each in words; what they were to answer scored 0.
        final: the start and the end on a split that the search never saw, of a `Validated` that
            has one.
    """

    plan: Plan
    history: list[dict[str, float]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: str = ""
    proposals: int = 0
    failures: list[str] = field(default_factory=list)
    final: Comparison | None = None

    def __str__(self) -> str:
        accepted = sum(outcome.accepted for outcome in self.outcomes)
        told = f"{self.stopped}; {self.proposals} proposal{'' if self.proposals == 1 else 's'}"
        if self.outcomes:
            told += f", {accepted} accepted"
        if self.failures:
            told += f"; {len(self.failures)} answers of models failed"
        if self.final is not None:
            told += f"; never seen before: {self.final}"
        shown = any(each.accepted and each.comparison is not None for each in self.outcomes)
        return told + (remark(self.proposals) if self.plan.proposals and not shown else "")


@checked
class Trainer:
    """Runs epochs: batches forward, feedback back, a step of the optimizer; and measures.

    The module writes ``training_step(batch, number)``, which gives an `Evaluation`, a pair of
    score and explanation, a dict with such a ``"loss"`` and more numbers, or None to skip;
    ``configure_optimizers()``; and ``validation_step`` and ``test_step`` where those are run.

    Arguments:
        max_epochs: how many epochs.
        patience: end after so many epochs without a better validation score; None for never.
        folder: where a checkpoint is written after each epoch, JSON; None for nowhere.
        budget: what may be spent, as an `Account` or a number of calls: every model that is asked
            is held to it, proposals count too. That of the `Run` under way if None.
        max_failures: at which answer of a model that fails the run ends, a count; or which share
            of all may fail, as of `tolerate`. Until then each scores 0 and says why.
        progress: whether a line a step is shown, with what it has cost so far.

    Raises:
        ArgumentError: an argument cannot be used.
    """

    def __init__(
        self,
        max_epochs: Natural = 1,
        *,
        patience: Count | None = None,
        folder: str | os.PathLike[str] | None = None,
        budget: Account | Natural | None = None,
        max_failures: float = SHARE,
        progress: bool = False,
    ) -> None:
        self.max_epochs, self.patience = max_epochs, patience
        self.max_failures = Failures(max_failures).most
        self.folder = None if folder is None else Path(folder)
        self.budget = budget if isinstance(budget, Account | None) else int(budget)
        self.progress = progress

    def plan(self, module: Module, train: DataLoader, optimizer: Optimizer) -> Plan:
        """What `fit` will cost at least, where each batch leads to a proposal.

        Who is asked for each sample is not known, nor how much of a proposal is measured before it
        is turned away: one call a sample is counted, and for a proposal its batch and its writer.
        Samples that are equal, and answers of a cache, cost less.
        """
        asks = min(count_calls(module), 1)
        batch = len(train.sampler) // max(len(train), 1)  # type: ignore[bad-argument-type]
        batch = min(batch, train.batch_size or 1)  # of what is left out of the last, nobody asks
        held = evaluations_of(optimizer.measure) + evaluations_of(optimizer.final)
        return Plan(asks * held, asks * batch + 1, self.max_epochs * len(train))

    def fit(
        self,
        module: Module,
        train: DataLoader,
        validation: Iterable[Any] | None = None,
        *,
        resume: str | os.PathLike[str] | None = None,
    ) -> Result:
        """Train; the module ends with the best texts that validation has seen, if there is any.

        The best of several looks is partly luck: a `pullback.text.optim.Validated` is for texts
        that must not end below their start, and its final split says what they are worth.

        Arguments:
            module: what is trained.
            train: batches for ``training_step``.
            validation: batches for ``validation_step``, run after each epoch.
            resume: a checkpoint to go on from.

        Raises:
            ArgumentTypeError: the module lacks a step, or the validation is used up by one epoch.
            ArgumentError: there is no data, or the texts were edited since the checkpoint.
            BudgetError: the budget pays for no proposal; nothing was sent.
            ModelError: too many answers of models failed. The checkpoint and the journal are kept,
                and a run that goes on from them asks again for what failed.
        """
        steps = ("validation_step",) if validation is not None else ()
        for name in ("training_step", "configure_optimizers", *steps):
            step_of(module, name)
        if isinstance(validation, Iterator):
            raise ArgumentTypeError("The validation is gone through each epoch; this is used up.",
                                    given=shown(validation), mend="Pass a list.")  # fmt: skip
        if not len(train):
            raise ArgumentError("There is no batch to train on.", given=f"{len(train.sampler)} "  # type: ignore[bad-argument-type]
                                f"samples, batch_size={train.batch_size}")  # fmt: skip
        optimizer = module.configure_optimizers()  # type: ignore[missing-attribute]
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError("configure_optimizers gave no optimizer.",
                                    given=shown(optimizer), expected="one Optimizer")  # fmt: skip
        plan = self.plan(module, train, optimizer)
        account = account_of(self.budget)
        check_plan(plan, account)
        run = _Run(self, module, optimizer, Result(plan), account)
        optimizer.expect(plan.proposals)
        run.show(f"plan: {plan.describe(account)}{remark(plan.affords(account))}")
        held = within_budget(None if self.budget is None else account)
        with held, searching(), tolerate(self.max_failures) as run.failures:
            if resume is not None:
                run.load(Path(resume))
            run.result.failures = run.failures.causes
            run.epochs(train, validation)
        return run.result

    def validate(self, module: Module, data: Iterable[Any]) -> dict[str, float]:
        """The mean of each metric of ``validation_step``."""
        return means_of(module, "validation_step", data)

    def test(self, module: Module, data: Iterable[Any]) -> dict[str, float]:
        """The mean of each metric of ``test_step``."""
        return means_of(module, "test_step", data)


class _Run:
    """One run of fit: where it stands, and its checkpoint."""

    def __init__(
        self, trainer: Trainer, module: Module, optimizer: Any, result: Result,
        account: Account | None,
    ) -> None:  # fmt: skip
        self.trainer, self.module, self.optimizer = trainer, module, optimizer
        self.result, self.account, self.failures = result, account, Failures()
        self.epoch = self.since = 0
        self.state: dict[str, Any] = {}  # as the last epoch has left it
        self.best: tuple[float, dict[str, Any]] | None = None
        self.start = module.state_dict()
        shown = trainer.progress
        self.console = Console(stderr=True, highlight=False, emoji=False) if shown else None

    def show(self, line: str) -> None:
        """Show a line on standard error, with what the run under way has cost so far."""
        run = current_run()
        if self.console is not None:
            cost = "" if run is None else f" [{run.describe()}]"
            self.console.print(f"{line}{cost}", markup=False)

    def epochs(self, train: DataLoader, validation: Iterable[Any] | None) -> None:
        self.save()  # what ends in the first epoch goes on from here
        result = self.result
        try:
            while not (over := self._over()):  # which a run that goes on may be already
                with at("epoch", self.epoch):
                    self._epoch(train, validation)
                self.epoch += 1
                self.save()
            result.stopped = over
        except BudgetError as error:
            result.stopped = f"the budget is used up: {error.what}"
            self.write()  # what the epoch that ended so has spent, too
        finally:
            if self.best is not None:
                self.module.load_state_dict(self.best[1])
            self._tell_run()
        try:
            result.final = self.optimizer.finish()
        except BudgetError:  # where there is no room for it, there is no figure
            result.stopped += ", before the final split was measured"
        self._tell_run()

    def _over(self) -> str:
        """Why no further epoch is run, in words; empty where one is."""
        patience, limit = self.trainer.patience, self.trainer.max_epochs
        if patience is not None and self.since >= patience:
            return f"no better score for {self.since} epochs"
        return f"{limit} epochs are done" if self.epoch >= limit else ""

    def _epoch(self, train: DataLoader, validation: Iterable[Any] | None) -> None:
        self.module.train()
        if hasattr(train.sampler, "epoch"):  # a run that goes on draws what it would have drawn
            train.sampler.epoch = self.epoch  # type: ignore[missing-attribute]
        if validation is not None and self.best is None:
            self._keep(means_of(self.module, "validation_step", validation))
        found = []
        for number, batch in enumerate(train):
            with at("batch", number):
                found.append(self._batch(number, batch))
        history = means(found)
        if validation is not None:
            held = means_of(self.module, "validation_step", validation)
            self._keep(held)
            history |= {f"validation_{name}": value for name, value in held.items()}
        self.result.history.append(history)
        self.show(f"epoch {self.epoch}: {told(history)}")

    def _batch(self, number: int, batch: Any) -> dict[str, float]:
        """One step; its metrics, none where it is skipped."""
        self.optimizer.zero_grad()
        metrics = run_step(self.module.training_step, batch, number, learn=True)  # type: ignore[missing-attribute]
        if metrics is None:
            return {}
        said = self._propose() if any(each.grad for each in self.optimizer.parameters()) else ""
        self.show(f"epoch {self.epoch} batch {number}: {told(metrics)} {said}".rstrip())
        return metrics

    def _tell_run(self) -> None:
        """Let the page of the run under way show what the search has found."""
        run = current_run()
        if run is None:
            return
        now = self.module.state_dict()
        texts = [
            {"name": path, "before": before, "after": now[path]}
            for path, before in self.start.items()
            if isinstance(before, str)
        ]
        steps = [asdict(outcome) for outcome in self.result.outcomes]
        run.keep_search({"steps": steps, "texts": texts, "stopped": str(self.result)})

    def _propose(self) -> str:
        """One step of the optimizer, which is a proposal; what became of it, in words."""
        if self.account is not None:
            self.account.propose()
        self.result.proposals += 1
        before = len(self.optimizer.outcomes)
        said = self.optimizer.attempt()
        self.result.outcomes += self.optimizer.outcomes[before:]
        return said

    def _keep(self, held: dict[str, float]) -> None:
        score = held.get("score", -math.inf)
        if self.best is None or score > self.best[0]:
            self.best, self.since = (score, self.module.state_dict()), 0
        else:
            self.since += 1

    def save(self) -> None:
        if self.trainer.folder is None:
            return
        self.state = {
            "epoch": self.epoch,
            "start": self.start,
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": None if self.best is None else list(self.best),
            "since": self.since,
            "history": self.result.history,
            "proposals": self.result.proposals,
            "outcomes": list(map(asdict, self.result.outcomes)),
            "account": self.account and self.account.id,
        }
        self.write()

    def write(self) -> None:
        """Write what the last epoch has left, and what is counted by now."""
        counted = {
            "spent": self.account and asdict(self.account.spent),
            "failures": {"asked": self.failures.asked, "causes": self.failures.causes},
        }
        if self.trainer.folder is not None:
            write_json(self.trainer.folder / "checkpoint.json", {**self.state, **counted})

    def load(self, path: Path) -> None:
        before = self.module.state_dict()
        try:
            with reading("checkpoint", f"{path}"):
                state = json.loads(path.read_text(encoding="utf-8-sig"))
                self.start = dict(state.get("start", before))
                best = state["best"]
                self.best = None if best is None else (float(best[0]), dict(best[1]))
                if self.best is not None:  # all of it must fit, for it is taken at the end
                    self.module.load_state_dict(self.best[1])
                self.module.load_state_dict(state["module"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.epoch, self.since = int(state["epoch"]), int(state["since"])
                self.result.history = list(state["history"])
                self.result.proposals = int(state.get("proposals", 0))
                self.result.outcomes = list(map(read_outcome, state.get("outcomes", [])))
                failed = state.get("failures", {"asked": 0, "causes": []})
                self.failures.asked = int(failed["asked"])
                self.failures.causes[:] = map(str, failed["causes"])
                spent = self._spent(state)
            refuse_edited(before, self.start, state["module"], best and best[1])
        except BaseException:
            self.module.load_state_dict(before)
            raise
        if self.account is not None and self.account.id != state.get("account"):
            self.account.add(spent)  # which it has not counted

    def _spent(self, state: Mapping[str, Any]) -> Spending:
        """What was spent before a checkpoint; a run has counted the calls of its journal."""
        if self.trainer.budget is None or not state.get("spent"):
            return Spending(proposals=self.result.proposals)
        return Spending(**state["spent"])


def evaluations_of(measure: Any) -> int:
    """How many runs of a module a measure makes, each sample as often as it repeats."""
    return len(getattr(measure, "samples", ())) * getattr(measure, "repeats", 1)
