"""A batch over a local Ray of two workers: the same as here, a worker killed mid-batch or not."""

import os
import signal
from collections import Counter

import pytest

from pullback.errors import ArgumentError, BudgetError, GraphError, ModelError, ProgramError
from pullback.tape import Variable
from pullback.text import (
    ChatModule,
    Module,
    Parameter,
    RuleCritic,
    exact_match,
    map_python,
    use_critic,
    use_prompts,
)
from pullback.text.lm import LM, Account, Completion, Journal, Run, Usage, keep_secret
from pullback.text.train import Measure

ray = pytest.importorskip("ray", reason="pip install 'pullback[ray]'")
from pullback.text import ray as over_ray  # noqa: E402 - after ray is known to be there

KEY = "sk-ray-0123456789"


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=80 * 2**20,
    )  # fmt: skip
    yield
    ray.shutdown()


class Asked(LM):
    """A model of this process: it counts what it is asked, and cannot be sent anywhere."""

    model = "asked"

    def __init__(self):
        self.key, self.calls, self.pid = KEY, Counter(), os.getpid()
        keep_secret(KEY)

    def __reduce__(self):
        raise AssertionError("a model was sent to a worker")

    async def answer(self, request):
        assert os.getpid() == self.pid
        asked = request.messages[-1].text
        self.calls[asked] += 1
        if "refuse" in asked:
            raise ModelError(f"refused with {KEY}", status=400)
        if "<PARTS" in asked:
            count = asked.count("<PART id=")
            told = "".join(f'<FEEDBACK id="{n}">shout {n}</FEEDBACK>' for n in range(count))
            return Completion(told, Usage(1, 1, cost=0.0))
        return Completion(asked.lower(), Usage(1, 1, cost=0.0))


def pipeline(lm):
    """Classes made here go to the workers by value: they need not be able to import the tests."""

    class Shout(Module):
        def __init__(self):
            self.answer = ChatModule(lm, "Answer.", "{mail}", role="answer")
            self.unused = Parameter("unused", role="unused")

        def forward(self, mail):
            return map_python(str.strip, self.answer(mail=mail), purpose="strip")

    return Shout()


def scored(module, sample):
    mail, wanted = sample
    return exact_match(module(mail), wanted)


def metric():
    from pullback.text import exact_match as match

    return lambda module, sample: match(module(sample[0]), sample[1])


SAMPLES = [(Variable(f"Mail {n}", "mail"), f"mail {n}" if n % 3 else "OTHER") for n in range(12)]


def notes(module):
    return [(note.data, note.role, note.origin[:2]) for note in module.answer.system.grad]


def here(samples=SAMPLES):
    module = pipeline(Asked())
    for sample in samples:
        scored(module, sample).backward()
    return module


@pytest.mark.parametrize("chunk", [1, 5])
def test_scores_and_feedback_are_those_of_this_process(chunk):
    lm = Asked()
    module = pipeline(lm)
    found = over_ray.backward(module, metric(), SAMPLES, chunk=chunk)
    assert [each.score for each in found] == [float(n % 3 > 0) for n in range(12)]
    assert notes(module) == notes(here())
    assert len(notes(module)) == 4
    assert module.unused.grad == []
    assert set(lm.calls.values()) == {1}
    again = over_ray.evaluate(module, metric(), SAMPLES, chunk=chunk)
    assert [each.score for each in again] == [each.score for each in found]
    assert len(notes(module)) == 4  # an evaluation tells nobody anything


