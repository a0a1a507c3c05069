"""Recordings: plain data on disk, live arguments again, and nothing executed in between."""

import importlib
import os
import sys
import tempfile
import textwrap
import types
from pathlib import Path

import pytest
import torch

from pullback.errors import ProgramError, RecordingError
from pullback.recording import (
    Limits,
    Locator,
    RecordedCall,
    RecordedFunction,
    Recording,
    _spool,
    load_call,
    record_program,
)
from pullback.recording._spool import Spool
from pullback.recording.codec import Encoder

# Files ----------------------------------------------------------------------------------------


class Exploit:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_a_malicious_file_is_not_opened(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "pullback recording", "x": Exploit()}, "calls.pt")
    with pytest.raises(RecordingError, match="more than plain data"):
        Recording.load("calls.pt")
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not a zip", "not opened|cannot be read"),
        ({"a": 1}, "not a recording"),
        ({"format": "pullback recording", "version": 99}, "another version"),
        ({"format": "pullback recording", "version": 2, "program": [], "functions": [{}]}, "malf"),
        ([1], "not a recording"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, content, message) -> None:
    path = tmp_path / "calls.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(RecordingError, match=message):
        Recording.load(path)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(RecordingError, match="There is no recording"):
        Recording.load(tmp_path / "none.pt")


# Programs -------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
import helper_of_script

FACTOR = 2.0

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, pick):
        return pick(x) * FACTOR * helper_of_script.ONE
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * FACTOR, None

for step in range(3):  # a script without a guard: loading it again must not train again
    x = torch.ones(3, requires_grad=True)
    Scale.apply(x, lambda value: value + step).sum().backward()
    open("ran.txt", "a").write("x")

if __name__ == "__main__":
    Scale.apply(torch.ones(2, 2), torch.sin)
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "helper_of_script.py").write_text("ONE = 1.0\n")
    return path


@pytest.mark.usefixtures("copied_programs")
def test_a_script_is_recorded_and_found_again_without_running_it(script) -> None:
    recording, failure = record_program([sys.executable, str(script)], Limits(calls=2))
    assert failure is None
    (found,) = recording.functions
    assert found.applied == 4
    assert len(found.calls) == 2
    recording.save("calls.pt")
    again = Recording.load("calls.pt", scripts=["train.py"]).functions[0]
    function = again.load()
    args, keywords = again.arguments(0)
    assert keywords == {}
    assert function.apply(*args).tolist() == [2.0, 2.0, 2.0]
    assert args[1](torch.zeros(1)).item() == 0.0  # the lambda reads a variable of the loop
    assert load_call("calls.pt", again.name, scripts=["train.py"])[0] is function
    assert Path("ran.txt").read_text() == "xxx"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["module", "pytest", "child"])
