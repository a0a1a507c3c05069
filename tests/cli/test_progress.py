"""Progress says which clause runs and for how long; checks run side by side, as memory allows."""

import io
import os
import time

import pytest
from rich.console import Console

from pullback.cli import _progress, _run
from pullback.cli._progress import Doing, with_progress
from pullback.cli._run import side_by_side
from pullback.cli._tasks import Outcome, Task


@pytest.fixture
def doing(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    doing = Doing()
    doing.start("a:Fire", "compile")
    now[0] += 12
    doing.start("b:Cube", "sizes")
    now[0] += 2
    return doing


def test_what_runs_for_longest_comes_first(doing):
    assert str(doing) == "compile 14 s of a:Fire, sizes 2 s of b:Cube"
    doing.start("c:Tanh", "starts")
    assert str(doing) == "compile 14 s of a:Fire, sizes 2 s of b:Cube and 1 more"
    doing.end("a:Fire")
    assert str(doing) == "sizes 2 s of b:Cube, starts 0 s of c:Tanh"


def outcomes(tasks):
    for task in tasks:
        time.sleep(0.15)
        yield Outcome(task.name, reason="none")


TASKS = [Task(f"p.{name}:Fire", lambda: (None, []), ()) for name in "ab"]


def test_a_log_hears_of_it_soon_and_then_every_so_often(monkeypatch, capfd):
    monkeypatch.setattr(_progress, "_FIRST", 0.05)
    doing = Doing()
    doing.start("p.a:Fire", "compile")
    console = Console(file=io.StringIO())
    assert len(list(with_progress(outcomes(TASKS), TASKS, console, doing))) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["pullback: 0 of 2 Functions checked, now compile 0 s of p.a:Fire (0 s)"]


def test_a_bar_shows_the_clause_and_no_emoji():
    doing = Doing()
    doing.start("p.a:fire:", "compile")
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    assert len(list(with_progress(outcomes(TASKS), TASKS, console, doing))) == 2
    assert "compile 0 s of p.a:fire:" in stream.getvalue()


@pytest.mark.parametrize("width", [72, 80])
def test_a_long_name_takes_no_room_from_what_runs_and_for_how_long(width):
    doing, stream = Doing(), io.StringIO()
    doing.start("alpha.kernels.attention:FusedMultiHeadAttentionWithRotaryEmbedding", "compile")
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    list(with_progress(outcomes(TASKS), TASKS, console, doing))
    drawn = [line for line in stream.getvalue().splitlines() if "compile" in line]
    assert drawn
    for line in drawn:
        assert "Checking" in line
        assert "compile 0 s" in line


def test_as_many_as_there_are_cores_and_memory_for_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(_run, "_free_bytes", lambda: 64 * 2**30)
    assert side_by_side() == 8
    monkeypatch.setattr(_run, "_free_bytes", lambda: 3 * 2**30)
    assert side_by_side() == 3
    monkeypatch.setattr(_run, "_free_bytes", lambda: 2**20)
    assert side_by_side() == 1
    monkeypatch.undo()
    assert _run._free_bytes() > 2**20
