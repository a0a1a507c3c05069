"""A batch over executors: the same as here; what fails is raised here, and keys never leave."""

import copy
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import Client
from types import SimpleNamespace

import pytest

from pullback.errors import ArgumentError, BudgetError, GraphError, ModelError, ProgramError
from pullback.tape import Feedback, Variable
from pullback.tape._concurrency import run
from pullback.text import (
    ChatModule,
    Failure,
    Module,
    Parameter,
    RuleCritic,
    distributed,
    exact_match,
    map_python,
    use_critic,
    use_prompts,
)
from pullback.text import ray as over_ray
from pullback.text.distributed import Workers
from pullback.text.lm import LM, Account, Completion, Run, Usage, keep_secret
from pullback.text.train import Measure

KEY = "sk-workers-0123456789"


@pytest.fixture(scope="module", params=["threads", "processes"])
def workers(request):
    if request.param == "threads":
        executor = ThreadPoolExecutor(2)
    else:
        executor = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    with executor:
        yield executor


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


class Shout(Module):
    def __init__(self, lm):
        self.answer = ChatModule(lm, "Answer.", "{mail}", role="answer")
        self.unused = Parameter("unused", role="unused")

    def forward(self, mail):
        return map_python(str.strip, self.answer(mail=mail), purpose="strip")


class Reads(Module):
    def __init__(self):
        self.word = Parameter("seven", role="number")

    def forward(self):
        return map_python(int, self.word, purpose="read")


def scored(module, sample):
    mail, wanted = sample
    return exact_match(module(mail), wanted)


def read(module, sample):
    return exact_match(module(), sample)


def divide(module, sample):
    return 1 / 0


SAMPLES = [(Variable(f"Mail {n}", "mail"), f"mail {n}" if n % 3 else "OTHER") for n in range(12)]
SCORES = [float(n % 3 > 0) for n in range(12)]


def notes(module):
    return [(note.data, note.role, note.origin[:2]) for note in module.answer.system.grad]


def here(samples=SAMPLES):
    module = Shout(Asked())
    for sample in samples:
        scored(module, sample).backward()
    return module


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", [1, 5])
def test_scores_and_feedback_are_those_of_this_process(workers, chunk):
    lm = Asked()
    module = Shout(lm)
    found = Workers(workers, chunk=chunk).backward(module, scored, SAMPLES)
    assert [each.score for each in found] == SCORES
    assert notes(module) == notes(here())
    assert len(notes(module)) == 4
    assert module.unused.grad == []
    assert set(lm.calls.values()) == {1}
    again = Workers(workers, chunk=chunk).evaluate(module, scored, SAMPLES)
    assert [each.score for each in again] == SCORES
    assert len(notes(module)) == 4  # an evaluation tells nobody anything


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: of the threads
def test_workers_that_are_threads_ask_no_loop_that_waits_for_them():
    async def evaluate():
        with ThreadPoolExecutor(2) as threads:
            found = Workers(threads).evaluate(Shout(Asked()), scored, SAMPLES)
        return [each.score for each in found]

    # In a process of its own: where it waits for itself, so does every test after it.
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(run(evaluate()) != SCORES)
    )
    child.start()
    child.join(20)
    waits = child.is_alive()
    child.kill()
    child.join()
    assert (waits, child.exitcode) == (False, 0)


def test_what_fails_is_raised_here_and_tells_nobody(workers, tmp_path):
    module = Shout(Asked())
    bad = [*SAMPLES[:3], (Variable("refuse", "mail"), "x")]
    with pytest.raises(ModelError, match="refused") as caught:
        Workers(workers).backward(module, scored, bad)
    assert KEY not in str(caught.value)
    assert caught.value.status == 400
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        Workers(workers).backward(module, divide, SAMPLES)
    account = Account(calls=2)
    with Run(tmp_path / "run.sqlite", account=account), pytest.raises(BudgetError, match="calls"):
        Workers(workers).backward(module, scored, SAMPLES)
    assert notes(module) == []


def test_a_step_that_fails_scores_nothing_and_is_told(workers):
    module = Reads()
    found = Workers(workers).backward(module, read, [7])
    assert (found[0].score, "invalid literal" in found[0].failure) == (0.0, True)
    assert "invalid literal" in module.word.grad[0].data


def test_what_is_chosen_for_all_inside_reaches_the_workers(workers, tmp_path):
    (tmp_path / "feedback.txt").write_text(
        "[user]\nREPLACED {call} {answer} {said} <PARTS>{parts}</PARTS>\n"
    )
    lm = Asked()
    with use_prompts(tmp_path):
        Workers(workers).backward(Shout(lm), scored, SAMPLES[:1])
    assert any(asked.startswith("REPLACED") for asked in lm.calls)
    relayed = Shout(Asked())
    with use_critic(RuleCritic([])):
        Workers(workers).backward(relayed, scored, SAMPLES[:1])
    assert "Expected: OTHER" in relayed.answer.system.grad[0].data


def test_a_measure_pays_for_no_sample_twice(workers):
    lm = Asked()
    elsewhere = Workers(workers).evaluate
    score = Measure(Shout(lm), scored, SAMPLES, evaluate=elsewhere)
    assert (score(), score(), score.evaluations) == (8 / 12, 8 / 12, 12)
    assert set(lm.calls.values()) == {1}


