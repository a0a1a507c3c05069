"""`python -m benchmarks.programs.setup`: make `.programs-venv` for the programs of others.

torch comes first and exactly; then every package pinned and without its dependencies, so that none
of them can bring another torch; then pullback itself, editable.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".programs-venv"


def pip(*arguments: str) -> None:
    """Run pip of the environment."""
    python = VENV / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True, cwd=ROOT)


def main() -> None:
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip("torch==2.13.0")
    pip("--no-deps", "-r", str(Path(__file__).with_name("requirements.txt")))
    pip("--no-deps", "--editable", ".")
    print(f"{VENV.relative_to(ROOT)} is ready: .programs-venv/bin/python -m benchmarks.programs")


if __name__ == "__main__":
    main()
