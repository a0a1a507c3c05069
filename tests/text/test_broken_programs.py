"""No budget exceeded, nothing paid twice, no key written, nothing changed by what is refused."""

import asyncio
import gc
import tempfile
import threading
from contextvars import copy_context
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.fuzzing import examples
from tests.text import broken_programs
from tests.text.broken_programs import KEY, faults_of
from tests.text.server import Server

from pullback.errors import ArgumentError, BudgetError, ModelError, ReplyError
from pullback.tape import Variable, no_grad
from pullback.text import Module, Parameter, StepError, map_python
from pullback.text._module import write_json
from pullback.text.lm import (
    LM,
    Account,
    Budget,
    Journal,
    OpenAI,
    Run,
    Scripted,
    Spending,
    keep_secret,
    scrub,
)
from pullback.text.lm._request import Request
from pullback.text.lm._steps import most_of
from pullback.text.optim import TGD, Validated
from pullback.text.train import DataLoader, Measure, Trainer


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(4), deadline=None)
def test_a_program_that_goes_wrong_breaks_no_promise(seed):
    with tempfile.TemporaryDirectory() as folder:
        assert faults_of(seed, Path(folder)) == []


def forget_all(journal, call, *, forget):
    journal._execute("DELETE FROM calls WHERE id=?", call.id)


def change_a_text(validated, step=Validated.step):
    outcome = step(validated)
    with no_grad():
        validated.parameters()[0].data = "never measured"
    return outcome


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "seeds", "what"),
    [
        (Journal, "release", forget_all, (0, 1, 2), "paid twice"),
        (Account, "_exceeded", lambda self, amounts, beside: [], (1, 4, 5), "exceeded"),
        (Validated, "step", change_a_text, (3, 14, 28), "left"),
        (broken_programs, "KEY", "role", (0,), "a key"),
    ],
    ids=["forgets", "reserves nothing", "keeps what was not measured", "writes a secret"],
)
def test_a_broken_promise_is_seen(owner, name, wrong, seeds, what, monkeypatch, tmp_path):
    monkeypatch.setattr(owner, name, wrong)
    assert any(what in fault for seed in seeds for fault in faults_of(seed, tmp_path))


def test_a_call_in_doubt_is_not_forgotten_by_a_later_refusal(tmp_path):
    path = tmp_path / "run.sqlite"
    lost = Scripted([ModelError("lost", may_be_billed=True)])
    busy = Scripted([ModelError("busy", transient=True, status=503)])
    with Run(path), pytest.raises(ModelError):
        lost("a")
    with Run(path, account=Account(calls=1)) as run, pytest.raises(BudgetError):
        busy("a")
    with Run(path) as run, pytest.raises(ModelError):
        busy("a")
    with Run(path, account=Account(calls=9)) as run:
        assert len(run.in_doubt) == 1
        assert run.account.spent.calls == 1


class Router(LM):
    """A model of a user's own that asks another."""

    model = "router"

    def __init__(self, inner):
        self.inner = inner

    async def answer(self, request):
        return await self.inner.ask(Request.of("again"))


