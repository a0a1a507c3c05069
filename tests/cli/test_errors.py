"""Bad input: one clear line and the mend on stderr, no traceback, exit status 2."""

import atexit
import contextlib
import errno
import gc
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from pullback.cli import main
from pullback.cli._files import refuse_recording
from pullback.recording import Recording

MODULE = """
import torch

class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):
        return x.cumsum(dim)
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None

class NotAFunction:
    pass

VALUE = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "errors_module.py").write_text(MODULE)
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "lacks.py").write_text("import no_such_thing.deep\n")
    (tmp_path / "partly").mkdir()
    (tmp_path / "partly" / "__init__.py").write_text("")
    (tmp_path / "partly" / "functions.py").write_text("import no_such_thing.deep\n")
    (tmp_path / "open.py").write_text("import torch\nclass F(\n")
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "idle.py").write_text("import torch\n")
    (tmp_path / "text.pt").write_text("hello")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("errors_module", None)
    return tmp_path


INPUT = ["check", "errors_module:F", "--no-isolate", "--input"]
RUNS = ["--", "python", "-c", "open('ran', 'w')"]  # refused before it does
CASES = {
    "unknown package": (["check", "no_such_package"], "no package no_such_package", "pip install"),
    "unknown module": (["check", "no_such_module:F"], "no module no_such_module", "spelling"),
    "import fails": (["check", "raises_at_import:F"], "cannot be imported", "RuntimeError: no"),
    "unknown name": (["check", "errors_module:G"], "has no G", "F"),
    "not a Function": (["check", "errors_module:NotAFunction"], "not a Function", "subclass"),
    "not callable": (["check", "errors_module:VALUE"], "not a Function", "int"),
    "no name": (["check", "errors_module:"], "names no Function", "package.module:Function"),
    "does not parse": ([*INPUT, "torch.ones(3"], "does not parse", "never closed"),
    "does not evaluate": ([*INPUT, "nonsense"], "cannot be evaluated", "NameError"),
    "no tensor": ([*INPUT, "'abc', 0"], "could not be checked", "Give other inputs"),
    "a script that no Python runs": (["check", "open.py:F"], "no code that", "was never closed"),
    "a script of track": (
        ["track", "idle.py", "-x"],
        "goes after --",
        "track -- python idle.py -x",
    ),
    "a script of record": (["record", "idle.py"], "goes after --", "record -- python idle.py"),
    "a script named after python": (["record", "python_3.py", "x"], "goes", "python python_3.py x"),
    "wrong number": ([*INPUT, "torch.ones(3)"], "could not be checked", "forward"),
    "inputs of a package": (["check", "errors_module", "--input", "1"], "one Function", "--input"),
    "unknown clause": ([*INPUT, "torch.ones(3), 0", "--clauses", "nope"], "no such clause", "vmap"),
    "no clause": ([*INPUT, "torch.ones(3), 0", "--clauses", ","], "No clause is chosen", "','"),
    "unknown intent": (["check", "x", "--gradient", "maybe"], "intent is unknown", "surrogate"),
    "bad timeout": (["check", "x", "--timeout", "-1"], "not positive", "-1"),
    "timeout alone": (["check", "x", "--timeout", "1", "--no-isolate"], "process", "Leave out"),
    "bad seed": (["check", "x", "--seed", "many"], "--seed", "--help"),
    "a large seed": (["check", "--seed", str(2**63), *RUNS], "--seed", "--help"),
    "no ranks": (["check", "--ranks", "0", *RUNS], "--ranks", "--help"),
    "no clauses": (["check", "--clauses", "", *RUNS], "No clause is chosen", "''"),
    "endless mebibytes": (["record", "--max-mebibytes", "inf", *RUNS], "--max-mebibytes", "--help"),
    "an input that leaves": ([*INPUT, "exit()"], "cannot be evaluated", "SystemExit"),
    "unknown option": (["check", "--frobnicate"], "frobnicate", "--help"),
    "unknown command": (["chekc"], "chekc", "--help"),
    "target and program": (["check", "x", "--", "python", "a.py"], "both given", "one after"),
    "output without program": (["check", "x", "-o", "a.pt"], "go with a program", "-- python"),
    "script without recording": (
        ["check", "x", "--script", "a.py"],
        "with a recording",
        "calls.pt",
    ),
    "trust without recording": (["check", "--trust"], "with a recording", "calls.pt"),
    "not a seed": (["check", "x", "--seed", "abc"], "--seed", "See: pullback check --help"),
    "import lacks": (["check", "lacks"], "lacks cannot be imported", "pip install no_such_thing"),
    "a module lacks": (["check", "partly"], "No Function was found", "no_such_thing"),
    "no such script": (["check", "text.pt", "--script", "no.py"], "no script", "spelling"),
    "no function in a script": (["check", "fails.py:F"], "fails.py has no F", "spelling"),
    "a script that is not there": (["check", "no.py:F"], "no file no.py", "spelling"),
    "no recording": (["check", "missing.pt"], "no recording at missing.pt", "pullback record"),
    "unreadable recording": (["check", "text.pt"], "text.pt", "pullback record"),
    "no such script of verify": (
        ["verify", "no.py:f", "-r", "torch:abs", "-i", "torch.ones(3)"],
        "no script",
        "spelling",
    ),
    "one file for two": (["check", "--html", "a", "--json", "./a"], "two outputs", "two files"),
    "one file of track": (
        ["track", "--html", "a", "--jsonl", "a", "--", "python", "idle.py"],
        "two outputs",
        "Name",
    ),
    "no program": (["record", "-o", "a.pt"], "no program to record", "-- python train.py"),
    "empty program": (["check", "--"], "No program", "-- python train.py"),
    "program missing": (["check", "--", "no-such-program"], "does not exist", "PATH"),
    "script as program": (["check", "--", "missing.py"], "does not exist", "python missing.py"),
    "a script with a space": (
        ["check", "--", "no such.py"],
        "does not exist",
        "python 'no such.py'",
    ),
    "inputs of verify": (
        ["verify", "torch:abs", "-r", "torch:abs", "-i", "torch.ones(3"],
        "does not parse",
        "never",
    ),
    "program fails": (["check", "--", "python", "fails.py"], "status 3", "by itself first"),
    "nothing applied": (["check", "--", "python", "idle.py"], "applied no custom", "--eager"),
    "html nowhere": (["check", "x", "--html", "no/where.html"], "folder", "mkdir"),
    "json nowhere": (["check", "x", "--json", "no/where.json"], "folder", "mkdir"),
}


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_one_line_and_the_mend(case, capfd) -> None:
    words, what, mend = CASES[case]
    assert main(words) == 2
    captured = capfd.readouterr()
    first, *rest = captured.err[captured.err.index("pullback: ") :].splitlines()
    assert what in first
    assert mend in "\n".join([first, *rest])
    assert "Traceback" not in captured.err + captured.out
    assert not Path("ran").exists()


def test_a_module_that_cannot_be_imported_is_named_with_what_it_lacks(capfd) -> None:
    assert main(["check", "partly"]) == 2
    said = capfd.readouterr().err
    assert "partly.functions: ModuleNotFoundError: No module named 'no_such_thing'" in said
    assert "functions.py)" in said
    assert main(["check", "lacks"]) == 2
    assert "above" not in capfd.readouterr().err


@pytest.mark.parametrize("words", [["record"], ["track", "run"]])
def test_help_shows_where_the_program_goes(words, capfd) -> None:
    assert main([*words, "--help"]) == 0
    assert "[OPTIONS] -- PROGRAM [ARGUMENTS]..." in capfd.readouterr().out


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_record_ends_with_the_status_of_the_program(program, status, capfd) -> None:
    assert main(["record", "-o", "a.pt", "--", "python", "-c", program]) == status
    assert "by itself first" in capfd.readouterr().err


def test_a_recording_that_cannot_be_written(folder, capfd) -> None:
    (folder / "apply.py").write_text(
        "import torch\nfrom errors_module import F\nF.apply(torch.ones(2, requires_grad=True), 0)\n"
    )
    assert main(["record", "-o", "no/a.pt", "--", "python", "apply.py"]) == 2
    assert "folder of no/a.pt does not exist" in capfd.readouterr().err


@pytest.mark.parametrize("name", [("os", "system"), ("cProfile", "run"), ("evil", "F")])
def test_a_recording_that_names_what_runs_code_is_refused(folder, name, capfd) -> None:
    (folder / "evil.py").write_text(MODULE + "\nopen('pwned', 'w')\n")
    locator = {"module": name[0], "qualname": name[1], "file": str(folder / "evil.py")}
    call = {"arguments": ["open('pwned', 'w')"], "keywords": [], "tensors": []}
    item = {"locator": locator | {"completed": False}, "paths": [str(folder)], "script": ""}
    item |= {"applied": 1, "reasons": {}, "calls": [call]}
    data = {"format": "pullback recording", "version": 2, "program": [], "functions": [item]}
    torch.save(data, "calls.pt")
    sys.path.remove(str(folder))
    assert main(["check", "calls.pt", "--no-isolate"]) == 3
    assert f"not checked {name[0]}:{name[1]}" in capfd.readouterr().out
    assert not (folder / "pwned").exists()
    assert str(folder) not in sys.path


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(Exception, match="no_such_package"):
        main(["check", "no_such_package", "--debug"])


def test_the_console_script_gives_the_status(folder) -> None:
    command = [str(Path(sys.executable).with_name("pullback")), "check", "no_such_package"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pullback: There is no package")
    assert "Traceback" not in done.stderr


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from pullback.cli import main; status = main(['--help']);"
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "check" in done.stdout


def test_version_shows_the_environment(capsys) -> None:
    assert main(["--version"]) == 0
    out = capsys.readouterr().out
    for part in ("pullback", "python", "torch 2", "platform"):
        assert part in out


@pytest.mark.parametrize(
    "words", [["check", "somewhere:F"], ["record", "--", "p.py"], ["track", "--", "p.py"]]
)
def test_a_command_without_torch_says_what_to_install(words, tmp_path):
    (tmp_path / "p.py").write_text("print('ran')")
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pullback.cli import main\n"
        f"sys.exit(main({words!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'pullback[tensor]'" in done.stderr
    assert "fault of pullback" not in done.stderr


PLAIN = ["check", "torch:abs", "--input", "torch.ones(3)", "--clauses", "linear", "--no-isolate"]


def test_without_an_output_the_status_is_known(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(PLAIN) == 0
    sys.stdout.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_an_output_that_is_full_is_no_fault_of_ours(monkeypatch, capsys) -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(PLAIN) == 2
        sys.stdout.close()
    assert capsys.readouterr().err.startswith("pullback: No space left on device")


@pytest.mark.parametrize(
    "words",
    [["check", "secret.py:F"], ["verify", "secret.py:f", "-r", "torch:abs", "-i", "torch.ones(3)"],
     ["track", "--", "python", "secret.py"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_script_that_cannot_be_read_is_no_fault_of_ours(words, folder, capfd, monkeypatch):
    (folder / "secret.py").write_text(MODULE)

    def refused(path, *_, opened=io.open, **__):
        if os.fspath(path).endswith("secret.py"):  # as it is for whoever may not read it
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return opened(path, *_, **__)

    monkeypatch.setattr(io, "open", refused)
    assert main(words) == 2
    said = capfd.readouterr().err
    assert "secret.py" in said
    assert "Permission denied" in said
    assert "fault" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "text",
    ["import torch\n", '{"name": "my-package", "version": "1"}', "<html><title>Mine</title></html>",
     '<?xml version="1.0"?>\n<testsuites name="mine">', '{"version": "2.1.0", "runs": []}'],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--sarif"])
def test_what_is_not_ours_is_not_overwritten(option, text, tmp_path, capsys) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert main([*PLAIN, option, str(path)]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert path.read_text() == text


def test_what_is_ours_is_written_anew(tmp_path) -> None:
    words = []
    for option in ("--json", "--html", "--junit", "--sarif"):
        (tmp_path / option[2:]).write_text("\n")
        words += [option, str(tmp_path / option[2:])]
    for seed in "12":
        assert main([*PLAIN, *words, "--seed", seed]) == 0
    assert '"seed": 2' in (tmp_path / "json").read_text()


def test_a_file_of_torch_that_is_no_recording_is_not_overwritten() -> None:
    Path(".pullback").mkdir()
    torch.save({"weight": torch.ones(2)}, "model.pt")
    torch.save({"weight": torch.ones(2)}, ".pullback/calls.pt")
    for words in (["record", "-o", "model.pt"], ["check", "-o", "model.pt"], ["check"]):
        assert main([*words, "--", "python", "-c", "open('ran', 'w')"]) == 2
        assert not Path("ran").exists()
    Recording().save("calls.pt")
    refuse_recording(Path("calls.pt"))


def test_what_triton_holds_is_not_told_as_leaked() -> None:
    pytest.importorskip("triton")
    code = "import pullback.cli, triton"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("loaded", [True, False], ids=["triton", "no triton"])
def test_a_command_ends_soon_and_no_line_of_triton_follows(monkeypatch, loaded) -> None:
    ends, frozen = [], []
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    assert main(["--version"]) == 0
    if loaded:
        monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    else:
        monkeypatch.delitem(sys.modules, "triton", raising=False)
    for end in ends:
        end()
    assert frozen == [True] * (not loaded)
