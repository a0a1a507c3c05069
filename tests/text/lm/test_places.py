"""A request has a place: no order of time says who gets which answer, or what is paid again."""

import asyncio
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fuzzing import examples

from pullback import tape
from pullback.errors import RecordingError
from pullback.tape import Variable, at, vmap
from pullback.text import ChatModule, Module, chat, exact_match
from pullback.text.distributed import Workers
from pullback.text.lm import Cached, Journal, Record, Run, Scripted
from pullback.text.optim import TGD, GepaProgram, Validated
from pullback.text.train import DataLoader, Measure, Trainer


class Stop(Exception):
    """The process ends here."""


class Model(Scripted):
    """Answers after any time, and never the same twice."""

    def __init__(self, stop=None):
        self.sent, count = [], itertools.count()

        async def answer(request):
            number = next(count)
            if number == stop:
                raise Stop
            self.sent.append(request)
            await asyncio.sleep(random.random() / 200)
            if "<PARTS" in request.messages[-1].text:
                numbers = range(request.messages[-1].text.count("<PART id="))
                return "".join(f'<FEEDBACK id="{n}">{random.random()}</FEEDBACK>' for n in numbers)
            if "<CONSTRAINTS" in request.messages[-1].text:
                return f"<IMPROVED>{random.random()}</IMPROVED>"
            return f"{random.random()}"

        super().__init__(answer)


class Draws(Module):
    """Equal prompts at many places: eight samples, three batches at once, three epochs."""

    def __init__(self, lm):
        self.ask = ChatModule(lm, "Draw.", "Go on with {x}.", role="draw")
        self.writer = TGD(self.parameters(), lm)

    def forward(self, x):
        return self.ask(x=self.ask(x=x))

    def training_step(self, batch, number):
        out = vmap(self)(batch)
        return exact_match(out, ["none"] * len(batch))

    def configure_optimizers(self):
        return self.writer


def program(path, stop=None):
    """What every draw gave, and how many were paid for."""
    lm = Model(stop)
    module = Draws(lm)
    data = [Variable("the same") for _ in range(8)]
    try:
        with Run(path) as run, tape.concurrency(8):
            Trainer(3).fit(module, DataLoader(data, 8))
            measure = Measure(module, lambda m, x: float(m(x).data), data, at_once=8)
            scores = measure.scores()
            with ThreadPoolExecutor(8) as threads:
                texts = list(threads.map(lambda n: alone(module, n), range(8)))
    except Stop:
        return None, len(lm.sent)
    return (module.state_dict(), scores, texts, run.recorded + run.paid), len(lm.sent)


def alone(module, number):
    with at("thread", number):
        return module(Variable("the same")).data


def test_a_run_that_is_stopped_anywhere_pays_for_nothing_twice_and_ends_the_same(tmp_path):
    for seed in range(examples(2)):
        path = tmp_path / f"{seed}.sqlite"
        dice, paid, found = random.Random(seed), 0, None
        while found is None:
            found, sent = program(path, dice.choice([dice.randrange(120), 10**6]))
            paid += sent
        again, nothing = program(path)
        assert (again, nothing) == (found, 0)
        assert paid <= found[-1] + 0, f"seed {seed}: {paid} paid of {found[-1]}"


def test_equal_prompts_at_two_places_are_two_draws_in_any_order(tmp_path):
    def draws(order, lm):
        with Run(tmp_path / "run.sqlite"):
            found = {}
            for name in order:
                with at(name):
                    found[name] = chat(lm, "Draw.").data
        return found

    first = draws("abc", Model())
    assert len(set(first.values())) == 3
    assert draws("cab", Model(stop=0)) == first
    with Journal(tmp_path / "run.sqlite") as journal:
        assert sorted(call.place for call in journal.calls()) == ["a/0", "b/0", "c/0"]


class Searched(Draws):
    """Trained by a search; what measures it is the class's, for workers get the rest."""

    def configure_optimizers(self):
        return Validated(self.writer, self.measure, risk=1.0)


def number(module, sample):
    return float(module(sample).data)


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_measured_has_the_place_of_its_task_and_of_no_step_in_it(
    tmp_path, apart, monkeypatch
):
    """Two tasks that measured equal texts took each other's answers, and paid for some again."""
    data, lm = [Variable("the same")] * 3, Model()

    def task(which, threads, learn):
        module = Searched(lm)
        start, elsewhere = module.state_dict(), Workers(threads).evaluate if apart else None
        measure = Measure(module, number, data, evaluate=elsewhere)
        with at("task", which):
            if learn:
                monkeypatch.setattr(Searched, "measure", measure, raising=False)
                Trainer(1).fit(module, DataLoader(data, 3))
                module.load_state_dict(start)
            return measure.scores()

    with ThreadPoolExecutor(4) as threads:
        with Run(tmp_path / "run.sqlite"):
            found = {which: task(which, threads, True) for which in (0, 1)}
        sent = len(lm.sent)
        with Run(tmp_path / "run.sqlite"):
            again = {which: task(which, threads, False) for which in (1, 0)}
        assert (again, len(lm.sent)) == (found, sent)


def test_a_final_split_with_a_sample_of_the_search_is_answered_anew(tmp_path, monkeypatch):
    """A run that went on gave it the answers that the search had chosen by."""
    data, lm, found = [Variable("the same")] * 4, Model(), []

    def search(module):
        return Validated(
            module.writer, Measure(module, number, data), risk=1.0,
            final=Measure(module, number, data),
        )  # fmt: skip

    monkeypatch.setattr(Searched, "configure_optimizers", search)
    for resume in (None, tmp_path / "checkpoint.json"):
        with Run(tmp_path / "run.sqlite"):
            trainer = Trainer(1, folder=tmp_path)
            result = trainer.fit(Searched(lm), DataLoader(data, 4), resume=resume)
        found.append((result.final, len(lm.sent)))
    assert found[0] == found[1]


