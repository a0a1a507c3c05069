"""Programs on a machine with an accelerator: one process imports torch with its device for all."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.accelerator import of_the_checker, of_the_rooms

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")

RunThere = Callable[[str, Path], str]
PROGRAMS = {
    "check beside it": of_the_checker.BESIDE,
    "check on it": of_the_checker.ON_IT,
    "check by default": of_the_checker.BY_DEFAULT,
    "check of indices": of_the_checker.INDICES,
    "check apart": of_the_checker.ISOLATED,
    "beside it": of_the_rooms.BESIDE,
    "on it": of_the_rooms.ON_IT,
}
CHECKS_INSIDE = """
import os
from pullback.cli import main

os.environ["COLUMNS"] = "100"
words = "check --inside --clauses derivative --gradient exact -- python train.py"
raise SystemExit(main(words.split()))
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str, run_there: RunThere, tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text("import torch\n\n\nclass Named(torch.Tensor):\n    pass\n")
    run_there(PROGRAMS[name] + "os._exit(0)", tmp_path)  # no thread of it ends badly


def test_a_program_that_used_it_is_checked_inside(run_there: RunThere, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(of_the_rooms.TRAINS)
    out = run_there(CHECKS_INSIDE, tmp_path)
    assert "1 Function checked, ok" in out, out
