"""Commands where folders, terminals and file systems are not as one is used to."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.copies import run_python

from pullback.cli import main

PROGRAM = """
import torch

class Third(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 3

open("ran", "w").close()
Third.apply(torch.ones(2, requires_grad=True)).sum().backward()
"""
CHECK = ["check", "--clauses", "derivative"]


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("copied_programs")
@pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines", b"red\x1b[31m"])
def test_a_folder_of_any_name_is_recorded_and_the_line_printed_works(
    name, program, capfd, monkeypatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(program) + b"/" + name))
    folder.mkdir()
    Path("train.py").rename(folder / "train.py")
    monkeypatch.chdir(folder)
    files = ["--json", "found.json", "--html", "h.html", "--junit", "j.xml", "--sarif", "s.sarif"]
    assert main([*CHECK, *files, "--", "python", "train.py"]) == 1
    said = capfd.readouterr().out
    assert "\x1b" not in said
    assert len(json.loads(Path("found.json").read_text())["functions"]) == 1
    [rerun] = [line for line in said.splitlines() if "rerun: " in line]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {rerun.partition('rerun: pullback ')[2]}"],
        capture_output=True, check=True,
    ).stdout.split(b"\0")  # fmt: skip
    assert main(list(map(os.fsdecode, words[:-1]))) == 1
    assert "1 Function checked, 1 broken" in capfd.readouterr().out


# As PYTHONIOENCODING=ascii has it, which Python reads when it starts.
ASCII = """
import sys

sys.stdout.reconfigure(encoding="ascii")
sys.stderr.reconfigure(encoding="ascii", errors="backslashreplace")
from pullback.cli import main

raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("copied_programs")
def test_an_output_of_ascii_takes_every_name(program) -> None:
    folder = program / "äußere ✓"
    folder.mkdir()
    Path("train.py").rename(folder / "train.py")
    words = [*CHECK, "--json", "-", "--", "python", "train.py"]
    done = run_python("-c", ASCII, *words, folder=folder)
    assert done.returncode == 1, done.stderr
    assert "äußere ✓" in json.loads(done.stdout)["functions"][0]["function"]
    assert "fault of pullback" not in done.stderr


@pytest.mark.usefixtures("copied_programs")
def test_where_no_folder_can_be_made_is_told_before_the_program_runs(
    program, capfd, monkeypatch
) -> None:
    def refused(self, *args, **kwargs) -> None:
        raise PermissionError(1, os.strerror(1), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    assert main([*CHECK, "--", "python", "train.py"]) == 2
    assert not Path("ran").exists()
    assert "Operation not permitted" in capfd.readouterr().err


@pytest.mark.usefixtures("copied_programs")
def test_the_longest_name_that_a_file_can_have(program) -> None:
    name = "\N{WATER WAVE}" * 61 + ".json"  # 249 bytes
    assert main([*CHECK, "--json", name, "--", "python", "train.py"]) == 1
    assert json.loads(Path(name).read_text())["functions"]


@pytest.mark.usefixtures("copied_programs")
def test_a_class_of_any_name_is_recorded(program, capfd) -> None:
    made = 'kind = type("two\\nlines\\x1b", (Third,), {"__module__": 7})\n'
    made += "kind.apply(torch.ones(2, requires_grad=True))\n"
    Path("train.py").write_text(PROGRAM + made)
    assert main([*CHECK, "--json", "found.json", "--", "python", "train.py"]) == 1
    assert "\x1b" not in capfd.readouterr().out
    found = json.loads(Path("found.json").read_text())
    named = [item["function"] for item in (*found["functions"], *found["not_checked"])]
    assert sorted(name.rpartition(":")[2] for name in named) == ["Third", r"two\nlines\x1b"]


def test_a_link_to_itself_is_no_place_for_results(program, capfd) -> None:
    Path("loop").symlink_to("loop")
    for option in ("-o", "--html", "--json"):
        assert main([*CHECK, option, "loop", "--", "python", "train.py"]) == 2
        assert "loop cannot be written" in capfd.readouterr().err
    assert not Path("ran").exists()
