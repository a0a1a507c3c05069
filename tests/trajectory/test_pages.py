"""The table of throughput stands in the page as it was measured."""

import subprocess
import sys
from pathlib import Path


def test_the_page_is_what_the_measurement_says() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_trajectory_optimise", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
