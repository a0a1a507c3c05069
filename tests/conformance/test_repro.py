"""The repro of a finding is a short standalone script that shows the fault."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzzing import spread
from tests.specimens.wrong import calculus, calls, machines, memory

from pullback.conformance import Verdict, check

WRONG = [*calculus.SPECIMENS, *memory.SPECIMENS, *calls.SPECIMENS, *machines.SPECIMENS]
COMPILED = [specimen for specimen in WRONG if specimen.clause == "compile"]
OTHERS = [specimen for specimen in WRONG if specimen.clause != "compile"]
ROOT = Path(__file__).parents[2]


def finding_of(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=specimen.clause
    )
    return report[specimen.clause]


@pytest.mark.parametrize(
    "specimen", [*OTHERS, *spread(COMPILED, 2)], ids=lambda specimen: specimen.id
)
@pytest.mark.filterwarnings("ignore")
def test_a_repro_is_short_and_runs(specimen):
    finding = finding_of(specimen)
    if finding.verdict is not Verdict.BROKEN:
        pytest.skip(f"{finding.verdict.value}: the error itself shows it")
    assert 0 < len(finding.repro.splitlines()) <= 15
    if specimen.clause == "compile":  # Dynamo wants a module, not a text
        assert run_alone(finding.repro).strip()
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(finding.repro, "repro.py", "exec"), {"__name__": "repro"})
    assert printed.getvalue().strip()


def run_alone(script):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


def numbers(line):
    return [float(text) for text in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)]


@pytest.mark.parametrize(
    ("function", "clause"),
    [
        (calculus.MissingFactor, "derivative"),
        (calculus.SavedIntermediate, "double"),
        (memory.ScalesCotangent, "cotangent"),
        (calls.SavedOnTheClass, "state"),
    ],
)
def test_a_repro_shows_the_fault_in_a_process_of_its_own(function, clause):
    (specimen,) = [s for s in WRONG if s.function is function and s.clause == clause]
    lines = run_alone(finding_of(specimen).repro).strip().splitlines()
    if clause == "cotangent":
        assert numbers(lines[-1])[:3] == [2.0, 2.0, 2.0]
    elif clause == "once":
        assert numbers(lines[-1])[1:4] == [2.0, 2.0, 2.0]  # the exponential's own part is missing
    else:
        first, second = (numbers(line)[0] for line in lines[:2])
        assert first != pytest.approx(second, rel=1e-3)


def test_what_cannot_be_imported_has_no_repro():
    class Local(calculus.MissingFactor):
        pass

    report = check(Local, *calculus.SPECIMENS[0].inputs(), clauses="derivative")
    assert report["derivative"].verdict is Verdict.BROKEN
    assert report["derivative"].repro == ""
