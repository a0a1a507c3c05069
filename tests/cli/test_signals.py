"""Ctrl-C and requests to end, as a terminal and ``kill`` send them: through a pty and processes."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.copies import be_program, start_copy
from tests.processes import is_alive, wait_for

from pullback.cli import main

FUNCTIONS = """
import os
import time
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent

class Waits(Square):
    @staticmethod
    def backward(ctx, cotangent):
        if cotangent.requires_grad:
            if os.fork() == 0:
                time.sleep(600)
            open("waits", "w").close()
            time.sleep(600)
        return 2 * ctx.saved_tensors[0] * cotangent
"""
TRAIN = """
import signal, time, torch
from functions import Square

heard = []
def hear(number, frame):
    heard.append(number)
    if len(heard) == 1:
        raise KeyboardInterrupt
signal.signal(signal.SIGTERM, hear)
signal.signal(signal.SIGINT, hear)
Square.apply(torch.ones(2, requires_grad=True)).sum().backward()
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
try:
    open("running", "w").close()
    time.sleep(600)
except KeyboardInterrupt:
    until = time.monotonic() + 0.7
    while time.monotonic() < until:  # saves its checkpoint
        time.sleep(0.05)
    open("saved", "w").write(f"{len(heard)}")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    return tmp_path


def is_working(name: str) -> bool:
    """Whether a process works in this folder, but for ourselves."""
    here = str(Path.cwd())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.readlink(entry / "cwd") == here and name in (entry / "cmdline").read_text():
                    return True
            except OSError:
                continue
    return False