def test_a_worker_killed_mid_batch_costs_nothing_twice(tmp_path):
    lm, marks = Asked(), str(tmp_path)
    module, score = pipeline(lm), metric()

    def dies_once(module, sample):
        evaluation = score(module, sample)  # its call is paid for
        number = sample[0].data.split()[-1]
        mark = os.path.join(marks, number)
        if number in {"3", "8"} and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluation

    with Run(tmp_path / "run.sqlite", account=Account(calls=16)) as run:
        found = over_ray.backward(module, dies_once, SAMPLES, chunk=3)
    assert {"3", "8"} <= set(os.listdir(marks))  # two workers died
    assert [each.score for each in found] == [float(n % 3 > 0) for n in range(12)]
    assert notes(module) == notes(here())
    assert set(lm.calls.values()) == {1}
    assert run.paid == 16  # twelve answers and four critiques: the budget allows no more
    with Journal(tmp_path / "run.sqlite") as journal:
        assert len(journal.calls()) == 16


def test_a_worker_that_dies_each_time_is_given_up():
    module = pipeline(Asked())
    with pytest.raises(ProgramError, match="workers died"):
        over_ray.backward(
            module, lambda m, s: os.kill(os.getpid(), signal.SIGKILL), SAMPLES[:1], attempts=2
        )
    assert notes(module) == []


def test_what_fails_is_raised_here_and_tells_nobody(tmp_path):
    lm = Asked()
    module, score = pipeline(lm), metric()
    bad = [*SAMPLES[:3], (Variable("refuse", "mail"), "x")]
    with pytest.raises(ModelError, match="refused") as caught:
        over_ray.backward(module, score, bad)
    assert KEY not in str(caught.value)
    assert caught.value.status == 400
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        over_ray.backward(module, lambda m, s: 1 / 0, SAMPLES)
    account = Account(calls=2)
    with Run(tmp_path / "run.sqlite", account=account), pytest.raises(BudgetError, match="calls"):
        over_ray.backward(module, score, SAMPLES)
    assert notes(module) == []


def test_a_step_that_fails_scores_nothing_and_is_told():
    word = Parameter("seven", role="number")

    class Reads(Module):
        def __init__(self):
            self.word = word

        def forward(self):
            return map_python(int, self.word, purpose="read")

    module = Reads()
    found = over_ray.backward(module, lambda m, s: exact_match(m(), s), [7])
    assert (found[0].score, "invalid literal" in found[0].failure) == (0.0, True)
    assert "invalid literal" in word.grad[0].data


def test_what_is_chosen_for_all_inside_reaches_the_workers(tmp_path):
    (tmp_path / "feedback.txt").write_text(
        "[user]\nREPLACED {call} {answer} {said} <PARTS>{parts}</PARTS>\n"
    )
    lm = Asked()
    with use_prompts(tmp_path):
        over_ray.backward(pipeline(lm), metric(), SAMPLES[:1])
    assert any(asked.startswith("REPLACED") for asked in lm.calls)
    relayed = pipeline(Asked())
    with use_critic(RuleCritic([])):
        over_ray.backward(relayed, metric(), SAMPLES[:1])
    assert "Expected: OTHER" in relayed.answer.system.grad[0].data


def test_a_measure_pays_for_no_sample_twice():
    lm = Asked()
    score = Measure(pipeline(lm), metric(), SAMPLES, evaluate=over_ray.evaluate)
    assert (score(), score(), score.evaluations) == (8 / 12, 8 / 12, 12)
    assert set(lm.calls.values()) == {1}


def test_bad_arguments_are_refused():
    module, score = pipeline(Asked()), metric()
    for wrong in ({"chunk": 0}, {"attempts": 0}):
        with pytest.raises(ArgumentError, match="one or more"):
            over_ray.evaluate(module, score, SAMPLES, **wrong)
    with pytest.raises(ArgumentError, match="one or more"):
        over_ray.evaluate(module, score, [])
    with pytest.raises(ArgumentError, match="Module"):
        over_ray.evaluate(len, score, SAMPLES)
    with pytest.raises(ArgumentError, match="no text"):
        over_ray.backward(pipeline(Asked()).requires_grad_(False), score, SAMPLES)
    old = module.answer.system + "!"
    with pytest.raises(GraphError, match="history"):
        over_ray.evaluate(module, score, [(old, "x")])
