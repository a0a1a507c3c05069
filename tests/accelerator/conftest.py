"""Programs on a machine with an accelerator."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.accelerator import environment

# What it imports it imports once. A copy of a process that has not used the device may use it.
SERVER = """
import json, os, sys
from tests.copies import interpret, start_copy
import torch._dynamo
import pullback.conformance, pullback.tracking.formats, pullback.verification

for line in sys.stdin:
    code, folder, output = json.loads(line)
    def work():
        os.chdir(folder)
        interpret(["-c", code])
    with open(output, "wb") as file:
        pid = start_copy(work, file.fileno(), file.fileno())
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def run_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Path], str]]:
    """Runs code as a program that has a second device, in a folder; returns what it prints.

    What fails there fails here.
    """
    output = tmp_path_factory.mktemp("there") / "output"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None

        def run(code: str, folder: Path) -> str:
            print(json.dumps([code, str(folder), str(output)]), file=server.stdin, flush=True)
            assert server.stdout.readline().strip() == "0", output.read_text()
            return output.read_text()

        yield run
        server.stdin.close()
