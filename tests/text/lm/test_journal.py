"""A journal: nothing paid twice, whatever happens to the process; refused if it was damaged."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from tests.fuzzing import examples
from tests.text import server as faults
from tests.text.server import Server

from pullback.errors import ArgumentError, ModelError, RecordingError, ReplyError
from pullback.tape import Function, Variable, at, vmap
from pullback.tape._concurrency import begin
from pullback.text import chat, tolerate
from pullback.text.lm import (
    LM,
    Account,
    Cached,
    Finish,
    Journal,
    OpenAI,
    Record,
    Replay,
    Request,
    Run,
    Scripted,
    ToolCall,
    Usage,
)
from pullback.text.lm import Completion as Answer
from pullback.text.prices import Price
from pullback.text.report import render_run

KEY = "sk-journal-0123456789"


def counting():
    count = iter(range(10**6))
    return Scripted(lambda request: f"{request.messages[-1].text} #{next(count)}")


def test_an_answer_is_paid_for_once_and_comes_back_the_same(tmp_path):
    path = tmp_path / "run.sqlite"
    call = ToolCall("c", "t", '{"a": "ü"}')
    whole = Answer("täxt \ud800", Usage(3, 4, 1, 0.25), Finish.TOOL_CALLS, None, (call,))
    with Journal(path) as journal:
        lm = Record(Scripted([whole]), journal)
        first = lm("x", temperature=0.5)
    with Journal(path) as journal:
        assert Record(Scripted([ModelError("paid twice")]), journal)("x", temperature=0.5) == first
    assert Replay(path)("x", temperature=0.5) == first


def test_equal_requests_have_answers_of_their_own_in_any_order(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        lm = Record(counting(), journal)
        texts = [lm("a").text, lm("b").text, lm("a").text]
    assert texts == ["a #0", "b #1", "a #2"]
    with Journal(path) as journal:
        lm = Record(counting(), journal)
        assert [lm("b").text, lm("a").text, lm("a").text, lm("a").text] == [
            "b #1", "a #0", "a #2", "a #0",
        ]  # fmt: skip


def test_what_failed_is_asked_again_and_what_may_be_billed_is_in_doubt(tmp_path):
    path = tmp_path / "run.sqlite"
    plan = [faults.status(400), faults.status(429), faults.drop, None]
    with Server(faults=plan) as server, Journal(path) as journal:
        lm = Record(OpenAI("m", base_url=server.url, api_key=KEY), journal)
        for doubts in (0, 0, 1):
            with pytest.raises(ModelError):
                lm("x")
            assert [call.answer for call in journal.calls()] == [None] * doubts
        assert lm("x").text == "x"
        keys = [headers["idempotency-key"] for headers in server.headers]
        assert keys[2] == keys[3] == journal.calls()[0].key
        assert len(journal.calls()) == 1


async def left_early(lm):
    async with contextlib.aclosing(lm.astream("y")) as chunks:
        async for _ in chunks:
            break


def test_streams_are_written_at_their_end_and_come_back_whole(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        lm = Record(Scripted(["a b c", "d e f"]), journal)
        assert [chunk.text for chunk in lm.stream("x")] == ["a", " b", " c"]
        asyncio.run(left_early(lm))
    with Journal(path) as journal:
        [one, two] = journal.calls()
        assert (one.answer.text, two.answer) == ("a b c", None)
        lm = Record(Scripted(["new"]), journal)
        assert [chunk.text for chunk in lm.stream("x")] == ["a b c"]
        assert [chunk.text for chunk in lm.stream("y")] == ["new"]


def test_replay_sends_nothing_and_names_the_difference(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        lm = Record(counting(), journal)
        lm("Write a poem about the sea.\nKeep it short.", temperature=0.5)
        lm("Something else entirely")
    with Journal(path, make=False) as journal:
        lm = Replay(journal)
        with pytest.raises(RecordingError) as caught:
            lm("Write a poem about the sea.\nKeep it long.", temperature=0.5)
        lines = str(caught.value).splitlines()
        assert any(line.strip().startswith("-") and "short" in line for line in lines)
        assert any(line.strip().startswith("+") and "long" in line for line in lines)
        assert not any("poem" in line and line.strip()[0] in "+-" for line in lines)
        with pytest.raises(RecordingError, match=r"(?s)0\.5.*0\.6"):
            lm("Write a poem about the sea.\nKeep it short.", temperature=0.6)
        assert lm("Something else entirely").text == "Something else entirely #1"
        with pytest.raises(RecordingError, match="more often"):
            lm("Something else entirely")
    with pytest.raises(RecordingError, match="no such journal"):
        Replay(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


def test_replay_asks_which_of_several_models(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        Record(Scripted(["a"], model="one"), journal)("x")
        Record(Scripted(["b"], model="two"), journal)("x")
    with Journal(path) as journal:
        with pytest.raises(ArgumentError, match="one, two"):
            Replay(journal)
        assert Replay(journal, model="two")("x").text == "b"


def test_a_journal_is_open_once(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path), pytest.raises(RecordingError, match="in use"):
        Journal(path)
    program = f"from pullback.text.lm import Journal; Journal({str(path)!r})"
    with Journal(path):
        other = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
    assert "in use by another run" in other.stderr


def test_a_journal_is_replayed_by_several_at_once_and_stays_as_it_is(tmp_path):
    path, folder = tmp_path / "run.sqlite", tmp_path / "killed"
    folder.mkdir()
    with Journal(path) as journal:
        Record(counting(), journal)("x")
        for each in tmp_path.glob("run.sqlite*"):  # what a kill would leave: the call is in the WAL
            shutil.copy(each, folder)
    for found in (path, folder / "run.sqlite"):
        held = {each.name: each.read_bytes() for each in found.parent.glob("run*")}
        for lm in [Replay(found) for _ in range(3)]:
            assert lm("x").text == "x #0"
        assert held == {each.name: each.read_bytes() for each in found.parent.glob("run*")}
    path.write_bytes(path.read_bytes()[:-4096])  # and what is damaged, until a run goes on
    held = path.read_bytes()
    with Journal(path, read_only=True) as journal:
        assert journal.damaged
        with pytest.raises(RecordingError, match="cannot be used"):
            Record(Scripted(["lost"]), journal)("y")
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (held, 2)


def test_a_journal_that_cannot_be_opened_now_is_not_taken_for_damaged(tmp_path):
    """It was moved away, where no next run looked for it, and all that it held was paid again."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        Record(counting(), journal)("x")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(6):  # with so many free file descriptors
            with contextlib.suppress(RecordingError), Journal(path) as journal:
                assert len(journal.calls()) == 1
            os.close(held.pop())
            assert [each.name for each in tmp_path.iterdir()] == ["run.sqlite"]
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    with Journal(path) as journal:
        assert Record(counting(), journal)("x").text == "x #0"
        assert not journal.paid.calls


