"""Workers are copies of one process that has imported torch, and as good as fresh ones."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.processes import close_in_copies, is_alive, open_pipes, wait_for

from pullback.internal import _workers
from pullback.internal._processes import STOP, Stopped, start_copy, start_module, supervise
from pullback.internal._workers import prepare_worker, start_worker

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each worker is fresh")

MODULE = """
import json, os, random, subprocess, sys, tempfile, threading, time
from pathlib import Path

def main(folder):
    if (folder / "die").exists():
        os.kill(os.getpid(), 9)
    if (folder / "kill").exists() or (folder / "kill later").exists():
        if (folder / "kill later").exists():
            time.sleep(1)  # the server has told by then that there is a copy
        if "internal._workers" in Path(f"/proc/{os.getppid()}/cmdline").read_text():
            os.kill(os.getppid(), 9)
            time.sleep(30)
    if (folder / "leave").exists():
        sys.exit(7)
    said = {
        "parent": os.getppid(), "group": os.getpgid(0) == os.getpid(), "path": sys.path,
        "current": os.getcwd(), "temporary": tempfile.gettempdir(), "argv": len(sys.argv),
        "threads": threading.active_count(), "torch": "torch" in sys.modules,
        "variable": os.environ.get("PULLBACK_TEST_VARIABLE"), "input": sys.stdin.read(),
        "beside": "beside" in sys.modules, "warmed": globals().get("warmed", ""),
    }
    import beside
    print("noise")
    if (folder / "start").exists():
        said["started"] = subprocess.Popen(["sleep", "60"]).pid
    (folder / "part").write_text(json.dumps(said))
    (folder / "part").rename(folder / "said.json")
    if (folder / "wait").exists():
        time.sleep(60)

def warm():
    for part in "ab":
        globals()["warmed"] = globals().get("warmed", "") + part
        yield part
    raise OSError("what cannot be loaded is loaded by each worker")

