"""What is counted is a whole number: whatever else it is, it is refused by its name."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.text.test_train import DATA, Spam

from pullback.errors import ArgumentError
from pullback.tape import concurrency
from pullback.text import ModelCritic, exact_match, judge
from pullback.text.distributed import Workers
from pullback.text.lm import Budget, Limit, Misbehaving, Plan, Retry, Scripted
from pullback.text.optim import TGD, GepaProgram, Pareto, Validated, max_length
from pullback.text.train import DataLoader, Measure, RandomSampler, Trainer, WeightedRandomSampler

LM, MODULE = Scripted(["x"] * 9), Spam()
TGD_ = TGD(MODULE.parameters(), LM)


def metric(module, sample):
    return exact_match(module(sample[0]), sample[1])


def search(**counts):
    pytest.importorskip("gepa")
    return Pareto(MODULE, TGD_, metric, DATA, **{"evaluations": 60, "risk": 1.0, **counts})


FROM_ONE = {
    "limit": concurrency,
    "chunk": lambda n: Workers(ThreadPoolExecutor(1), chunk=n),
    "attempts": lambda n: Retry(LM, attempts=n),
    "concurrency": lambda n: Limit(LM, concurrency=n),
    "rate": lambda n: Limit(LM, rate=n),
    "max_output_tokens": lambda n: Budget(LM, calls=1, max_output_tokens=n),
    "max_tokens": lambda n: Budget(LM, tokens=10**6)("x", max_tokens=n),
    "batch_size": lambda n: DataLoader(DATA, n),
    "num_samples": lambda n: RandomSampler(DATA, num_samples=n),
    "num_samples of weights": lambda n: WeightedRandomSampler([1, 1], n),
    "patience": lambda n: Trainer(patience=n),
    "at_once": lambda n: Measure(MODULE, metric, DATA, at_once=n),
    "repeats": lambda n: Measure(MODULE, metric, DATA, repeats=n),
    "at_once of a program": lambda n: GepaProgram(MODULE, metric, DATA, at_once=n),
    "evaluations": lambda n: search(evaluations=n),
    "minibatch": lambda n: search(minibatch=n),
    "looks": lambda n: Validated(TGD_, lambda: [1.0], risk=1.0, looks=n),
    "characters": max_length,
}
FROM_ZERO = {
    "retries": lambda n: judge(LM, "?", DATA[0][0], retries=n),
    "retries of a critic": lambda n: ModelCritic(LM, retries=n),
    "retries of a writer": lambda n: TGD(MODULE.parameters(), LM, retries=n),
    "momentum": lambda n: TGD(MODULE.parameters(), LM, momentum=n),
    "max_epochs": Trainer,
    "start": lambda n: Plan(n, 0, 0),
    "proposals": lambda n: Plan(0, 0, n),
}


@pytest.mark.parametrize("name", [*FROM_ONE, *FROM_ZERO])
def test_what_is_no_count_is_refused_by_its_name(name):
    make = (FROM_ONE | FROM_ZERO)[name]
    for wrong in (-1, 1.5, True, "3", *([0] if name in FROM_ONE else [])):
        with pytest.raises(ArgumentError) as caught:
            make(wrong)
        assert name.split()[0] in str(caught.value), wrong


def test_a_share_of_answers_is_no_count_and_stays_one():
    with pytest.raises(ArgumentError, match="share"):
        Misbehaving(LM, 1.5)


@pytest.mark.parametrize("score", [np.float32(0.5), np.int64(1), 0.5, 1])
@pytest.mark.parametrize("single", [True, False])
def test_a_number_of_numpy_is_a_score(score, single):
    validated = Validated(TGD_, lambda: score if single else [score, score], risk=1.0)
    assert validated.step().before == pytest.approx(float(score))
