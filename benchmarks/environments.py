"""Environments for the packages of others, apart from the project's own.

torch comes first and exactly; then every package pinned and without its dependencies, so that none
of them can bring another torch; then pullback itself, editable, with what its kernels need.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ROOT", "install", "make_environment"]

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"


def make_environment(name: str, requirements: Path, *first: str) -> None:
    """Make an environment, or bring it up to date.

    Arguments:
        name: its folder, beside the project.
        requirements: the pinned packages.
        first: what is installed with torch, with dependencies.
    """
    pinned = ("--no-deps", "-r", str(requirements))
    # With all that its kernels need: without numba its plain references would be measured.
    install(ROOT / name, (TORCH, *first), pinned, (TORCH, "--editable", ".[tensor]"))


def install(folder: Path, *steps: Sequence[str]) -> Path:
    """Have an environment in a folder, and pip install in it step by step; return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for wanted in steps:
        subprocess.run([*pip, *wanted], check=True, cwd=ROOT)
    return python
