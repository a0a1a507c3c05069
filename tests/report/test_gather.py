"""Many subjects are judged in other processes, as they come, and not twice."""

import json
import os
import signal
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest

from pullback.errors import ArgumentError, PullbackError
from pullback.report import Finding, Report, Verdict, gather_reports

BROKEN = Finding("derivative", Verdict.BROKEN, "another number", "1.0", "2.0", seed=3)


def judged(name):
    if name == "lost":
        raise ArgumentError("There is none.", given=name)
    if name == "fatal":
        os.kill(os.getpid(), signal.SIGKILL)
    return Report(name, "exact", False, (BROKEN,), 3)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_each_name_once_and_what_fails_beside_the_rest(pool):
    found = dict(gather_reports(judged, ["a", "lost", "b", "a"], executor=pool))
    assert sorted(found) == ["a", "b", "lost"]
    assert found["a"] == judged("a")
    assert isinstance(found["lost"], ArgumentError)


def test_what_was_interrupted_goes_on(pool, tmp_path):
    path, made = tmp_path / "found.jsonl", []

    def work(name):
        made.append(name)
        return judged(name)

    names = ["a", "b", "c", "d"]
    first = gather_reports(work, names, executor=pool, results=path)
    begun = [next(first)[0], next(first)[0]]
    first.close()
    with path.open("r+") as stream:  # killed while it wrote a third
        stream.seek(0, os.SEEK_END)
        stream.write('{"name": "d", "asked": "", "rep')
    made.clear()
    found = dict(gather_reports(work, names, executor=pool, results=path))
    assert found == {name: judged(name) for name in names}
    assert not set(made) & set(begun)
    made.clear()
    assert dict(gather_reports(work, names, executor=pool, results=path)) == found
    assert not made


def test_a_report_of_something_else_is_made_again(pool, tmp_path):
    path, texts = tmp_path / "found.jsonl", {"a": "1", "b": "1"}

    def gather():
        made = []

        def work(name):
            made.append(name)
            return judged(name)

        dict(gather_reports(work, texts, executor=pool, results=path, asked=texts.get))
        return made

    assert sorted(gather()) == ["a", "b"]
    texts["b"] = "2"
    assert gather() == ["b"]


def test_a_file_of_results_has_no_empty_line_but_after_one_that_was_cut_off(pool, tmp_path):
    path = tmp_path / "found.jsonl"
    for name in ("a", "b"):
        dict(gather_reports(judged, ["a", name], executor=pool, results=path))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]
    path.write_text(path.read_text()[:-9])
    dict(gather_reports(judged, ["b"], executor=pool, results=path))
    assert json.loads(path.read_text().splitlines()[2])["name"] == "b"


def test_a_file_that_cannot_be_written_is_said_before_any_work(pool, tmp_path):
    def work(name):
        pytest.fail("worked")

    with pytest.raises(ArgumentError, match="cannot be written"):
        list(gather_reports(work, ["a"], executor=pool, results=tmp_path / "none" / "a.jsonl"))


def test_an_executor_that_ends_is_said(tmp_path):
    class Ending(Executor):
        def submit(self, work, name):
            future = Future()
            future.set_exception(BrokenExecutor("its workers are gone"))
            return future

    with pytest.raises(PullbackError, match="workers are gone"):
        list(gather_reports(judged, ["a"], executor=Ending()))


def test_a_process_that_is_killed_costs_its_own_subject_alone():
    names = ["a", "fatal", "b", "c"]
    found = dict(gather_reports(judged, names))
    assert {name: found[name] for name in "abc"} == {name: judged(name) for name in "abc"}
    assert isinstance(found["fatal"], PullbackError)


BAD = {
    "work": {"work": 3},
    "no names": {"names": 3},
    "a text": {"names": "abc"},
    "no texts": {"names": [1, 2]},
    "executor": {"executor": 3},
    "its class": {"executor": ThreadPoolExecutor},
    "local work": {"work": lambda name: None, "executor": None},
    "asked": {"asked": 3},
    "asked no text": {"asked": lambda name: 5},
    "no path": {"results": 3},
    "folder": {"results": "."},
    "source": {"results": "program.py"},
    "other lines": {"results": "other.jsonl"},
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_at_once_and_files_are_left(
    name, tmp_path, monkeypatch, pool
):
    monkeypatch.chdir(tmp_path)
    files = {"program.py": "print(1)", "other.jsonl": "[1]\n"}
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    given = {"work": judged, "names": ["a"], "executor": pool, **BAD[name]}
    with pytest.raises(ArgumentError):
        gather_reports(given.pop("work"), given.pop("names"), **given)
    assert {file: (tmp_path / file).read_text() for file in files} == files


def test_an_executor_that_was_shut_down_and_work_without_a_report_are_told(pool):
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    with pytest.raises(PullbackError, match="executor has ended"):
        list(gather_reports(judged, ["a"], executor=ended))
    ((_, outcome),) = gather_reports(lambda name: None, ["a"], executor=pool)
    assert isinstance(outcome, ArgumentError)