def test_a_call_lasts_as_long_as_its_answer_took(tmp_path, monkeypatch):
    """Not since a run that was stopped yesterday, nor less than nothing where a clock went back."""
    times = iter([0.0, 0.0, 86_400.0, 86_402.0, 90_000.0, 90_000.0, 50.0])
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr("pullback.text.lm._journal.time", clock)
    lost = ModelError("lost", transient=True, may_be_billed=True)
    with Journal(tmp_path / "run.sqlite") as journal, pytest.raises(ModelError):
        Record(Scripted([lost]), journal)("x")
    with Journal(tmp_path / "run.sqlite") as journal:
        Record(Scripted(["a"]), journal)("x")
        Record(Scripted(["a"]), journal)("y")
        assert [call.ended - call.begun for call in journal.calls()] == [2.0, 0.0]


def test_what_is_no_journal_is_refused(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("hello " * 1000)
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    Cached(Scripted(["x"]), tmp_path / "cache.sqlite").close()
    for path in (text, empty, tmp_path / "cache.sqlite", tmp_path):
        with pytest.raises(RecordingError) as caught:
            Journal(path)
        assert str(path) in str(caught.value)
    with pytest.raises(RecordingError, match="cannot be made"):
        Journal(tmp_path / "no" / "folder.sqlite")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One random injury."""
    kind = rng.randrange(5)
    place = rng.randrange(len(data))
    length = min(rng.choice([1, 1, 2, 16, 512, 4096]), len(data) - place)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + rng.randbytes(length) + data[place + length :]
    if kind == 2:
        return data[:place] + bytes(length) + data[place + length :]
    if kind == 3:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    other = rng.randrange(len(data) - length + 1)
    return data[:place] + data[other : other + length] + data[place + length :]


def test_damage_costs_the_rows_that_it_hits_and_changes_none(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        lm = Record(counting(), journal)
        for number in range(40):
            lm(f"{number} " + "word " * number)
        journal.note("program", ["a.py"])
        calls, notes = journal.calls(), journal.notes()
    data = path.read_bytes()
    refused, kept, tries = 0, [], examples(30)
    for seed in range(tries):
        hurt = tmp_path / f"hurt{seed}.sqlite"
        hurt.write_bytes(damaged(data, random.Random(seed)))
        try:
            with Journal(hurt, make=False) as journal:
                found = journal.calls()
                assert all(call in calls for call in found), f"seed {seed}: read something else"
                assert (len(found) == 40) or journal.damaged, f"seed {seed}"
                told = {name: note for name, note in journal.notes().items() if name != "damaged"}
                assert told in (notes, {}), f"seed {seed}"
                lm = Record(Scripted(lambda request: "asked again"), journal)
                assert lm("0 ").text in ("0  #0", "asked again")
                kept.append(len(found))
        except RecordingError as error:
            assert str(hurt) in str(error)  # noqa: PT017 - or it is read
            refused += 1
    assert refused < 0.2 * tries  # its first page gone
    assert sum(kept) > 0.8 * 40 * len(kept)


def test_one_flipped_bit_costs_one_row(tmp_path):
    path = tmp_path / "run.sqlite"
    with Journal(path) as journal:
        lm = Record(Scripted(lambda request: "word " * 300), journal)
        for number in range(40):
            lm(f"{number}")
    data = path.read_bytes()
    place = data.index(b"word word", len(data) // 2)
    path.write_bytes(data[:place] + b"W" + data[place + 1 :])
    asked = Scripted(lambda request: "asked again")
    with Run(path, account=Account(calls=41)) as run:
        answers = [asked(f"{number}").text for number in range(40)]
    assert answers.count("asked again") == 1
    assert (run.journal.damaged, run.paid, run.recorded) == (1, 1, 39)
    assert run.account.spent.calls == 41  # what was lost was paid, too
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o077 for each in tmp_path.iterdir()} == {0}


def test_a_byte_of_what_says_where_the_rows_are_costs_none(tmp_path):
    """The first page, with the tables, and the root of the calls; all of them hung on these."""
    path = tmp_path / "run.sqlite"
    with Run(path) as run:
        for number in range(40):
            Scripted(lambda request: "word " * 300)(f"{number}")
        run.journal.note("program", ["a.py"])
    data, dice, page = path.read_bytes(), random.Random(0), 4096
    places = [place for place in range(2 * page) if data[place] and not 68 <= place < 72]
    for place in [0, *dice.choices(places, k=examples(20))]:
        hurt = bytearray(data)
        hurt[place] ^= 1 << dice.randrange(8)
        path.write_bytes(hurt)
        with Journal(path) as journal:
            assert len(journal.calls()) == 40, place
            assert journal.notes()["program"] == ["a.py"], place


@pytest.mark.parametrize("text", [b"word word", b'"role":"user"', b"scripted", b"program"])
def test_a_byte_that_is_no_text_costs_one_row(tmp_path, text):
    path = tmp_path / "run.sqlite"
    with Run(path) as run:
        for number in range(40):
            Scripted(lambda request: "word " * 300)(f"{number}")
        run.journal.note("program", ["a.py"])
    data = bytearray(path.read_bytes())
    data[data.rindex(text) + 3] ^= 0x80
    path.write_bytes(data)
    with Run(path) as run:
        answers = [Scripted(lambda request: "asked again")(f"{n}").text for n in range(40)]
    lost = text != b"program"
    assert answers.count("asked again") == run.journal.damaged - (not lost) == lost
    with Run(path, replay=True):
        assert [Scripted(["sent"])(f"{number}").text for number in range(40)] == answers


@pytest.mark.parametrize(("share", "less"), [(0.5, 0), (0.7, 100), (1.0, 4096), (1.0, 1)])
def test_what_is_left_of_a_file_that_was_cut_is_kept(tmp_path, share, less):
    path = tmp_path / "run.sqlite"
    with Run(path):
        for number in range(40):
            Scripted(lambda request: "word " * 300)(f"{number}")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share) - less])
    with Run(path) as run:
        answers = [Scripted(lambda request: "asked again")(f"{n}").text for n in range(40)]
    assert answers.count("asked again") == run.paid < 40 * (1.1 - share) + 3
    assert run.journal.damaged
    with Run(path, replay=True):
        assert [Scripted(["sent"])(f"{number}").text for number in range(40)] == answers


def test_forged_entries_are_dropped(tmp_path):
    import sqlite3

    for number, change in enumerate(
        ("answer = replace(answer, 'x', 'y')", "digest = 'd'", "answer = NULL", "occurrence = 5",
         "request = '{}'", "model = 'other'", "key = 'k'", "ended = 1.0")
    ):  # fmt: skip
        path = tmp_path / f"{number}.sqlite"
        with Journal(path) as journal:
            Record(Scripted(["x"]), journal)("x")
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(f"UPDATE calls SET {change}")
        connection.close()
        with Journal(path) as journal:
            assert (journal.calls(), journal.damaged) == ([], 1)
            assert Record(Scripted(["again"]), journal)("x").text == "again"


def test_killed_at_random_points_nothing_is_paid_twice(tmp_path):
    seed, kills = random.randrange(10**6), examples(1)
    count = iter(range(10**6))

    def server(idempotent):
        answer = lambda body: f"{body['messages'][-1]['content'][:40]} #{next(count)}"  # noqa: E731
        return Server(answer, delay=0.002, idempotent=idempotent)

    with server(True) as honest, server(False) as careless:
        arguments = [str(tmp_path / "j"), str(kills), str(seed), honest.url, careless.url]
        done = subprocess.run(
            [sys.executable, "-m", "tests.text.lm.killing", *arguments],
            capture_output=True, text=True, timeout=500, check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    for each, found in zip((honest, careless), json.loads(done.stdout), strict=True):
        where = f"seed {seed}: {found['killed']} kills, {found['runs']} runs"
        assert found["killed"] >= kills, where
        calls = sum(len(texts) for texts in found["texts"])
        assert len(each.billed) == calls, where  # one key for each call that the program made
        # Where keys are not honoured, the journal had named each call that was billed twice.
        allowed = 0 if each is honest else sum(found["doubts"])
        assert each.billed.total() - calls <= allowed, where
        every = [text for texts in found["texts"] for text in texts]
        assert len(set(every)) == len(every), where  # no answer was handed on twice


def test_the_key_is_in_no_file_of_the_journal_and_cache(tmp_path):
    tricky = 'sk-tricky-"quoted"-ü-012345'
    for key in (KEY, tricky):
        with Server(lambda body, key=key: f"key {key}") as server:
            lm = OpenAI("m", base_url=server.url, api_key=KEY, headers={"X-Test": "plain-secret-1"})
            from pullback.text.lm._secrets import keep_secret

            keep_secret(key)  # what OpenAI(api_key=key) does; a header takes ASCII only
            with Journal(tmp_path / "run.sqlite") as journal:
                record = Record(lm, journal)
                record(f"my key is {key}, plain-secret-1")
                list(record.stream(f"say {key}"))
                journal.note("program", [key])
                journal.note(f"graph:{key}", json.dumps({"tools": json.dumps([key])}))
                with at("user", key):
                    record("at a place with a name")
            with Journal(tmp_path / "run.sqlite") as journal, at("user", key):
                Record(lm, journal)("at a place with a name")
                assert journal.recorded == 1
            cached = Cached(lm, tmp_path / "cache.sqlite")
            cached(f"my key is {key}")
            cached.close()
        for path in tmp_path.iterdir():
            data = path.read_bytes()
            for form in (key, key[3:9], json.dumps(key)[1:-1], "plain-secret-1"):
                assert form.encode() not in data, path


def test_what_is_in_doubt_counts_what_its_own_model_asks_for(tmp_path):
    class Lost(LM):
        model, price = "mine", Price(1e6, 1e6)  # in no table

        async def answer(self, request):
            raise ModelError("lost", transient=True, may_be_billed=True)

    for count in (1, 2, 2):  # the one in doubt, and the same, sent again
        account = Account(cost=1e5)
        with Run(tmp_path / "run.sqlite", account=account, max_output_tokens=5):
            most = account.spent.cost
            with pytest.raises(ModelError, match="lost"):
                Lost()("x")
        assert most == pytest.approx((count - 1) * (account.spent.cost - most), rel=0.1)


def test_half_a_character_in_a_name_or_place_is_written(tmp_path):
    for paid in (1, 0):
        with Run(tmp_path / "run.sqlite") as run, at("item", "\ud800"):
            Scripted(["x"], model="m\ud800")("hi")
            run.note("\ud800", "\ud800")
            assert run.paid == paid


NESTED = "plain words 77"
SECRETS = {  # as Azure's and other servers take them: in a request, and deep in it
    "data_sources": [{"parameters": {"authentication": {"type": "api_key", "key": NESTED}}}],
    "provider": {"headers": {"X-Mine": NESTED}, "password": [NESTED], "sort_key": "price"},
}


def test_a_secret_deep_in_a_request_is_sent_and_written_nowhere(tmp_path):
    path, said = tmp_path / "run.sqlite", []

    def fails(call):
        with pytest.raises((RecordingError, ArgumentError, ModelError)) as caught:
            call()
        said.append(str(caught.value))

    with Server(lambda body: "plain words, price") as server:
        lm = OpenAI("m", base_url=server.url, api_key=KEY)
        with Run(path) as run:
            assert lm("x", **SECRETS).text == "plain words, price"
            assert run.journal.calls()[0].request["options"]["provider"]["headers"]
        assert {**server.bodies[0], **SECRETS} == server.bodies[0]
        with Run(path) as run:  # it is known again, and another secret is another request
            lm("x", **SECRETS), lm("x", **{**SECRETS, "provider": {"password": "another"}})
            assert (run.recorded, run.paid) == (1, 1)
            page = render_run(run.journal)
        with Run(path, replay=True):
            fails(lambda: lm("y", **SECRETS))
            fails(lambda: lm("x", **{**SECRETS, "provider": {"password": "a third"}}))
            assert "password" in said[-1] or "not written" in said[-1]
        fails(lambda: lm("x", provider={**SECRETS["provider"], "extra": object()}))
        cached = Cached(lm, tmp_path / "cache.sqlite")
        cached("x", **SECRETS), cached.close()
    written = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert NESTED.encode() not in written
    assert NESTED not in page + "".join(said)
    assert "price" in page


@pytest.mark.parametrize("fault", [faults.status(400, "no tool takes sk-deep-0123456789abc")])
def test_a_token_deep_in_a_request_is_in_no_error(fault):
    with Server(faults=[fault]) as server, pytest.raises(ModelError) as caught:
        OpenAI("m", base_url=server.url)("x", mcp={"authorization": "sk-deep-0123456789abc"})
    assert "sk-deep" not in str(caught.value)


def test_equal_requests_under_a_cache_are_sent_once_over_threads_and_processes(tmp_path):
    path = tmp_path / "cache.sqlite"
    with Server(delay=0.03) as server:
        lm = Cached(OpenAI("m", base_url=server.url, api_key=KEY), path)

        async def many():
            return await asyncio.gather(*(lm.acomplete("x") for _ in range(20)))

        answers = asyncio.run(many())
        assert {answer.text for answer in answers} == {"x"}
        assert len(server.bodies) == 1
        assert sum(answer.usage.tokens > 0 for answer in answers) == 1  # one was paid for
        lm.close()
        again = Cached(OpenAI("m", base_url=server.url, api_key=KEY), path)
        answer = again("x")
        assert (answer.text, answer.metadata["cached"], answer.usage.tokens) == ("x", True, 0)
        assert [chunk.text for chunk in again.stream("x")] == ["x"]
        again("x", temperature=1.0)
        assert len(server.bodies) == 2
        again.close()


def test_a_damaged_cache_is_refused_or_answers_the_same(tmp_path):
    path = tmp_path / "cache.sqlite"
    lm = Cached(counting(), path)
    texts = [lm(f"{number} " + "word " * number).text for number in range(20)]
    lm.close()
    data, refused = path.read_bytes(), 0
    for seed in range(60):
        hurt = tmp_path / f"hurt{seed}.sqlite"
        hurt.write_bytes(damaged(data, random.Random(seed)))
        try:
            lm = Cached(Scripted(lambda request: "asked again"), hurt)
            found = [lm(f"{number} " + "word " * number).text for number in range(20)]
            lm.close()
        except RecordingError as error:
            assert str(hurt) in str(error)  # noqa: PT017 - or it is read
            refused += 1
        else:  # a cache may lose an answer, and asks again; it never changes one
            pairs = zip(found, texts, strict=True)
            assert all(now in {then, "asked again"} for now, then in pairs), f"seed {seed}"
    assert refused > 20


def test_a_changed_row_of_a_cache_is_asked_again(tmp_path):
    import sqlite3

    path = tmp_path / "cache.sqlite"
    lm = Cached(counting(), path)
    assert [lm(text).text for text in ("a", "b")] == ["a #0", "b #1"]
    lm.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE calls SET answer = replace(answer, 'a #0', 'forged')")
    again = Cached(Scripted(lambda request: "asked again"), path)
    assert [again(text).text for text in ("a", "b")] == ["asked again", "b #1"]
    again.close()


def test_two_processes_that_keep_the_same_answer_keep_one(tmp_path):
    first, second = (Journal(tmp_path / "cache.sqlite", shared=True) for _ in range(2))
    request = Request.of("x")
    for journal, text in ((first, "mine"), (second, "late")):
        journal.keep(request, "m", Answer(text))
    assert {each.find(request.digest("m")).text for each in (first, second)} == {"mine"}
    first.close()
    second.close()


def test_a_failure_is_not_cached(tmp_path):
    lm = Cached(Scripted([ModelError("no"), "yes"]))
    with pytest.raises(ModelError):
        lm("x")
    assert lm("x").text == "yes"


def test_a_run_journals_every_model_whatever_wraps_it(tmp_path):
    path = tmp_path / "run.sqlite"
    with Server(faults=[faults.status(500)]) as server:
        lm = Cached(faults_tolerant(server))
        with Run(path) as run:
            assert [lm("a").text, lm("a").text, lm("b").text] == ["a", "a", "b"]
            assert (run.paid, run.recorded) == (2, 0)
            assert "".join(chunk.text for chunk in lm.stream("c")) == "c"
        assert len(server.bodies) == 4
        for replay in (False, True):
            with Run(path, replay=replay) as run:
                fresh = Cached(faults_tolerant(server))
                assert [fresh("a").text, fresh("b").text] == ["a", "b"]
                assert (run.paid, run.recorded) == (0, 2)
        assert len(server.bodies) == 4
        with Run(path, replay=True), pytest.raises(RecordingError, match="does not hold"):
            lm("d")
        with Run(path), pytest.raises(ArgumentError, match="Another run"):
            Run(tmp_path / "other.sqlite").__enter__()
        assert lm("e").text == "e"  # past the run


def faults_tolerant(server):
    from pullback.text.lm import Retry

    return Retry(OpenAI("m", base_url=server.url, api_key=KEY), wait=0.001)


def test_a_call_that_is_interrupted_is_kept(tmp_path):
    path = tmp_path / "run.sqlite"

    async def main(lm):
        task = asyncio.ensure_future(lm.acomplete("x"))
        while not server.bodies:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not run.paid:
            await asyncio.sleep(0.005)

    with Server(delay=0.2) as server, Run(path) as run:
        asyncio.run(main(OpenAI("m", base_url=server.url, api_key=KEY)))
    with Journal(path) as journal:
        assert [call.answer.text for call in journal.calls()] == ["x"]


def test_a_call_that_was_begun_is_kept_though_its_loop_has_had_no_time_for_it(tmp_path):
    async def busy():
        time.sleep(0.05)  # as where many calls begin at once

    async def leave():
        with Run(tmp_path / "run.sqlite"):
            begin(busy())
            asking = asyncio.ensure_future(lm.acomplete("Hi"))
            await asyncio.sleep(0)
            asking.cancel()

    lm = Scripted(["first", "second"])
    asyncio.run(leave())
    with Run(tmp_path / "run.sqlite") as run:
        assert (lm("Hi").text, run.recorded) == ("first", 1)


def test_a_thread_that_outlasts_its_run_asks_nothing_more(tmp_path):
    class Step(Function):
        blocking = True

        @staticmethod
        def forward(ctx, x):
            if x.data == "bad":
                assert begun.wait(5)
                raise ValueError("no")
            begun.set()
            assert left.wait(5)
            try:
                return Variable(lm(x.data).text)
            finally:
                ended.set()

    (begun, left, ended), sent = (threading.Event() for _ in range(3)), []
    lm = Scripted(lambda request: sent.append(request) or "fine")
    with pytest.raises(ValueError, match="no"), Run(tmp_path / "run.sqlite"):
        vmap(Step.apply)(["bad", "good"])
    left.set()
    assert ended.wait(5)
    assert sent == []
    assert lm("outside").text == "fine"


def test_the_digest_of_a_request_is_the_same_in_every_process():
    program = (
        "from pullback.text.lm import Request, Message;"
        "print(Request.of([Message('user', 'ü')], b=1, a={'d': 1, 'c': 2}).digest('m'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1",)
    }  # fmt: skip
    here = Request.of([{"role": "user", "content": "ü"}], a={"c": 2, "d": 1}, b=1).digest("m")
    assert found == {here}


@pytest.mark.parametrize("ask", [
    lambda lm: chat(lm, "a").data,
    lambda lm: chat(lm, "a", schema={"type": "integer"}).data,
    lambda lm: lm("a", schema={"type": "integer"}).parsed,
    lambda lm: list(lm.stream("a", schema={"type": "integer"}))[-1].completion.parsed,
])  # fmt: skip
def test_what_ended_a_run_is_asked_again_by_the_next(tmp_path, ask):
    lm, path = Scripted(["", "3"]), tmp_path / "run.sqlite"
    with pytest.raises(ReplyError), Run(path):
        ask(lm)
    for paid in (1, 0):
        with Run(path) as run:
            assert str(ask(lm)) == "3"
        assert run.paid == paid
    assert sorted(call.failure is None for call in run.before) == [False, True]


def test_what_a_program_has_asked_again_itself_is_paid_for_once(tmp_path):
    lm, path = Scripted(["", "fine"]), tmp_path / "run.sqlite"
    for paid in (2, 0):
        with Run(path) as run:
            with pytest.raises(ReplyError):
                chat(lm, "a")
            assert chat(lm, "a").data == "fine"
        assert run.paid == paid


@pytest.mark.parametrize("path", [None, "cache.sqlite"])
def test_a_cache_keeps_no_answer_that_could_not_be_used(tmp_path, path):
    lm = Scripted(["", "fine"])
    cached = Cached(lm, path and tmp_path / path)
    with tolerate():
        assert "answered nothing" in chat(cached, "a").data
    assert [chat(cached, "a").data for _ in range(2)] == ["fine", "fine"]
    cached.close()


def test_what_is_closed_is_not_called_corrupt(tmp_path):
    run = Run(tmp_path / "run.sqlite")
    with run:
        Scripted(["x"])("hello")
    cached = Cached(Scripted(["x", "y"]), tmp_path / "cache.sqlite")
    cached("hello")
    cached.close()
    with pytest.raises(RecordingError, match="journal is closed"), run:
        Scripted(["y"])("hello")
    with pytest.raises(RecordingError, match="cache is closed"):
        cached("hello")


def test_a_run_that_is_refused_leaves_no_file(tmp_path):
    later = Run(tmp_path / "later.sqlite")
    with Run(tmp_path / "run.sqlite"):
        with pytest.raises(ArgumentError, match="Another run"):
            Run(tmp_path / "nested.sqlite")
        with pytest.raises(ArgumentError, match="Another run"), later:
            pass
    assert not list(tmp_path.glob("*nested*"))
    with Run(tmp_path / "later.sqlite"):  # nobody has it open any more
        pass
