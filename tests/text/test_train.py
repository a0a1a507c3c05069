"""Training: order, cost and state; no evaluation paid twice."""

import json
import random
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.text.helpers import answering

from pullback.errors import ArgumentError, ArgumentTypeError, BudgetError
from pullback.tape import Variable, no_grad
from pullback.text import (
    ChatModule,
    Module,
    Parameter,
    Relay,
    exact_match,
    map_python,
    use_critic,
)
from pullback.text.lm import LM, Account, Budget, Run, Scripted
from pullback.text.lm._run import remark
from pullback.text.optim import TGD, Optimizer, Validated
from pullback.text.train import (
    DataLoader,
    Measure,
    RandomSampler,
    Sampler,
    Trainer,
    WeightedRandomSampler,
    count_calls,
    plan_training,
)

DATA = [(Variable(f"mail {n}", role="mail"), "spam" if n % 2 else "ham") for n in range(8)]


def label(request):
    knows = "odd" in request.messages[0].text
    number = int(request.messages[1].text.split()[-1])
    return ("spam" if number % 2 else "ham") if knows else "ham"


class Spam(Module):
    def __init__(self, writer=None, held=(), risk=0.025):
        self.risk = risk
        self.classify = ChatModule(answering(label), "Classify.", "{mail}", role="label")
        self.writer = writer or Scripted(lambda request: "<IMPROVED>Odd is spam: odd.</IMPROVED>")
        self.held, self.measure = held, None

    def forward(self, mail):
        return self.classify(mail=mail)

    def training_step(self, batch, number):
        mails, labels = batch
        scores = [exact_match(self(mails[n]), want) for n, want in enumerate(labels)]
        total = scores[0].score
        for each in scores[1:]:
            total = total + each.score
        return {"loss": (total / len(scores), scores[0].explanation), "count": len(scores)}

    validation_step = test_step = training_step

    def configure_optimizers(self):
        tgd = TGD(self.parameters(), self.writer)
        if not self.held:
            return tgd
        self.measure = Measure(self, lambda m, s: exact_match(m(s[0]), s[1]), self.held)
        return Validated(tgd, self.measure, risk=self.risk)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_a_loader_gives_every_sample_once_in_an_order_of_its_seed(size, batch, drop, seed):
    data = [Variable(str(n)) for n in range(size)]
    loader = DataLoader(data, batch, shuffle=True, drop_last=drop, seed=seed)
    batches = [each.data for each in loader]
    assert len(batches) == len(loader)
    seen = [text for each in batches for text in each]
    assert len(set(seen)) == len(seen) == (size - size % batch if drop else size)
    again = DataLoader(data, batch, shuffle=True, drop_last=drop, seed=seed)
    assert [each.data for each in again] == batches
    if size > 8 and not drop:
        assert [each.data for each in loader] != batches or batch >= size


def test_weights_are_followed():
    draws = list(WeightedRandomSampler([1, 3, 0], 4000, seed=1))
    share = Counter(draws)
    assert share[2] == 0
    assert abs(share[1] / 4000 - 0.75) < 0.03
    alone = list(WeightedRandomSampler([1, 3, 0, 2], 3, replacement=False, seed=1))
    assert sorted(alone) == [0, 1, 3]
    first = Counter(
        next(iter(WeightedRandomSampler([1, 3], 1, replacement=False, seed=n))) for n in range(2000)
    )
    assert abs(first[1] / 2000 - 0.75) < 0.04


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, 0),
        lambda: DataLoader(DATA, 2, shuffle=True, sampler=[0]),
        lambda: DataLoader(DATA, None, drop_last=True),
        lambda: RandomSampler(DATA, num_samples=9),
        lambda: WeightedRandomSampler([0, 0], 1),
        lambda: WeightedRandomSampler([1, -1], 1),
        lambda: WeightedRandomSampler([1, 0], 2, replacement=False),
        lambda: list(DataLoader([("a", 1), ("b",)], 2)),
        lambda: list(DataLoader([{"a": 1}, {"b": 1}], 2)),
        lambda: list(DataLoader([Variable("a"), "b"], 2)),
        lambda: list(DataLoader(DATA, 2, sampler=[0, 99])),
        lambda: list(DataLoader(DATA, None, sampler=[-99])),
        lambda: Sampler().__iter__(),
        lambda: len(Sampler()),
        lambda: Module().forward(),
        lambda: Optimizer([Parameter("x")], {}).step(),
        lambda: Trainer(max_epoch=3),
        lambda: Trainer(1).fit(Spam(), DataLoader([], 2)),
        lambda: Trainer(1).fit(Spam(), DataLoader(DATA, 99, drop_last=True)),
        lambda: Trainer(1).fit(Spam(), DataLoader(DATA, 2), iter(DataLoader(DATA, 2))),
        lambda: Trainer(1).fit(Spam(), DataLoader(DATA, 2), []),
        lambda: Trainer(1).validate(Spam(), []),
        lambda: Trainer(-1),
        lambda: Trainer(patience=0),
        lambda: Measure(Spam(), len, []),
    ],
)
def test_bad_arguments_are_refused(make):
    with pytest.raises(ArgumentError):
        make()