if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "worker_of_a_test.py").write_text(MODULE)
    (tmp_path / "beside.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    _workers._servers.clear()
    yield "worker_of_a_test"
    _workers._servers.clear()


def run(module: str, folder: Path, *flags: str, loaded: str = "") -> tuple[int, dict]:
    folder.mkdir()
    for flag in flags:
        (folder / flag).touch()
    status, _ = supervise(start_worker(module, folder, loaded=loaded), lambda: "")
    said = folder / "said.json"
    return status, json.loads(said.read_text()) if said.exists() else {}


@linux
def test_a_copy_is_as_a_fresh_process(module, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (run(module, tmp_path / name) for name in ("one", "two"))
    assert first[0] == second[0] == 0
    assert first[1]["parent"] == second[1]["parent"] != os.getpid()
    assert second[1]["group"]
    assert second[1]["path"] == [entry or os.getcwd() for entry in sys.path]
    assert second[1]["current"] == str(tmp_path)
    assert second[1]["temporary"] == str(tmp_path / "two" / "temporary")
    assert second[1]["threads"] == 1
    assert second[1]["input"] == ""
    assert not second[1]["beside"]
    assert capfd.readouterr().out == ""


@linux
def test_what_the_first_call_loads_is_loaded_once(module, tmp_path) -> None:
    cold = run(module, tmp_path / "cold", loaded="b")
    assert cold[1]["warmed"] == ""  # nobody has asked for it
    prepare_worker(module)
    assert run(module, tmp_path / "half", loaded="a")[1]["warmed"] in ("a", "ab")
    assert run(module, tmp_path / "warm", loaded="b")[1]["warmed"] == "ab"
    assert run(module, tmp_path / "again")[1]["warmed"] == "ab"


ORIGINAL = """
import sys
from pathlib import Path

import torch

from pullback.internal._processes import supervise
from pullback.internal._workers import prepare_worker, start_worker

sys.path.insert(0, sys.argv[1])
prepare_worker("worker_of_a_test", as_copy=True)
supervise(start_worker("worker_of_a_test", Path(sys.argv[2]), loaded="b"), lambda: "")
"""


@linux
def test_workers_may_be_copies_of_a_command_that_has_imported_torch(module, tmp_path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    words = [sys.executable, "-c", ORIGINAL, str(tmp_path), str(folder)]
    done = subprocess.run(words, input="typed", capture_output=True, text=True, check=True)
    said = json.loads((folder / "said.json").read_text())
    assert (said["torch"], said["threads"], said["argv"], said["input"]) == (True, 1, 1, "")
    assert (said["warmed"], said["beside"], said["group"]) == ("ab", False, True)
    assert done.stdout == ""
    assert not is_alive(said["parent"])


@linux
def test_other_variables_have_another_server(module, tmp_path, monkeypatch) -> None:
    _, first = run(module, tmp_path / "one")
    monkeypatch.setenv("PULLBACK_TEST_VARIABLE", "5")
    _, second = run(module, tmp_path / "two")
    assert (first["variable"], second["variable"]) == (None, "5")
    assert first["parent"] != second["parent"]
    assert not is_alive(first["parent"])


@linux
@pytest.mark.parametrize(
    ("flag", "status"), [("die", -9), ("leave", 7), ("kill", -9), ("kill later", -9)]
)
def test_what_ends_a_copy_is_told(flag, status, module, tmp_path) -> None:
    assert run(module, tmp_path / "one", flag)[0] == status
    assert run(module, tmp_path / "two")[0] == 0


@linux
def test_a_server_that_ended_is_replaced(module, tmp_path) -> None:
    _, first = run(module, tmp_path / "one")
    os.kill(first["parent"], signal.SIGKILL)
    status, second = run(module, tmp_path / "two")
    assert status == 0
    assert second["parent"] != first["parent"]


@linux
def test_a_request_to_stop_is_heard_while_the_server_begins(module, tmp_path) -> None:
    prepare_worker("pullback.conformance._worker", True)
    STOP.set()
    try:
        with pytest.raises(Stopped):
            start_worker(module, tmp_path)
    finally:
        STOP.clear()
    assert run(module, tmp_path / "later")[0] == 0


@linux
def test_a_module_that_cannot_be_imported_is_run_as_it_was(tmp_path, module) -> None:
    status, _ = supervise(start_worker("no_such_worker_module", tmp_path), lambda: "")
    assert status == 1
    assert "No module named" in (tmp_path / "errors.txt").read_text()
    assert run(module, tmp_path / "later")[0] == 0


@linux
def test_a_copy_of_this_process_has_a_server_of_its_own(module, tmp_path) -> None:
    _, first = run(module, tmp_path / "one")
    pid = os.fork()
    if pid == 0:
        try:
            status, second = run(module, tmp_path / "two")
            os._exit(0 if status == 0 and second["parent"] != first["parent"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert run(module, tmp_path / "three")[1]["parent"] == first["parent"]


PROGRAM = """
import sys
sys.path.insert(0, {path!r})
from pathlib import Path
from pullback.internal._processes import supervise
from pullback.internal._workers import start_worker
folder = Path({path!r})
(folder / "wait").touch()
supervise(start_worker("worker_of_a_test", folder), lambda: "")
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_and_copies_end_with_the_program(number, module, tmp_path) -> None:
    program = textwrap.dedent(PROGRAM.format(path=str(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_for((tmp_path / "said.json").exists, 60)

        server = json.loads((tmp_path / "said.json").read_text())["parent"]
        copies = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        assert len(copies) == 1
        process.send_signal(number)
    wait_for(lambda: not any(is_alive(pid) for pid in [server, *copies]), 10)


@linux
def test_what_a_copy_has_started_ends_with_its_server(module, tmp_path) -> None:
    (tmp_path / "wait").touch()
    (tmp_path / "start").touch()
    copy = start_worker(module, tmp_path)
    wait_for((tmp_path / "said.json").exists, 60)
    said = json.loads((tmp_path / "said.json").read_text())
    _workers._servers[0].close()
    wait_for(lambda: not any(map(is_alive, [copy.pid, said["parent"], said["started"]])), 10)


@linux
def test_a_program_that_waits_for_any_child_may_get_ours(module, tmp_path) -> None:
    (tmp_path / "leave").touch()
    child = start_module(module, tmp_path)
    os.waitpid(child.pid, 0)
    supervise(child, lambda: "")


@linux
def test_nobody_is_killed_by_a_number_that_may_be_given_again(monkeypatch) -> None:
    child = start_copy(lambda: None)
    os.waitpid(child.pid, 0)
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("another group may have the number"))
    assert child.has_ended()
    assert child.end() == 0


@linux
def test_a_copy_holds_no_pipe_that_the_end_of_this_process_is_heard_by() -> None:
    reader, writer = os.pipe()

    def work() -> None:
        close_in_copies([writer])
        start_copy(lambda: time.sleep(30))
        os.close(writer)
        assert os.read(reader, 1) == b""

    assert {reader, writer} <= {*open_pipes()}
    copy = start_copy(work)
    os.close(writer)
    assert supervise(copy, lambda: "") == (0, "")
    os.close(reader)


@linux
@pytest.mark.parametrize("lasting", [True, False])
def test_the_kernel_ends_a_copy_with_the_thread_that_made_it_unless_it_is_to_last(lasting) -> None:
    children = []

    def start() -> None:
        children.append(start_copy(lambda: time.sleep(30), lasting=lasting))
        time.sleep(0.3)  # until it has asked the kernel

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    until = time.monotonic() + (0.1 if lasting else 10)  # a busy machine takes its time
    while time.monotonic() < until and not children[0].has_ended():
        time.sleep(0.01)
    assert children[0].has_ended() is not lasting
    children[0].end()
