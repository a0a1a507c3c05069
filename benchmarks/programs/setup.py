"""`python -m benchmarks.programs.setup`: make `.programs-venv` for the programs of others."""

from pathlib import Path

from benchmarks.environments import make_environment

if __name__ == "__main__":
    make_environment(".programs-venv", Path(__file__).with_name("requirements.txt"))
    print(".programs-venv is ready: .programs-venv/bin/python -m benchmarks.programs")
