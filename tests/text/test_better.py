"""Better means better: noise is hardly ever accepted, a true gain is found, both are reported."""

import random
import statistics

import pytest
from tests.fuzzing import examples
from tests.text.test_optim import told

from pullback.errors import ArgumentError, ArgumentTypeError, BudgetError, ReplyError
from pullback.tape import Variable
from pullback.text import ChatModule, Module, Parameter, exact_match
from pullback.text.lm import Run, Scripted
from pullback.text.optim import TGD, Optimizer, Pareto, Validated
from pullback.text.optim._comparison import _student, compare
from pullback.text.train import DataLoader, Measure, Trainer

ITEMS, LOOKS = 40, 8


class Proposals(Optimizer):
    """Proposes v1, v2, ... whatever is said."""

    def __init__(self, params):
        super().__init__(params, {})
        self.count = 0

    def step(self):
        self.count += 1
        self.set_values([f"v{self.count}"])


class Noisy:
    """Items of different difficulty, and texts whose true worth is known, measured with noise."""

    def __init__(self, seed, worth, kind="normal"):
        self.dice, self.worth, self.kind = random.Random(f"noise {seed}"), worth, kind
        self.samples = range(ITEMS)
        self.base = [self.dice.gauss(0, 1) for _ in self.samples]
        self.prompt = told("v0", "note")
        self.paid = 0

    def __call__(self):
        return self.scores()

    def scores(self, numbers=None):
        numbers = self.samples if numbers is None else numbers
        self.paid += len(numbers)
        gain = self.worth.get(self.prompt.data, 0.0)
        if self.kind == "right or wrong":
            return [float(self.dice.random() < 0.5 + gain) for _ in numbers]
        return [self.base[n] + gain + self.dice.gauss(0, 1) for n in numbers]


def run(noisy, **options):
    optimizer = Validated(Proposals([noisy.prompt]), noisy, **options)
    for _ in range(LOOKS):
        optimizer.step()
    return optimizer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["normal", "right or wrong"])
@pytest.mark.parametrize("looks", [LOOKS, None])
def test_noise_alone_is_accepted_in_at_most_one_of_twenty_runs(kind, looks):
    runs = examples(40)  # a thousand in `make fuzz`
    found = [run(Noisy(seed, {}, kind), looks=looks) for seed in range(runs)]
    accepted = sum(any(each.accepted for each in one.outcomes) for one in found)
    assert accepted <= 0.05 * runs, f"{accepted} of {runs}"


def test_who_looks_more_often_than_was_said_accepts_no_more_noise():
    runs = examples(40)
    found = [run(Noisy(seed, {}), looks=1) for seed in range(runs)]
    assert sum(one.optimizer.values() != ["v0"] for one in found) <= 0.05 * runs
    assert "used up" in found[0].outcomes[-1].reason


def test_a_search_that_goes_on_longer_than_was_planned_has_no_more_to_risk():
    first = run(Noisy(0, {}), looks=LOOKS)
    again = Validated(Proposals([told("v0", "note")]), Noisy(0, {}), looks=2 * LOOKS)
    again.load_state_dict(first.state_dict())
    assert again.risk - again.risked == pytest.approx(0.0, abs=1e-12)


def test_so_does_a_true_loss_hidden_in_noise_and_what_scores_better_alone_would_not():
    runs = examples(40)
    worth = {f"v{n}": -0.3 for n in range(1, LOOKS + 1)}
    below = {
        risk: sum(run(Noisy(seed, worth), risk=risk, looks=LOOKS).optimizer.values() != ["v0"]
                  for seed in range(runs))
        for risk in (0.025, 1.0)
    }  # fmt: skip
    assert below[0.025] <= 0.05 * runs
    assert below[1.0] > 0.1 * runs  # the winner's curse


def test_a_true_gain_of_one_standard_deviation_is_found():
    runs, found, paid = examples(40), 0, []
    for seed in range(runs):
        place = random.Random(seed).randint(1, LOOKS)
        noisy = Noisy(seed, {f"v{place}": 1.0})
        found += run(noisy, looks=LOOKS).optimizer.values() == [f"v{place}"]
        paid.append(noisy.paid)
    assert found >= 0.8 * runs, f"{found} of {runs}"
    assert statistics.mean(paid) < 0.8 * ITEMS * (LOOKS + 1)  # the first items turn many away


def searched(seed, worth):
    """A free search on 30 items, decided once on 30 others: the text, and what was paid."""
    noisy, rest = Noisy(seed, worth), Noisy(f"{seed} rest", worth)
    noisy.samples = rest.samples = range(30)
    rest.prompt = noisy.prompt
    optimizer = run(noisy, risk=1.0, final=rest, confirm=0.025)
    optimizer.finish()
    return noisy.prompt.data, noisy.paid + rest.paid


