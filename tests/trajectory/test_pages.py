"""The tables of throughput and of peers stand in the page as they were measured."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("bench", ["bench_trajectory_optimise", "bench_trajectory_peers"])
def test_the_page_is_what_the_measurement_says(bench: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{bench}", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