def test_bad_arguments_are_refused():
    with ThreadPoolExecutor(1) as threads:
        module = Shout(Asked())
        for samples, more in ((SAMPLES, {"chunk": 0}), ([], {})):
            with pytest.raises(ArgumentError, match="one or more"):
                Workers(threads, **more).evaluate(module, scored, samples)
        with pytest.raises(ArgumentError, match="Module"):
            Workers(threads).evaluate(len, scored, SAMPLES)
        with pytest.raises(ArgumentError, match="no text"):
            Workers(threads).backward(Shout(Asked()).requires_grad_(False), scored, SAMPLES)
        old = module.answer.system + "!"
        with pytest.raises(GraphError, match="history"):
            Workers(threads).evaluate(module, scored, [(old, "x")])
        with pytest.raises(ArgumentError, match="sent to a worker"):
            Workers(threads, pickler=pickle.Pickler).evaluate(module, lambda m, s: 1.0, SAMPLES)


def die(module, sample):
    os._exit(1)


def test_a_worker_that_dies_is_named():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        for metric in (die, scored):  # a pool whose worker died takes nothing any more
            with pytest.raises(ProgramError, match="worker died"):
                Workers(processes).evaluate(Shout(Asked()), metric, SAMPLES[:1])


def test_a_stranger_is_turned_away_and_the_batch_goes_on():
    lm = Asked()
    with distributed._Office("localhost") as office:
        (host, port), *_ = office.address
        socket.create_connection((host, port)).close()
        with pytest.raises(multiprocessing.AuthenticationError):
            Client((host, port), authkey=b"a guess")
        office.models[7] = lm
        told = distributed._Distant(7, "asked", None, office.address)
        token = distributed._asked.set(Counter())
        assert told("Hello").text == "hello"
        distributed._asked.reset(token)
    assert lm.calls == {"Hello": 1}


class Cluster:
    """What `RayExecutor` asks of Ray, with threads for workers; `make fuzz` starts a real one."""

    exceptions = SimpleNamespace(RayTaskError=type("RayTaskError", (Exception,), {}))
    util = SimpleNamespace(get_node_ip_address=lambda: "localhost")
    cloudpickle = SimpleNamespace(CloudPickler=pickle.Pickler)

    def __init__(self):
        self.started, self.cancelled = False, []

    def is_initialized(self):
        return self.started

    def cancel(self, reference, force):
        self.cancelled.append(reference)

    def remote(self, max_retries):
        def wrapped(function):
            def submit(*args):
                future = Future()
                try:
                    future.set_result(function(*args))
                except SystemExit as error:
                    future.set_exception(RuntimeError(f"the worker died: {error}"))
                except Exception as error:
                    failed = self.exceptions.RayTaskError(str(error))
                    failed.cause = error
                    future.set_exception(failed)
                return SimpleNamespace(future=lambda: future)

            return SimpleNamespace(remote=submit)

        return wrapped


def test_ray_is_an_executor_like_any_other(monkeypatch):
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    with pytest.raises(ArgumentError, match="not started"):
        over_ray.workers()
    cluster.started = True
    with pytest.raises(ArgumentError, match="one or more"):
        over_ray.workers(attempts=0)
    with over_ray.RayExecutor(attempts=1) as executor:
        assert list(executor.map(lambda n: n * n, range(3))) == [0, 1, 4]
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 / 0).result()
    module = Shout(Asked())
    found = over_ray.workers(chunk=5).backward(module, scored, SAMPLES)
    assert [each.score for each in found] == SCORES
    assert notes(module) == notes(here())
    with pytest.raises(ProgramError, match="worker died"):
        over_ray.workers(attempts=2).backward(module, lost, SAMPLES[:1])


def lost(module, sample):
    sys.exit(1)


def test_a_failure_that_is_copied_or_sent_is_the_same():
    failure = Failure("The answer was cut off.")
    for copied in (copy.copy(failure), pickle.loads(pickle.dumps(failure))):
        assert (copied, copied.cause) == (failure, failure.cause)


def test_feedback_goes_to_another_process_with_its_notes():
    again = pickle.loads(pickle.dumps(Feedback([Variable("said")], "answer")))
    assert ([note.data for note in again], again.role) == (["said"], "answer")


ENDS_EARLY = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pullback.errors import BudgetError
from pullback.tape import Variable
from pullback.text import ChatModule, Module, exact_match
from pullback.text.distributed import Workers
from pullback.text.lm import Account, Run, Scripted

class Asks(Module):
    def __init__(self, lm):
        self.ask = ChatModule(lm, "Shout.", "{word}", role="answer")

def metric(module, sample):
    return exact_match(module.ask(word=Variable(sample)), sample.upper())

if __name__ == "__main__":
    ended = 0
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        module = Asks(Scripted(lambda request: request.messages[-1].text.upper()))
        for number in range(25):
            with Run(f"run-{number}.sqlite", account=Account(calls=4)):
                try:
                    Workers(pool, chunk=3).evaluate(module, metric, [f"q{n}" for n in range(8)])
                except BudgetError:
                    ended += 1
    print(ended)
"""


def test_workers_are_free_again_however_a_batch_ends(tmp_path):
    # Forked while somebody answers them, they hold the socket, too.
    (tmp_path / "ends_early.py").write_text(ENDS_EARLY)
    command = [sys.executable, "-W", "ignore", "ends_early.py"]
    done = subprocess.run(
        command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.stdout == "25\n", done.stderr


def test_who_asks_an_office_that_is_gone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(distributed, "_CHALLENGES", 0.05)
    listening = socket.create_server(("localhost", 0))
    distant = distributed._Distant(1, "model", None, (listening.getsockname(), b"key"))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(distant._send, "letter")
        with listening, listening.accept()[0]:  # which says nothing, and then nobody listens
            listening.close()
            with pytest.raises(ConnectionRefusedError):
                asking.result(10)