def test_a_free_search_that_is_decided_once_keeps_both_promises():
    runs = examples(40)
    kept = [searched(seed, {})[0] for seed in range(runs)]
    assert sum(text != "v0" for text in kept) <= 0.05 * runs
    places = [random.Random(seed).randint(1, LOOKS) for seed in range(runs)]
    ended = [searched(n, {f"v{at}": 1.0}) for n, at in enumerate(places)]
    found = sum(text == f"v{at}" for (text, _), at in zip(ended, places, strict=True))
    assert found >= 0.8 * runs, f"{found} of {runs}"
    paid = statistics.mean(each for _, each in ended)
    assert paid < 0.8 * ITEMS * (LOOKS + 1)  # as where each step is decided


def test_what_cannot_be_decided_at_the_end_is_not_kept():
    class Empty(Noisy):
        def scores(self, numbers=None):
            raise BudgetError("there is no room")

    noisy = Noisy(0, {"v1": 9.0})
    optimizer = run(noisy, risk=1.0, final=Empty(0, {}), confirm=0.025)
    assert noisy.prompt.data == "v1"
    with pytest.raises(BudgetError):
        optimizer.finish()
    assert noisy.prompt.data == "v0"
    for final in (None, Measure(Module(), lambda module, sample: 1.0, range(3))):
        with pytest.raises(ArgumentError, match="few"):
            Validated(optimizer.optimizer, noisy, final=final, confirm=0.025)


def test_the_gain_on_the_final_split_lies_in_its_interval():
    inside, runs = 0, examples(40)
    for seed in range(runs):
        noisy = Noisy(seed, {"v3": 1.0})
        final = Noisy(seed + 10**6, {"v3": 1.0})
        final.prompt = noisy.prompt
        optimizer = Validated(Proposals([noisy.prompt]), noisy, final=final, looks=LOOKS)
        while noisy.prompt.data != "v3" and optimizer.looked < LOOKS:
            optimizer.step()
        report = optimizer.finish()
        truth = 1.0 if noisy.prompt.data == "v3" else 0.0
        inside += report.low <= truth <= report.high
        assert str(report).startswith(f"{report.before:.4g}, then")
    assert inside >= 0.85 * runs, inside  # 95 % of forty, give or take three deviations


@pytest.mark.sampled(2)
@pytest.mark.parametrize("items", [8, 16, 40])
@pytest.mark.parametrize("fails", [0.05, 0.07])
def test_what_fails_once_in_a_while_is_no_better_than_what_is_steady(items, fails):
    runs, accepted, inside = examples(100), 0, 0
    for seed in range(runs):
        dice = random.Random(seed)
        found = compare([0.95] * items, [float(dice.random() >= fails) for _ in range(items)])
        accepted += found.gain > 0 and found.chance <= 0.025
        inside += found.low <= 0.05 - fails <= found.high
    assert accepted <= 0.05 * runs, f"{accepted} of {runs}"
    assert inside >= 0.85 * runs, f"{inside} of {runs}"


def test_where_nothing_can_be_lost_no_loss_is_looked_for():
    assert compare([0.0] * 6, [0.1] * 6).chance == 2**-6
    # All gained a twentieth of what they may lose: 19 in 20 of what is no better go so far.
    assert compare([0.95] * 40, [1.0] * 40).chance == pytest.approx(0.95**40)


def test_chances_and_quantiles_are_those_of_the_books():
    assert compare([0] * 5, [1] * 5).chance == 2**-5
    assert compare([0] * 5, [1, 1, 1, -1, 0]).chance == pytest.approx(5 / 16)
    assert compare([1, 2], [1, 2]).chance == compare([1], [0]).chance == 1.0
    exact = compare([0.0] * 12, [0.3 * n - 1 for n in range(12)]).chance
    drawn = compare([0.0] * 13, [*(0.3 * n - 1 for n in range(12)), 1e-9]).chance
    assert drawn == pytest.approx(exact, abs=0.01)
    for freedom, quantile in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)):
        assert _student(freedom) == pytest.approx(quantile, rel=0.005)


