"""The tables of throughput and of peers stand in the page as they were measured."""

from pathlib import Path

import pytest
from tests.copies import run_python


@pytest.mark.parametrize("bench", ["bench_trajectory_optimise", "bench_trajectory_peers"])
def test_the_page_is_what_the_measurement_says(bench: str) -> None:
    answer = run_python("-m", f"benchmarks.{bench}", "--check", folder=Path(__file__).parents[2])
    assert answer.returncode == 0, answer.stderr