def test_a_measure_pays_for_no_sample_twice():
    module, asked = Spam(), Counter()
    broken = {5}

    def metric(module, sample):
        asked[(module.classify.system.data, sample)] += 1
        if sample in broken:
            raise OSError("no connection")
        return sample / 10

    measure = Measure(module, metric, range(8), at_once=2)
    with pytest.raises(OSError, match="connection"):
        measure()
    broken.clear()
    assert measure() == pytest.approx(0.35)
    assert measure() == pytest.approx(0.35)
    assert [count for (_, sample), count in asked.items() if sample != 5] == [1] * 7
    module.load_state_dict({**module.state_dict(), "classify.system": "Other."})
    measure()
    module.load_state_dict({**module.state_dict(), "classify.system": "Classify."})
    before = measure.evaluations
    assert measure() == pytest.approx(0.35)
    assert measure.evaluations == before


def test_a_step_that_fails_scores_nothing_and_is_counted():
    def metric(module, sample):
        return exact_match(map_python(lambda s: str(int(s)), Variable(sample), purpose="n"), "1")

    measure = Measure(Spam(), metric, ["1", "x"])
    assert (measure(), measure.failures) == (0.5, 1)
    with pytest.raises(ArgumentTypeError, match="finite number"):
        Measure(Spam(), lambda m, s: "good", [1])()


@settings(max_examples=examples(60), deadline=None)
@given(st.tuples(*[st.integers(0, 6)] * 6), st.none() | st.integers(0, 200))
def test_a_plan_never_promises_more_than_the_budget(counts, budget):
    names = ("forward", "train", "batches", "held", "texts", "epochs")
    plan = plan_training(**dict(zip(names, counts, strict=True)))
    account = None if budget is None else Account(calls=budget)
    affordable = plan.affords(account)
    assert 0 <= affordable <= plan.proposals
    if budget is not None and affordable:
        assert plan.start + affordable * plan.each <= budget or not plan.each
    assert ("luck" in remark(affordable)) == (affordable < 8)


class Sent(Scripted):
    """A script that counts what it is asked."""

    count = 0

    async def answer(self, request):
        Sent.count += 1
        return await super().answer(request)


class Agent(LM):
    """A model that asks another."""

    model = "agent"

    async def answer(self, request):
        return await Sent(answering(label)._answers).acomplete(list(request.messages))


class Thrice(Agent):
    """One that asks it the very same, three times."""

    async def answer(self, request):
        inner = Sent(answering(label)._answers)
        return [await inner.ask(request) for _ in range(3)][-1]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("form", ["number", "account", "shared", "agent", "thrice"])
def test_a_budget_of_a_training_is_kept_by_every_model_in_it(tmp_path, monkeypatch, form, within):
    monkeypatch.setattr(Sent, "count", 0)
    account = Account(calls=30)
    module = Spam(Sent(lambda request: "<IMPROVED>x</IMPROVED>"))
    models = {"agent": Agent, "thrice": Thrice}
    module.classify.lm = models.get(form, lambda: Sent(answering(label)._answers))()
    if form == "shared":  # by models that are held to it themselves: counted once
        module.classify.lm = Budget(module.classify.lm, account)
        module.writer = Budget(module.writer, account)
    budget = 30 if form == "number" else account
    with Run(tmp_path / "run.sqlite") if within else nullcontext():
        result = Trainer(5, budget=budget).fit(module, DataLoader(DATA, 4))
    assert "budget is used up" in result.stopped
    if form == "agent":  # each of its calls is two
        assert 2 * (Sent.count - result.proposals) + result.proposals <= 30
    elif form == "thrice":
        assert 27 <= Sent.count <= 30
    else:
        assert Sent.count == 30
    if form != "number":
        assert 27 <= account.spent.calls <= 30