def test_what_a_sample_asks_elsewhere_is_its_own_whatever_is_scored_with_it(tmp_path):
    """A run that went on had the scores of some, and gave their answers to the others."""
    lm, found = Model(), []
    with ThreadPoolExecutor(4) as threads:
        evaluate = Workers(threads).evaluate
        for parts in ([[0, 1], [2, 3]], [[2, 3]]):
            with Run(tmp_path / "run.sqlite"):
                data = [Variable("the same")] * 4
                measure = Measure(Draws(lm), number, data, repeats=2, evaluate=evaluate)
                found.append([measure.scores(each) for each in parts][-1])
    assert found[0] == found[1]
    assert len(lm.sent) == 16


class Steps(Module):
    """Two steps with a text each; when the second changes, the first asks what it has asked."""

    def __init__(self, lm):
        self.first = ChatModule(lm, "First.", "{x}", role="first")
        self.second = ChatModule(lm, "Second.", "{x}", role="second")

    def forward(self, x):
        return self.second(x=self.first(x=x))


@pytest.mark.parametrize("way", ["threads", "workers", "search"])
def test_what_texts_are_scored_by_is_theirs_whatever_was_scored_before_them(tmp_path, way):
    """A run that went on knew the scores of some, and gave their answers to the next texts."""
    lm, data, found = Model(), [Variable("the same")] * 3, []
    with ThreadPoolExecutor(4) as threads:
        for texts in (["Second.", "Other."], ["Other."]):
            module = Steps(lm)
            score = Measure(
                module,
                number,
                data,
                evaluate=Workers(threads).evaluate if way == "workers" else None,
            ).scores
            if way == "search":
                program = GepaProgram(module, number, data)
                score = lambda p=program: p.evaluate([0, 1, 2], p.candidate).scores  # noqa: E731
            with Run(tmp_path / "run.sqlite"):
                for text in texts:
                    module.load_state_dict({**module.state_dict(), "second.system": text})
                    scores = score()
            found.append((scores, len(lm.sent)))
    assert found[0] == found[1]


def test_samples_that_a_step_scores_elsewhere_are_those_of_the_step(tmp_path):
    lm = Model()

    def scores(batches, threads):
        found = {}
        for batch in batches:
            with at("batch", batch):
                scored = Workers(threads).evaluate(Draws(lm), number, [Variable("the same")] * 2)
                found[batch] = [each.score for each in scored]
        return found

    with ThreadPoolExecutor(4) as threads:
        with Run(tmp_path / "run.sqlite"):
            first = scores([0, 1], threads)
        with Run(tmp_path / "run.sqlite"):
            assert scores([1, 0], threads) == first


def test_an_item_in_front_of_the_data_moves_places_and_costs_itself_alone_in_a_cache(tmp_path):
    ask = lambda lm, words: vmap(lambda word: chat(lm, word))(Variable(words)).data  # noqa: E731
    for words, paid in ((["a", "b"], 2), (["new", "a", "b"], 1), (["b", "a"], 0)):
        lm = Cached(Scripted(lambda request: request.messages[-1].text), tmp_path / "cache.sqlite")
        with Run(tmp_path / "run.sqlite") as run:
            assert ask(lm, words) == words
        assert run.paid == paid


def test_a_replay_says_where_the_journal_has_what_is_asked_elsewhere(tmp_path):
    lm = Scripted(lambda request: request.messages[-1].text)
    ask = vmap(lambda word: chat(lm, word))
    with Run(tmp_path / "run.sqlite"):
        ask(Variable(["a", "b"]))
        lm("once")
    with Run(tmp_path / "run.sqlite", replay=True), pytest.raises(RecordingError) as raised:
        ask(Variable(["b", "a"]))
    assert "at another place" in str(raised.value)
    with Run(tmp_path / "run.sqlite", replay=True):
        assert ask(Variable(["a", "b"])).data == ["a", "b"]
        assert lm("once").text == "once"
        with pytest.raises(RecordingError, match=r"given: +once more than 1 time\n"):
            lm("once")


def test_a_stream_that_is_read_has_the_place_of_its_reader(tmp_path):
    with Journal(tmp_path / "run.sqlite") as journal:
        lm = Record(Scripted(["a b", "c d"]), journal)
        for number in range(2):
            with at("item", number):
                assert len(list(lm.stream("Hi"))) == 2
        assert [call.place for call in journal.calls()] == ["item/0", "item/1"]


@pytest.mark.parametrize("places", [
    [("docs", "x/1"), ("docs/x", "1"), ("docs", "x", 1)], [("a", 1), ("a", "1"), ('"a"', 1)],
    [(), ("",), ("", "")], [("\ud800",), ("\\ud800",), ('"\\ud800"',)],
])  # fmt: skip
def test_places_of_other_parts_share_no_answer(tmp_path, places):
    def asked(order):
        lm, found = Scripted([str(n) for n in range(9)]), {}
        with Run(tmp_path / "run.sqlite"):
            for parts in order:
                with at(*parts):
                    found[parts] = lm("Hello").text
        return found

    assert asked(places) == asked(places[::-1])


def test_a_place_of_plain_names_is_written_as_it_was(tmp_path):
    with Run(tmp_path / "run.sqlite") as run, at("epoch", 3, "texts", "0f3a", "a mail: 'x'", -1):
        Scripted(["x"])("Hello")
        assert run.journal.calls()[0].place == "epoch/3/texts/0f3a/a mail: 'x'/-1"