def test_other_ways_to_run_a_program(script, how, monkeypatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which take as long as torch
    body = textwrap.dedent(SCRIPT.partition("for step")[0])
    Path("lib_of_program.py").write_text(body)
    use = (
        "from lib_of_program import *\nScale.apply(torch.ones(3, requires_grad=True), torch.cos)\n"
    )
    if how == "module":
        Path("entry.py").write_text(use)
        command = [sys.executable, "-m", "entry"]
    elif how == "pytest":
        Path("test_it.py").write_text(use.replace("Scale.apply", "def test_it():\n    Scale.apply"))
        command = ["pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    else:
        Path("entry.py").write_text(use)
        spawn = "import subprocess, sys; subprocess.run([sys.executable, 'entry.py'], check=True)"
        command = [sys.executable, "-c", spawn]
    recording, failure = record_program(command)
    assert failure is None
    assert [item.name for item in recording] == ["lib_of_program:Scale"]


@pytest.mark.usefixtures("copied_programs")
def test_a_program_that_fails_keeps_what_it_applied(script) -> None:
    script.write_text(SCRIPT + "\nraise SystemExit(7)\n")
    recording, failure = record_program([sys.executable, str(script)])
    assert "status 7" in failure.what
    assert len(recording) == 1


@pytest.mark.usefixtures("copied_programs")
def test_a_killed_program_keeps_what_it_applied(script) -> None:
    script.write_text(SCRIPT + "\nimport os\nos.kill(os.getpid(), 9)\n")
    recording, failure = record_program([sys.executable, str(script)])
    assert "SIGKILL" in failure.what
    assert len(recording.functions[0].calls) == 3 - 1


def test_a_python_that_ignores_the_environment_is_named(script) -> None:
    with pytest.raises(ProgramError, match="did not start the recorder"):
        record_program([sys.executable, "-I", "-c", "pass"])


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ProgramError, match="does not exist"):
        record_program(["no-such-program-anywhere"])


def test_a_script_that_is_not_executable_is_run_through_python(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(ProgramError, match="is not executable") as caught:
        record_program([str(script)])
    assert caught.value.mend == f"pullback check -- python {script}"


@pytest.mark.usefixtures("copied_programs")
def test_a_local_function_is_named_with_the_mend(script) -> None:
    script.write_text(
        "import torch\ndef main():\n    class Inner(torch.autograd.Function):\n"
        "        @staticmethod\n        def forward(ctx, x): return x * 2\n"
        "    Inner.apply(torch.ones(2))\nmain()\n"
    )
    recording, _ = record_program([sys.executable, str(script)])
    recording.save("calls.pt")
    given = Recording.load("calls.pt", scripts=[script])  # as if that could help
    for item in (*recording, *given):
        with pytest.raises(RecordingError, match="defined inside main"):
            item.load()


APPLIES = """
import resource, sys, torch
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return 2 * x
    @staticmethod
    def backward(ctx, g): return 2 * g
if "first" in sys.argv: Double.apply(torch.ones(2))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
class Triple(Double): pass
Triple.apply(torch.ones(3))
"""


@pytest.mark.usefixtures("copied_programs")
def test_a_temporary_folder_that_is_full_is_named(tmp_path, monkeypatch):
    script = tmp_path / "applies.py"
    script.write_text(APPLIES)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ProgramError, match="could not be written") as caught:
        record_program([sys.executable, str(script)])
    assert str(tmp_path) in str(caught.value)
    assert "TMPDIR" in str(caught.value)
    recording, _ = record_program([sys.executable, str(script), "first"])
    kept = {item.name.rpartition(":")[2]: item for item in recording}
    assert len(kept["Double"].calls) == 1
    assert "Triple" not in kept or str(tmp_path) in " ".join(kept["Triple"].reasons)


@pytest.mark.usefixtures("copied_programs")
def test_a_program_whose_folder_is_gone_runs_on(script) -> None:
    gone = "import os, sys\nsys.path.insert(0, '')\nos.mkdir('gone')\nos.chdir('gone')\n"
    script.write_text(SCRIPT.replace("for step", f"{gone}os.rmdir('../gone')\nfor step", 1))
    script.write_text(script.read_text().replace('    open("ran.txt"', "    # "))
    recording, failure = record_program([sys.executable, str(script)])
    assert failure is None
    assert [item.applied for item in recording] == [4]


def test_a_program_that_becomes_another_keeps_its_own(tmp_path, monkeypatch):
    for start in ("one", "other"):  # of one process, by `os.execv`
        monkeypatch.setattr(_spool, "_START", start)
        spool = Spool(str(tmp_path))
        spool.recorder = types.SimpleNamespace(tally=[0] * 4, records={})
        spool.renew()
    assert len([*tmp_path.glob("tally-*")]) == len([*tmp_path.glob("counts-*")]) == 2


def test_the_counts_have_their_memory_from_the_start(tmp_path):
    spool = Spool(str(tmp_path))
    spool.recorder = types.SimpleNamespace(tally=[0] * 4096, records={})
    spool.renew()
    (tally,) = tmp_path.glob("tally-*")
    assert tally.stat().st_blocks * 512 >= 4096 * 8  # a hole would end the program on a full disk


def test_a_module_named_as_a_script_may_define_what_is_handed_over(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "package_of_mine"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "functions_of_mine.py").write_text(
        "import torch\n\n\n"
        "class Applied(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, f):\n"
        "        return f(x)\n\n\n"
        "def twice():\n"
        "    return lambda x: 2 * x\n"
    )
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path))
        module = importlib.import_module("package_of_mine.functions_of_mine")
        call = Encoder(2**20).encode_call((torch.ones(2), module.twice()), {})
        recorded = RecordedFunction(Locator.of(module.Applied), calls=[RecordedCall(**call)])
        Recording(["python"], [recorded]).save(tmp_path / "calls.pt")
    for name in ("package_of_mine", "package_of_mine.functions_of_mine"):
        monkeypatch.delitem(sys.modules, name)
    [item] = Recording.load(tmp_path / "calls.pt", scripts=[folder / "functions_of_mine.py"])
    args, _ = item.arguments(0)
    assert args[1](3) == 6
