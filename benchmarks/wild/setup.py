"""`python -m benchmarks.wild.setup`: make `.benchmark-venv` for the survey."""

from pathlib import Path

from benchmarks.environments import make_environment

if __name__ == "__main__":
    make_environment(
        ".benchmark-venv", Path(__file__).with_name("requirements.txt"), "numpy", "scipy"
    )
    print(".benchmark-venv is ready: .benchmark-venv/bin/python -m benchmarks.wild")