def test_so_few_items_that_nothing_could_be_shown_are_refused_before_anything_is_spent():
    prompt = told("a", "n")
    lm = Scripted(lambda request: "<IMPROVED>b</IMPROVED>")
    module = Module()
    module.text = prompt
    few = Measure(module, lambda module, sample: 1.0, range(4))
    with pytest.raises(ArgumentError, match="from luck"):
        Validated(TGD([prompt], lm), few)
    with pytest.raises(ArgumentError, match="from luck"):
        Pareto(module, TGD([prompt], lm), lambda m, s: 1.0, range(4), evaluations=20)
    Validated(TGD([prompt], lm), few, risk=1.0)
    with pytest.raises(ArgumentTypeError, match="One number"):
        Validated(TGD([prompt], lm), lambda: 0.5).step()
    for risk in (0, -1, 1.1, float("nan")):
        with pytest.raises(ArgumentError):
            Validated(TGD([prompt], lm), few, risk=risk)
    assert few.evaluations == 0


def test_a_proposal_that_breaks_the_program_is_left():
    prompt = told("a", "n")

    def scores():
        if prompt.data != "a":
            raise ArgumentError("A template has a field that was given no value.")
        return [0.5] * 8

    optimizer = Validated(TGD([prompt], Scripted(["<IMPROVED>b</IMPROVED>"])), scores)
    assert "breaks the program" in optimizer.step().reason
    assert prompt.data == "a"


class Words(Module):
    """Right where the text has the word of the sample; the writer adds one word at a time."""

    def __init__(self, words, held, final, **options):
        self.text = Parameter("", role="words")
        self.words, self.options = words, options
        self.measure, self.final = (Measure(self, self.score, each) for each in (held, final))

    def score(self, module, word):
        return float(word in self.text.data)

    def training_step(self, batch, number):
        from pullback.text import exact_match

        return exact_match(self.text + "", "no such text")

    def configure_optimizers(self):
        def write(request):
            now = request.messages[-1].text.split("<TEXT", 1)[1]
            missing = [word for word in self.words if word not in now]
            if not missing:
                return ReplyError("nothing left")
            return f"<IMPROVED>{self.text.data} {missing[0]}</IMPROVED>"

        return Validated(
            TGD([self.text], Scripted(write)), self.measure, final=self.final, **self.options
        )


def test_a_trainer_reports_start_and_end_on_what_the_search_never_saw():
    words = ["alpha", "beta", "gamma"]
    module = Words(words, [words[n % 3] for n in range(45)], [words[n % 3] for n in range(12)])
    result = Trainer(3, max_failures=1.0).fit(module, DataLoader([0], 1))
    assert module.text.data.split() == words
    assert (result.final.before, result.final.after) == (0.0, 1.0)
    assert "never seen before: 0, then 1 on 12 items" in str(result)
    assert [outcome.comparison.items for outcome in result.outcomes] == [45] * 3


def test_repeats_are_draws_of_their_own():
    dice = random.Random(1)
    module = Module()
    module.text = Parameter("x")
    measure = Measure(module, lambda module, sample: dice.random(), range(50), repeats=16)
    spread = statistics.pstdev(measure.scores())
    assert measure.evaluations == 800
    assert spread < 0.29 / 4 * 1.6  # of one draw 0.29, of the mean of sixteen a quarter


def test_a_search_that_ends_early_is_measured_on_its_final_split_too():
    words = ["alpha"]
    module = Words(words, words * 45, words * 12)
    module.validation_step = module.training_step
    result = Trainer(9, patience=1).fit(module, DataLoader([0], 1), DataLoader([0], 1))
    assert "no better score" in result.stopped
    assert result.final.items == 12


def test_a_plan_is_no_more_than_a_training_costs_and_refuses_none_that_is_paid_for(tmp_path):
    class Spare(Module):
        def __init__(self):
            self.lm = Scripted(self.answer)
            self.ask = ChatModule(self.lm, "A", "{x}")
            self.apology = ChatModule(self.lm, "Apologise.", "{x}")  # asked for none of these

        def answer(self, request):
            said = request.messages[-1].text
            if "<PARTS" in said:
                return '<FEEDBACK id="0">x</FEEDBACK>'
            return "<IMPROVED>B</IMPROVED>" if "<CONSTRAINTS" in said else "no"

        def training_step(self, batch, number):
            return exact_match(self.ask(x=batch[0]), "yes")

        def configure_optimizers(self):
            def metric(module, x):
                return exact_match(module.ask(x=x), "yes")

            held = Measure(self, metric, [Variable(f"h{n}") for n in range(12)])
            tgd = TGD([self.ask.system, self.apology.system], self.lm)
            return Validated(tgd, held, final=held, risk=1.0)

    data = DataLoader([(Variable("q"),)], None)
    with Run(tmp_path / "run.sqlite") as run:
        result = Trainer(1).fit(Spare(), data)
    assert result.proposals == result.plan.proposals == 1
    assert 0 < result.plan.calls <= run.paid
    assert Trainer(1, budget=run.paid).fit(Spare(), data).proposals == 1