def at_a_terminal(work: Callable[[], object]) -> tuple[int, int]:
    """Start a program as the foreground of a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        be_program(work)
    return pid, terminal


def end_at_terminal(pid: int, terminal: int) -> tuple[int, str]:
    parts = []
    while True:
        if not select.select([terminal], [], [], 60)[0]:
            os.kill(pid, signal.SIGABRT)  # where every thread of it stands, in the text
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    # A terminal drops what is not read yet at Ctrl-C, perhaps half of a character.
    return os.waitstatus_to_exitcode(status), b"".join(parts).decode(errors="replace")


def interrupt(words, kinds="Own, Square") -> tuple[int, str]:
    """Run a program that knows nothing of Ctrl-C, and press it while it works."""
    Path("train.py").write_text(
        "import time, torch\nfrom functions import Square\n"
        "class Own(Square):\n    pass\n"
        f"for kind in ({kinds}):\n    kind.apply(torch.ones(2, requires_grad=True))\n"
        'open("running", "w").close()\ntime.sleep(600)\n'
    )
    pid, terminal = at_a_terminal(lambda: main(words))
    wait_for(lambda: Path("running").exists())
    os.write(terminal, b"\x03")
    return end_at_terminal(pid, terminal)


@pytest.mark.usefixtures("copied_programs")
def test_ctrl_c_ends_the_program_and_what_it_applied_until_then_is_checked(folder) -> None:
    words = ["check", "--clauses", "linear", "--gradient", "exact", "--json", "found.json", "--"]
    status, text = interrupt([*words, "python", "train.py"])
    assert status == 130, text
    assert "run by itself first" not in text
    found = json.loads(Path("found.json").read_text())
    assert [item["function"].rpartition(":")[2] for item in found["functions"]] == ["Own", "Square"]
    assert "interrupted" in found["partial"]


@pytest.mark.usefixtures("copied_programs")
def test_ctrl_c_before_a_function_is_applied_is_no_fault_of_the_program(folder) -> None:
    status, text = interrupt(["check", "--", "python", "train.py"], kinds="")
    assert status == 130, text
    assert "The program was interrupted" in text
    assert "mend" not in text


@pytest.mark.usefixtures("copied_programs")
def test_ctrl_c_ends_a_recording_and_the_command_it_prints_works_as_printed(folder, capfd) -> None:
    status, text = interrupt(["record", "-o", "calls.pt", "--", "python", "train.py"])
    assert status == 130, text
    command = text[text.index("pullback check calls.pt") :].split("\r\n")[0]
    assert main([*shlex.split(command)[1:], "--clauses", "linear", "--gradient", "exact"]) == 0
    assert "2 Functions checked" in capfd.readouterr().out


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["record", "track"])
def test_ctrl_c_reaches_a_program_once(folder, command) -> None:
    options = ["-o", "calls.pt"] if command == "record" else []
    words = [command, *options, "--", "python", "train.py"]
    pid, terminal = at_a_terminal(lambda: main(words))
    wait_for(lambda: Path("running").exists())
    os.write(terminal, b"\x03")
    status, text = end_at_terminal(pid, terminal)
    assert Path("saved").read_text() == "1", text
    assert status == 0, text
    assert Path("calls.pt" if command == "record" else "scales.html").exists()
    assert list((folder / "temporary").glob("pullback*")) == []


def told(words: list[str], number: int, send: Callable[..., None] = os.kill) -> tuple[int, str]:
    """The status of a command that is sent a signal while its program runs, and what it said."""
    with Path("said").open("w") as said:
        pid = start_copy(lambda: main(words), said.fileno(), said.fileno())
    wait_for(lambda: Path("running").exists())
    send(pid, number)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), Path("said").read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("whom", ["us", "everybody"])
def test_a_request_to_end_reaches_a_program_once(folder, whom) -> None:
    words = ["record", "-o", "calls.pt", "--", "python", "train.py"]
    status, said = told(words, signal.SIGTERM, os.kill if whom == "us" else os.killpg)
    assert Path("saved").read_text() == "1", said
    assert status == 128 + signal.SIGTERM, said
    assert Path("calls.pt").exists()
    assert not is_working("train.py")
    assert list((folder / "temporary").glob("pullback*")) == []


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["record", "check"])
def test_a_program_that_a_request_ends_is_told_so(folder, command) -> None:
    Path("train.py").write_text(TRAIN.replace("signal.signal(signal.SIGTERM, hear)", ""))
    files = ["--json", "found.json"] if command == "check" else []
    words = [command, "-o", "calls.pt", *files, "--", "python", "train.py"]
    status, said = told(words, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, said
    if files:
        found = json.loads(Path("found.json").read_text())
        [missing] = found["not_checked"]
        assert "Interrupted" in found["partial"]
        assert missing["function"] == "functions:Square"
    assert "asked to end" in said
    assert "by itself first" not in said
    assert "pullback check calls.pt" in said


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_request_for_a_checkpoint_reaches_a_program_and_ends_nobody(folder, number) -> None:
    Path("train.py").write_text(TRAIN.replace("signal.SIGTERM", f"signal.{number.name}"))
    words = ["record", "-o", "calls.pt", "--", "python", "train.py"]
    status, said = told(words, number)
    assert status == 0, said
    assert Path("saved").read_text() == "1"


@pytest.mark.usefixtures("copied_programs")
def test_a_request_to_end_leaves_the_report_of_a_training(folder) -> None:
    status, said = told(["track", "--", "python", "train.py"], signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, said
    assert "report in scales.html" in said
    assert Path("scales.html").exists()


PULLBACK = [sys.executable, "-m", "pullback.cli"]
CHECK = [*PULLBACK, "check", "functions:Square", "functions:Waits", "--timeout", "300"]
OUTPUTS = ["--clauses", "linear,double,form", "--json", "out.json", "--html", "out.html"]


def test_ctrl_c_during_a_check_says_what_is_known(folder) -> None:
    words = [*CHECK, *OUTPUTS, "--junit", "out.xml"]  # in a process whose clean-ups are all its own
    pid, terminal = at_a_terminal(lambda: os.execv(words[0], words))
    wait_for(lambda: Path("waits").exists())
    # The other Function is checked meanwhile, and its folder goes.
    wait_for(lambda: len(list(Path("temporary").glob("*/answers.jsonl"))) == 1)
    started = time.monotonic()
    os.write(terminal, b"\x03")
    status, text = end_at_terminal(pid, terminal)
    # 2 s on a machine that has nothing else to do; a second test runs beside this one.
    assert time.monotonic() - started < 8
    assert status == 128 + signal.SIGINT, text
    assert "Interrupted" in text
    data = json.loads(Path("out.json").read_text())
    assert data["partial"].startswith("Interrupted: ")
    checked = {item["function"]: item for item in data["functions"]}
    assert not checked["functions:Square"]["unfinished"]
    assert checked["functions:Waits"]["unfinished"].startswith("interrupted; not run: double")
    assert [item["clause"] for item in checked["functions:Waits"]["findings"]] == ["linear"]
    assert "Partial." in Path("out.html").read_text()
    assert "partial" in Path("out.xml").read_text()
    assert not is_working("pullback")
    assert list((folder / "temporary").glob("pullback*")) == []


def test_a_request_to_end_a_check_leaves_nothing_behind(folder) -> None:
    process = subprocess.Popen([*CHECK, *OUTPUTS], stdout=subprocess.DEVNULL)
    wait_for(lambda: Path("waits").exists())
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    # Neither the worker nor what the checked Function has forked.
    assert not is_working("python")
    assert list((folder / "temporary").glob("pullback*")) == []
    assert json.loads(Path("out.json").read_text())["partial"]


def descendants(pid: int | str) -> list[str]:
    """The processes that a process has started, and those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*children, *(each for child in children for each in descendants(child))]


def test_workers_end_with_a_command_that_is_killed(folder) -> None:
    process = subprocess.Popen([*CHECK, *OUTPUTS], stdout=subprocess.DEVNULL)
    wait_for(lambda: Path("waits").exists())
    workers = descendants(process.pid)
    assert len(workers) > 1  # the process that is copied, and its copies
    process.kill()
    process.wait(30)
    wait_for(lambda: not any(map(is_alive, workers)), 10)
    assert not is_working("pullback")
