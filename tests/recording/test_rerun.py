"""A program that is run again gives a call with its objects as they are."""

import sys
from pathlib import Path

import pytest
import torch

from pullback.errors import RecordingError
from pullback.recording import Recorder, copy_call, live_calls, rerun_call
from pullback.recording._rerun import _here, _program
from pullback.recording.codec import EXPRESSION

PROGRAM = """
import sys
import threading
import torch

def layer(factor):
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, state):
            return x * factor * state.scale

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None
    return Local

class State:
    scale = 1.0

state = State()
state.lock, state.words = threading.Lock(), sys.argv[1:]
local = layer(2.0)
for step in range(3):
    x = torch.ones(2, requires_grad=True)
    local.apply(x, state)
    state.scale += 1.0
with torch.no_grad():
    local.apply(torch.ones(5), state)
layer(9.0).apply(torch.ones(2, requires_grad=True), state)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "wide.py").write_text(PROGRAM)
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize("program", [["wide.py"], ["-m", "wide"]])
def test_a_call_has_the_objects_of_the_end_of_the_program(folder, program) -> None:
    home = "wide" if "-m" in program else folder / "wide.py"
    name = f"{home}:layer.<locals>.Local"
    function, args = rerun_call([*program, "--lr"], name, folder=str(folder))
    assert args[1].scale == 4.0
    assert args[1].words == ["--lr"]
    assert function.apply(torch.ones(1), args[1]).tolist() == [8.0]
    with pytest.raises(RecordingError, match="no call 7 of"):
        rerun_call([*program, "--lr"], name, 7, folder=str(folder))


def test_the_process_that_made_a_call_does_not_run_its_program_again(monkeypatch) -> None:
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, held):
            return x * held["factor"]

    recorder, held = Recorder(copy_call), {"factor": 3.0}
    recorder.install(torch.autograd.Function)
    Local.apply(torch.ones(2), held)
    recorder.uninstall()
    [record] = recorder.records.values()
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "3"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", *sys.argv])
    [(args, keywords)] = live_calls(record, [0], "/tmp")
    name = record.locator.name
    said = f"rerun_call(['train.py', '--lr', '3'], {name!r}, 0, folder='/tmp')"
    assert getattr(keywords, EXPRESSION) == said
    monkeypatch.setitem(_here, name, record)
    assert rerun_call(["train.py"], name, 0) == (Local, args)


@pytest.mark.parametrize(
    ("original", "now", "words"),
    [
        (["python", "train.py", "--lr", "3"], ["train.py", "--lr", "3"], ["train.py", "--lr", "3"]),
        (["python", "-W", "ignore", "train.py"], ["train.py"], ["train.py"]),
        (["python", "-m", "pkg.train", "3"], ["/x/pkg/train.py", "3"], ["-m", "pkg.train", "3"]),
        (["python", "it.py", "--key=a"], ["it.py", "--key=a"], ["it.py", "--key=***"]),
        (["python", "-c", "print(3)", "3"], ["-c", "3"], []),  # the code itself: no file has it
        (["python", "train.py", "3", "4"], ["train.py", "3"], []),  # altered by the program
    ],
)  # fmt: skip
def test_a_program_is_told_by_its_words(original, now, words, monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", now)
    assert _program() == words