def test_proposals_are_counted_against_the_budget():
    module, account = Spam(Scripted(lambda request: "<IMPROVED>x</IMPROVED>")), Account(proposals=2)
    result = Trainer(5, budget=account).fit(module, DataLoader(DATA, 4))
    assert result.proposals == 2
    assert "budget is used up" in result.stopped
    assert account.spent.proposals == 2


def test_a_run_is_told_the_plan(tmp_path):
    with Run(tmp_path / "run.sqlite") as run:
        Trainer(1).fit(Spam(), DataLoader(DATA, 4))
    assert [plan.proposals for plan in run.plans] == [2]


@pytest.mark.parametrize("budget", [5, np.int64(5)])
def test_a_run_that_cannot_propose_is_refused_before_it_spends(budget):
    module = Spam(held=DATA)
    assert count_calls(module) == 1
    with pytest.raises(BudgetError, match="no proposal"):
        Trainer(1, budget=budget).fit(module, DataLoader(DATA, 4))
    assert module.measure.evaluations == 0
    assert module.classify.system.data == "Classify."


def test_training_finds_the_rule_and_says_what_it_did():
    module = Spam(held=DATA * 3)
    result = Trainer(2).fit(module, DataLoader(DATA, 4, shuffle=True, seed=3), DataLoader(DATA, 4))
    assert module.classify.system.data == "Odd is spam: odd."
    assert result.history[-1]["validation_score"] == 1.0
    assert result.outcomes[0].accepted
    assert "too few to tell" not in str(result)
    assert result.outcomes[0].comparison.chance < 0.01
    assert Trainer().test(module, DataLoader(DATA, 4)) == {"score": 1.0, "count": 4.0}


def test_training_ends_with_the_best_that_validation_saw():
    worse = iter(f"<IMPROVED>{t}</IMPROVED>" for t in ["odd", "bad", "worse", "worst"])
    module = Spam(Scripted(lambda request: next(worse)))
    result = Trainer(4, patience=2).fit(
        module, DataLoader(DATA, 8), DataLoader(DATA, 8)
    )  # fmt: skip
    assert module.classify.system.data == "odd"
    assert result.history[0]["validation_score"] == 1.0


def test_training_that_fails_and_goes_on_is_the_same_as_one_that_never_failed(tmp_path):
    dice = random.Random(5)

    def write(request):
        return f"<IMPROVED>{len(request.messages[1].text)}</IMPROVED>"

    def run(folder, epochs, resume=None):
        module = Spam(Scripted(write))
        loader = DataLoader(DATA, 3, shuffle=True, seed=11)
        Trainer(epochs, folder=folder).fit(module, loader, resume=resume)
        return json.loads((folder / "checkpoint.json").read_text())

    stop = dice.randint(1, 3)
    whole = run(tmp_path / "a", 4)
    run(tmp_path / "b", stop)
    assert run(tmp_path / "b", 4, tmp_path / "b" / "checkpoint.json") == whole
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ArgumentError, match="checkpoint"):
        Trainer(1).fit(Spam(), DataLoader(DATA, 3), resume=tmp_path / "bad.json")


def test_a_run_that_goes_on_counts_what_went_before_it(tmp_path):
    number = iter(range(100))

    def fit(epochs, account, resume=None):
        module = Spam(Scripted(lambda _: f"<IMPROVED>{next(number)}</IMPROVED>"), DATA, risk=1.0)
        trainer = Trainer(epochs, folder=tmp_path, budget=account)
        return trainer.fit(module, DataLoader(DATA, 4), resume=resume)

    # No proposal is better than the start, so each of the two batches of an epoch makes one.
    account, path = Account(proposals=3), tmp_path / "checkpoint.json"
    first = fit(1, account)
    again = fit(2, Account(proposals=3), path)
    assert again.proposals == 3  # and not 3 more
    assert again.outcomes[: len(first.outcomes)] == first.outcomes
    assert "used up" in again.stopped
    fit(1, account := Account(proposals=3))
    assert fit(2, account, path).proposals == 3  # what it has counted itself it counts once