@pytest.mark.parametrize("room", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("awaited", [True, False])
def test_a_call_within_a_call_never_waits_for_it(room, awaited, tmp_path):
    inner = Scripted(lambda request: "x")
    lm = Router(inner) if awaited else Scripted(lambda request: inner("again").text)

    async def ask(number):
        try:
            return (await asyncio.wait_for(lm.acomplete(f"{number}"), 20)).text
        except BudgetError:
            return None

    async def main():
        return await asyncio.gather(*(ask(number) for number in range(3)))

    with Run(tmp_path / "run.sqlite", account=Account(calls=room)) as run:
        answers = asyncio.run(main())
    assert sum(answer is not None for answer in answers) == room // 2
    assert run.account.spent.calls <= room
    assert run.account.reserved == Spending()


def test_a_proposal_waits_for_no_call():
    account = Account(tokens=100, proposals=2)

    async def second():
        async with account.holding(Spending(1, 50)) as spent:
            spent.append(Spending(1, 20))

    async def main():
        beside = copy_context()
        async with account.holding(Spending(1, 90)) as spent:
            waits = asyncio.create_task(second(), context=beside)
            await asyncio.sleep(0)
            account.propose()
            spent.append(Spending(1, 10))
        await waits

    asyncio.run(main())
    assert account.spent == Spending(2, 30, 0.0, 1)


def test_who_left_a_queue_that_is_refused_later_leaves_no_trace(caplog):
    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    account = Account(calls=1)
    lm = Budget(Scripted(lambda request: "x"), account)

    async def main():
        beside = copy_context()
        async with account.holding(Spending(1)):  # its end refuses who waits
            task = asyncio.create_task(lm.acomplete("y"), context=beside)
            await asyncio.sleep(0)
            task.cancel()  # who is leaving at the same time
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
    assert account.reserved == Spending()


def test_what_options_add_to_a_prompt_is_counted():
    most = [
        most_of(Request.of("x", max_tokens=9, **more).to_dict(), None).tokens
        for more in ({}, {"functions": [{"description": "w " * 500}]},
                     {"prediction": {"type": "content", "content": "w " * 500}})
    ]  # fmt: skip
    assert most[1] > most[0] + 1000
    assert most[2] > most[0] + 2000  # it may be billed as an answer, too


def test_the_end_of_a_loop_keeps_what_is_paid_for(tmp_path):
    path = tmp_path / "run.sqlite"

    async def leave():
        task = asyncio.ensure_future(lm.acomplete("long"))
        while not server.bodies:
            await asyncio.sleep(0.005)
        assert not task.done()
        raise ValueError("the program's own")

    with Server(delay=0.2) as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        with Run(path) as run, pytest.raises(ValueError, match="own"):
            asyncio.run(leave())
        assert run.paid == 1
        with Run(path) as run:
            assert lm("long").text == "long"
        assert (run.recorded, len(server.bodies)) == (1, 1)


def test_patience_and_time_end_what_goes_on(tmp_path):
    async def leave():
        await asyncio.wait_for(lm.acomplete("long"), 0.1)

    with Server(delay=1.5) as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        for more in ({"patience": 0.1}, {"account": Account(seconds=0.3)}):
            path = tmp_path / f"{len(more)}{min(more)}.sqlite"
            with Run(path, **more) as run, pytest.raises(TimeoutError):
                asyncio.run(leave())
            assert (run.under_way, run.paid) == (0, 0)


def test_no_key_in_an_address_a_header_or_a_failure_is_kept(tmp_path):
    for url in ("http://me:pass-word@localhost:1/v1", "http://localhost:1/v1?token=pass-word"):
        with pytest.raises(ArgumentError, match="api_key") as caught:
            OpenAI("m", base_url=url)
        assert "pass-word" not in str(caught.value)
    OpenAI("m", base_url="http://localhost:1/v1", headers={"Authorization": "Bearer hidden-77"})
    assert scrub('"hidden-77" and Bearer hidden-77') == '"[key]" and [key]'
    keep_secret('ü"quoted-77')
    assert "quoted" not in scrub('{"a": "ü\\"quoted-77", "b": "\\u00fc\\"quoted-77"}')

    def fail(text):
        raise ValueError(f"no access with {KEY}")

    keep_secret(KEY)
    prompt = Parameter("p", role="prompt")
    with pytest.raises(StepError) as failed:
        map_python(fail, prompt)
    failed.value.backward()
    assert KEY not in prompt.grad[0].data + str(failed.value)
    holder = Module()
    holder.text = Parameter(f"with {KEY}")
    holder.save(tmp_path / "state.json")
    assert KEY not in (tmp_path / "state.json").read_text()


def test_words_that_local_servers_take_as_keys_stay_words():
    OpenAI("m", base_url="http://localhost:1/v1", api_key="ollama")
    assert scrub("ask ollama") == "ask ollama"


class Echo(Module):
    def __init__(self):
        self.answer = Parameter("no", role="answer")

    def training_step(self, batch, number):
        return None

    def configure_optimizers(self):
        return TGD(self.parameters(), Scripted(["x"]))


@pytest.mark.parametrize(
    "change",
    [{"optimizer": {}}, {"optimizer": {"versions": [[{"value": 5, "feedback": [], "score": None}]],
                                       "steps": 1}},
     {"best": [0.5, {"other": "x"}]}, {"since": "x"}, {"history": 3}, {"start": 3}],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_changes_nothing(change, tmp_path):
    echo = Echo()
    state = {"epoch": 0, "module": {"answer": "new"}, "best": None, "since": 0, "history": [],
             "optimizer": {"versions": [[{"value": "new", "feedback": [], "score": None}]],
                           "steps": 0}}  # fmt: skip
    write_json(tmp_path / "good.json", state)
    write_json(tmp_path / "bad.json", {**state, **change})
    loader = DataLoader([(Variable("x"), "x")], None)
    with pytest.raises(ArgumentError):
        Trainer(0).fit(echo, loader, resume=tmp_path / "bad.json")
    assert echo.answer.data == "no"
    Trainer(0).fit(echo, loader, resume=tmp_path / "good.json")
    assert echo.answer.data == "new"


def test_a_writer_that_fails_proposes_nothing_and_one_that_cannot_be_asked_raises():
    prompt = Parameter("p", role="prompt")
    failures = (ReplyError("cut", transient=True), ReplyError("bad"), ModelError("key", status=401))
    for error in failures:
        optimizer = Validated(TGD([prompt], Scripted([error])), lambda: [0.0] * 8)
        prompt.grad = [Variable("better")]
        if error is failures[-1]:
            with pytest.raises(ModelError):
                optimizer.step()
        else:
            assert "nothing was proposed" in optimizer.step().reason
        assert prompt.data == "p"


def test_threads_that_measure_the_same_pay_once_and_share_what_failed():
    calls, gate = [], threading.Event()

    def metric(module, sample):
        calls.append(sample)
        gate.wait(10)
        if sample == "bad":
            raise KeyError(sample)
        return 1.0

    def work():
        try:
            told.append(measure())
        except KeyError as error:
            told.append(str(error))

    for samples, outcome in ((["a", "b"], 1.0), (["a", "bad"], "'bad'")):
        calls.clear(), gate.clear()
        measure, told = Measure(Echo(), metric, samples), []
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(calls) < 2 or sum(thread.is_alive() for thread in threads) < 4:
            gate.wait(0.002)
        gate.wait(0.05)
        gate.set()
        for thread in threads:
            thread.join()
        assert told == [outcome] * 4
        assert sorted(calls) == samples
