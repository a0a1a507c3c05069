"""`python -m benchmarks.release [--full]`: build what would be published, and try it as a stranger.

Builds the source archive and from it the wheel into dist/, has both looked at by twine and
check-wheel-contents, installs the wheel into a new environment and asks it for its version, for
what it says without torch, and for one check. torch is lent by the environment that runs this;
with `--full` the extra is installed as well, as a user would.

`--print-version` prints the version of pyproject.toml and does nothing else.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
FUNCTION = """
import torch

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.square = x * x
        return x * ctx.square

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.square * cotangent
"""


def version() -> str:
    """The version that pyproject.toml declares."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["version"]


def run(*words: object, expect: int = 0, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it printed; end when its status is another one."""
    command = [str(word) for word in words]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode != expect:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    print(f"  {time.monotonic() - started:5.1f} s  {' '.join(Path(w).name for w in command[:5])}")
    return said


def clean_environment() -> dict[str, str]:
    """The environment without what would let the checkout be imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def build() -> Path:
    """Build both archives, look at them, and return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    # The build tools are those of this environment: no network.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    [wheel] = DIST.glob(f"pullback-{version()}-*.whl")
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    look_into(wheel)
    return wheel


def look_into(wheel: Path) -> None:
    """Refuse a wheel whose page would have dead links, or that lacks what code reads."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [name for name in names if name.endswith("dist-info/METADATA")]
        page = archive.read(metadata).decode()
    for name in ("py.typed", "report/templates/report.html.jinja", "__main__.py"):
        if f"pullback/{name}" not in names:
            raise SystemExit(f"{wheel.name} lacks pullback/{name}")
    for part in ("](docs/", "](CONTRIBUTING.md", "](examples/"):
        if part in page:
            raise SystemExit(f"The page of {wheel.name} has a link that leads nowhere: {part}")


def try_out(wheel: Path, folder: Path, full: bool) -> None:
    """Install the wheel into an environment of its own and use it."""
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python, command = scripts / "python", scripts / "pullback"
    (folder / "own.py").write_text(FUNCTION)
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    said = run(command, "--version", cwd=folder)
    if not said.startswith(f"pullback {version()}\n"):
        raise SystemExit(f"The wheel says it is {said.splitlines()[0]}")
    run(python, "-c", "import pullback, pullback.text, pullback.tape, pullback.report", cwd=folder)
    said = run(command, "check", "own:Cube", expect=2, cwd=folder)
    if "pip install 'pullback[tensor]'" not in said:
        raise SystemExit(f"Without torch the command does not say what to install:\n{said}")
    if full:
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[tensor]", cwd=folder)
    else:
        lend_packages(python)
    words = ["check", "own:Cube", "--input", "torch.randn(3)", "--clauses", "derivative,double"]
    said = run(command, *words, expect=1, cwd=folder)
    if "double broken" not in said or "1 broken" not in said:
        raise SystemExit(f"The check did not find the second derivative:\n{said}")
    where = run(python, "-c", "import pullback.trajectory as t; print(t.__file__)", cwd=folder)
    if str(folder.resolve()) not in str(Path(where.strip()).resolve()):
        raise SystemExit(f"Not the wheel was tried, but {where}")


def lend_packages(python: Path) -> None:
    """Let an environment import the packages of this one, after its own."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    target = Path(run(python, "-c", code).strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (target / "zz_lent.pth").write_text("\n".join(sorted(paths)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="install torch into the environment")
    parser.add_argument("--print-version", action="store_true")
    options = parser.parse_args()
    if options.print_version:
        print(version())
        return
    started = time.monotonic()
    wheel = build()
    with tempfile.TemporaryDirectory(prefix="pullback-release-") as folder:
        try_out(wheel, Path(folder), options.full)
    print(f"{wheel.name} is ready, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