def test_a_budget_of_a_training_is_that_of_the_whole_when_its_run_goes_on(tmp_path):
    sent = []

    def fit(path, stop=10**6, replay=False):
        def write(request):
            sent.append(request)
            if len(sent) == stop:
                raise ZeroDivisionError
            return f"<IMPROVED>{len(sent)}</IMPROVED>"

        module = Spam(Scripted(write))
        with Run(path, replay=replay) as run:
            result = Trainer(9, budget=70).fit(module, DataLoader(DATA, 4))
        return str(result), run.paid, run.recorded

    whole = fit(tmp_path / "whole.sqlite")
    assert "used up" in whole[0]
    assert whole[1:] == (70, 0)
    sent.clear()
    with pytest.raises(ZeroDivisionError):  # as where the process ends
        fit(tmp_path / "run.sqlite", 3)
    result, paid, recorded = fit(tmp_path / "run.sqlite")
    assert (result, paid + recorded) == (whole[0], 70)
    assert 0 < recorded < 70
    assert fit(tmp_path / "run.sqlite", replay=True) == (whole[0], 0, 70)


def test_scores_of_other_held_samples_are_not_taken_for_those_of_these(tmp_path):
    def fit(held, epochs, resume=None):
        module = Spam(Scripted(lambda _: "<IMPROVED>even</IMPROVED>"), held, risk=1.0)
        trainer = Trainer(epochs, folder=tmp_path)
        result = trainer.fit(module, DataLoader(DATA, 8), resume=resume)
        return result.outcomes[-1].before, module.measure.evaluations

    ham, spam = DATA[::2], DATA[1::2]
    path = tmp_path / "checkpoint.json"
    assert fit(ham, 1) == (1.0, 4 + 4)
    before = path.read_text()
    assert fit(ham, 2, path) == (1.0, 0)  # the start and the proposal are known
    path.write_text(before)
    assert fit(spam, 2, path) == (0.0, 4 + 4)


def test_a_text_that_was_edited_since_the_checkpoint_is_not_overruled(tmp_path):
    def fit(prompt, **resume):
        module = Spam(Scripted(lambda _: "<IMPROVED>better</IMPROVED>"))
        with no_grad():
            module.classify.system.data = prompt
        Trainer(1, folder=tmp_path).fit(module, DataLoader(DATA, 8), **resume)
        return module.classify.system.data

    path = tmp_path / "checkpoint.json"
    assert fit("first") == "better"
    for same in ("first", "better"):  # as the program has it, or as one that has loaded the state
        assert fit(same, resume=path) == "better"
    with pytest.raises(ArgumentError, match=r"classify\.system edited\n.*expected: .*first"):
        fit("edited", resume=path)
    assert fit("edited") == "better"


def test_a_run_that_ended_for_want_of_a_better_score_has_ended(tmp_path):
    number = iter(range(100))
    module = Spam(Scripted(lambda _: f"<IMPROVED>{next(number)}</IMPROVED>"))
    given = module, DataLoader(DATA, 8), DataLoader(DATA, 8)
    trainer = Trainer(9, patience=2, folder=tmp_path)
    first = trainer.fit(*given)
    again = trainer.fit(*given, resume=tmp_path / "checkpoint.json")
    assert (again.stopped, again.history) == (first.stopped, first.history)


def test_an_exception_of_a_step_is_feedback():
    class Reads(Module):
        def __init__(self):
            self.text = Parameter("one", role="number")

        def training_step(self, batch, number):
            return exact_match(map_python(int, self.text, purpose="read"), 1)

        def configure_optimizers(self):
            return TGD([self.text], Scripted({"invalid literal": "<IMPROVED>1</IMPROVED>"}))

    module = Reads()
    with use_critic(Relay()):
        Trainer(1).fit(module, DataLoader([0], 1))
    assert module.text.data == "1"


def test_what_is_no_step_is_refused():
    class Empty(Module):
        def training_step(self, batch, number):
            return 3

        def configure_optimizers(self):
            return TGD([Parameter("x")], Scripted(["x"]))

    with pytest.raises(ArgumentTypeError, match="no evaluation"):
        Trainer(1).fit(Empty(), DataLoader(DATA, 3))
    with pytest.raises(ArgumentTypeError, match="no validation_step"):
        Trainer(1).fit(Empty(), DataLoader(DATA, 3), DATA)
    with pytest.raises(ArgumentTypeError, match="no training_step"):
        Trainer(1).fit(Module(), DataLoader(DATA, 3))


def test_progress_shows_what_the_run_has_cost(tmp_path, capsys):
    script = Scripted(lambda request: "<IMPROVED>odd</IMPROVED>")
    with Run(tmp_path / "run.sqlite"):
        Trainer(1, progress=True).fit(Spam(script), DataLoader(DATA[:2], 2))
    err = capsys.readouterr().err
    assert "epoch 0 batch 0: score" in err
    assert " calls, 0 from the journal, 0 under way, " in " ".join(err.split())
