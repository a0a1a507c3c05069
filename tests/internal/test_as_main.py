"""A program that is run here finds what it finds under Python itself."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SHOW = """
import sys
own = sys.modules["__main__"].__dict__ is globals()
spec = __spec__ and (__spec__.name, __spec__.origin)
print(globals().get("__file__"), sys.argv, sys.path, __name__, __package__, spec, own)
print(type(__loader__), globals().get("__cached__"), type(__builtins__))
"""
# As `pullback track` runs it, and `pullback text run` and a script that makes a call again.
RUN = """
import sys
beside = not sys.flags.safe_path
del sys.path[:beside]
from pullback.internal._as_main import run_as_main
run_as_main(sys.argv[1:], beside=beside)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    for place in ("package", "folder", "sub"):
        (tmp_path / place).mkdir()
    for name in ("show.py", "package/__main__.py", "folder/__main__.py", "sub/module.py"):
        (tmp_path / name).write_text(SHOW)
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "sub/link.py").symlink_to("../show.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["show.py", "a"], ["./show.py"], ["{}/show.py"], ["sub/module.py"], ["sub/../show.py"],
        ["sub/link.py"], ["folder", "a"], ["folder/"], ["archive.zip", "a"], ["package"],
        ["-m", "show", "a"], ["-m", "package"], ["-m", "sub.module"], ["-c", SHOW, "a"], ["-", "a"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_a_program_sees_what_python_would_show_it(words, flags, folder) -> None:
    if flags and "-m" in words:
        flags = []  # it would not be found
    words = [word.format(folder) if word != SHOW else word for word in words]
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": paths}
    said = [
        subprocess.run(
            [sys.executable, *flags, *before, *words], cwd=folder, env=environment, text=True,
            capture_output=True, check=True, input=SHOW,
        ).stdout
        for before in ([], ["-c", RUN])
    ]  # fmt: skip
    assert said[0] == said[1]
