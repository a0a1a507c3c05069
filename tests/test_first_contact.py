"""The first minutes with pullback, as a shell sees them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.copies import run_python

import pullback
from pullback.cli import main

ROOMS_OF_TENSORS = [
    "compat.curobo",
    "compat.torchlogix",
    "compat.unit_scaling",
    "conformance",
    "gradients",
    "recording",
    "tape.tensor",
    "tensor",
    "tracking",
    "trajectory",
]
OTHER_ROOMS = ["cli", "compat", "compat.afnio", "errors", "report", "tape", "text"]
# Python imports it when it starts; so a package is missing for a command as it is for an import.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture
def without(tmp_path):
    """An environment, for a subprocess, in which a package is not installed."""

    def make(package: str) -> dict[str, str]:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(WITHOUT.format(package=package))
        return {**os.environ, "PYTHONPATH": str(folder)}

    return make


def run(words, folder: Path, environment=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("package", ["torch", "numpy"])
def test_each_room_says_what_to_install(package, without, tmp_path):
    program = f"""
    import importlib
    for room in {[room for room in ROOMS_OF_TENSORS if package == "torch" or "tape" not in room]}:
        try:
            importlib.import_module(f"pullback.{{room}}")
        except ImportError as error:
            print(room, error)
            assert type(error).__name__ == "MissingExtraError", (room, error)
            assert str(error).endswith("pip install 'pullback[tensor]'"), (room, error)
            assert "needs the package {package}, which is not installed" in str(error)
        else:
            raise SystemExit(f"{{room}} was imported")
    for room in {OTHER_ROOMS}:
        importlib.import_module(f"pullback.{{room}}")
    """
    done = run(["-c", textwrap.dedent(program)], tmp_path, without(package))
    assert done.returncode == 0, done.stdout + done.stderr


COMMANDS = [
    ["check"],
    ["check", "somewhere:F"],
    ["check", "calls.pt"],
    ["check", "--", "python", "p.py"],
    ["record", "--", "python", "p.py"],
    ["track", "--", "python", "p.py"],
    ["track", "diff", "a.jsonl", "b.jsonl"],
]
RUN_EACH = """
import contextlib, io, json, sys
from pullback.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@pytest.mark.parametrize("package", ["torch", "numpy"])
def test_each_command_says_what_to_install(package, without, tmp_path):
    (tmp_path / "p.py").write_text("print('ran')")
    environment = without(package)
    one = run(["-m", "pullback", *COMMANDS[0]], tmp_path, environment)
    assert one.returncode == 2
    done = run(["-c", RUN_EACH, json.dumps(COMMANDS)], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers[0] == [one.returncode, one.stdout, one.stderr]
    for words, (status, printed, told) in zip(COMMANDS, answers, strict=True):
        assert status == 2, words
        lines = told.splitlines()
        assert lines[0].endswith(f"needs the package {package}, which is not installed."), words
        assert lines[1:] == ["  mend:     pip install 'pullback[tensor]'"], words
        assert printed == "", words


def test_pytest_says_what_to_install(without, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:jaxtyping", "--pullback"]
    environment = without("torch") | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run([*words, "-p", "pullback.pytest_plugin"], tmp_path, environment)
    assert "pip install 'pullback[tensor]'" in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


PACKAGE_FUNCTION = "import torch\nclass F(torch.autograd.Function): pass\n"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["train.py"], "pullback check -- python train.py"),
        (["python", "train.py", "--lr", "1"], "pullback check -- python train.py --lr 1"),
        (["pkg/mod.py:F"], "pullback check pkg.mod:F"),
        (["pkg/mod.py"], "pullback check pkg.mod"),
        (["pkg/__init__.py"], "pullback check pkg"),
        (["pkg/inner/deep.py:F"], "pullback check pkg.inner.deep:F"),
        (["pkg/"], "pullback check pkg"),
        (["./pkg/inner"], "pullback check pkg.inner"),
        (["src/other/mod.py:F"], "cd {folder}/src && pullback check other.mod:F"),
        (["gone.py:F"], "Check the spelling."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_word_meant_otherwise_is_answered_with_what_to_type(
    words, typed, tmp_path, monkeypatch, capsys
):
    for file in ("pkg/mod.py", "pkg/inner/deep.py", "src/other/mod.py"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PACKAGE_FUNCTION)
        (path.parent / "__init__.py").touch()
    (tmp_path / "train.py").write_text(PACKAGE_FUNCTION)
    monkeypatch.chdir(tmp_path)
    assert main(["check", *words]) == 2
    told = capsys.readouterr().err
    assert f"  mend:     {typed.format(folder=tmp_path)}" in told.splitlines()
    if words == ["train.py"]:
        assert "train.py:F, or a program after --" in told


def test_the_module_is_the_command(tmp_path):
    done = run(["-m", "pullback", "--version"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"pullback {pullback.__version__}\n")


def test_the_version_is_known_and_costs_no_import_of_torch(tmp_path):
    program = "import sys, pullback; print(pullback.__version__, 'torch' in sys.modules)"
    done = run(["-c", program], tmp_path)
    assert done.stdout.split() == [pullback.__version__, "False"]


def test_completion_offers_what_is_exported(tmp_path):
    # In a process of its own: modules of a room appear on it once something has imported them.
    program = """
    import importlib, pkgutil, pullback, pullback.cli
    found = [module.name for module in pkgutil.iter_modules(pullback.__path__) if module.ispkg]
    inside = {"cli", "internal", "pytest_plugin"}
    rooms = [room for room in found if room not in inside and room != "compat"]
    for name in ("pullback", *(f"pullback.{room}" for room in rooms)):
        module = importlib.import_module(name)
        offered = {word for word in dir(module) if not word.startswith("_")}
        assert offered == set(module.__all__), (name, offered ^ set(module.__all__))
    assert "__version__" in dir(pullback)
    """
    done = run(["-c", textwrap.dedent(program)], tmp_path)
    assert done.returncode == 0, done.stderr


# As IPython and Python's own prompt from 3.13 on do: there is no file, and linecache has the text.
PROMPT = """
import linecache, sys
main = sys.modules["__main__"]
del main.__file__

def cell(number, text):
    name = f"<python-input-{number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), vars(main))

cell(0, '''
import math
import pullback, torch
from torch.autograd import Function
SCALE = 2.0
''')
cell(1, '''
class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.square = x * x
        return x * ctx.square * SCALE / math.sqrt(4.0)

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.square * cotangent
''')
cell(2, 'finding = pullback.check(Cube, torch.randn(3), clauses="double")["double"]')
print(finding.verdict.value, finding.source)
open("repro.py", "w").write(finding.repro)
"""


def test_what_is_defined_at_a_prompt_has_a_source_and_a_script(tmp_path):
    (tmp_path / "prompt.py").write_text(PROMPT)
    done = run_python("prompt.py", folder=tmp_path)
    assert done.stdout.split() == ["broken", "<python-input-1>:2"], done.stderr
    shown = run_python("repro.py", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "double backward    0.0" in shown.stdout
