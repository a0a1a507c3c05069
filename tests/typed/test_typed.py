"""A typed program of a user, under the type checkers that users have."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from pullback.conformance import CLAUSES, ClauseId

PROGRAM = Path(__file__).with_name("typed_program.py")
MISTAKES = [
    number
    for number, line in enumerate(PROGRAM.read_text().splitlines(), start=1)
    if line.endswith("# error")
]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=280, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_ids_of_clauses_are_known_to_type_checkers():
    assert get_args(ClauseId) == tuple(clause.id for clause in CLAUSES)


def test_pyright_takes_what_is_right_and_refuses_what_is_wrong(tmp_path):
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps({"include": [str(PROGRAM.parent)], "typeCheckingMode": "strict"})
    )
    found = json.loads(
        run(
            "basedpyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            "--project",
            str(settings),
        )
    )
    errors = [
        item["range"]["start"]["line"] + 1
        for item in found["generalDiagnostics"]
        if item["severity"] == "error" and item["file"] == str(PROGRAM)
    ]
    # One mistake may be told in two ways.
    assert sorted(set(errors)) == MISTAKES, found["generalDiagnostics"]


@pytest.mark.skipif(not os.environ.get("PULLBACK_FUZZ"), reason="reads all of torch: half a minute")
def test_mypy_takes_what_is_right_and_refuses_what_is_wrong(tmp_path):
    said = run("mypy", "--strict", f"--cache-dir={tmp_path}", str(PROGRAM))
    errors = [int(line) for line in re.findall(r"typed_program\.py:(\d+): error", said)]
    assert errors == MISTAKES, said


def test_the_program_runs():
    runpy.run_path(str(PROGRAM), run_name="__main__")
