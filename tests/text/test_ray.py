"""A batch over a local Ray of two workers: the same as here, a worker killed mid-batch or not."""

import os
import signal

import pytest
from tests.fuzzing import examples
from tests.text.test_distributed import SAMPLES, SCORES, Asked, here, notes

from pullback.errors import ArgumentError, ProgramError
from pullback.text import ChatModule, Module, Parameter, exact_match, map_python
from pullback.text.lm import Account, Journal, Run

ray = pytest.importorskip("ray", reason="pip install 'pullback[ray]'")
from pullback.text import ray as over_ray  # noqa: E402 - after ray is known to be there

pytestmark = pytest.mark.skipif(
    examples(1) == 1, reason="make fuzz starts a cluster, which takes ten seconds"
)


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    with pytest.raises(ArgumentError, match="not started"):
        over_ray.RayExecutor()
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=80 * 2**20,
    )  # fmt: skip
    yield
    ray.shutdown()


def pipeline(lm):
    """Classes made here go to the workers by value: they need not be able to import the tests."""

    class Shout(Module):
        def __init__(self):
            self.answer = ChatModule(lm, "Answer.", "{mail}", role="answer")
            self.unused = Parameter("unused", role="unused")

        def forward(self, mail):
            return map_python(str.strip, self.answer(mail=mail), purpose="strip")

    return Shout()


def test_a_worker_killed_mid_batch_costs_nothing_twice(tmp_path):
    lm, marks = Asked(), str(tmp_path)
    module = pipeline(lm)

    def dies_once(module, sample):
        evaluation = exact_match(module(sample[0]), sample[1])  # its call is paid for
        number = sample[0].data.split()[-1]
        mark = os.path.join(marks, number)
        if number in {"3", "8"} and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluation

    with Run(tmp_path / "run.sqlite", account=Account(calls=16)) as run:
        found = over_ray.workers(chunk=3).backward(module, dies_once, SAMPLES)
    assert {"3", "8"} <= set(os.listdir(marks))  # two workers died
    assert [each.score for each in found] == SCORES
    assert notes(module) == notes(here())
    assert set(lm.calls.values()) == {1}
    assert run.paid == 16  # twelve answers and four critiques: the budget allows no more
    with Journal(tmp_path / "run.sqlite") as journal:
        assert len(journal.calls()) == 16


def test_a_worker_that_dies_each_time_is_given_up():
    module = pipeline(Asked())
    with pytest.raises(ProgramError, match="worker died"):
        over_ray.workers(attempts=2).backward(
            module, lambda m, s: os.kill(os.getpid(), signal.SIGKILL), SAMPLES[:1]
        )
    assert notes(module) == []


def test_an_executor_like_any_other():
    with over_ray.RayExecutor(attempts=1) as executor:
        assert list(executor.map(lambda n: n * n, range(3))) == [0, 1, 4]
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 / 0).result()
    with pytest.raises(ArgumentError, match="one or more"):
        over_ray.RayExecutor(attempts=0)
