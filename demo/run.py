"""The main job on real input: check the custom Functions of five published packages.

Installs the packages beside the project's own environment (into ``.demo/packages``), runs a small
program with each under ``pullback check -- python ...``, writes ``report.html`` with everything
that was found, runs one repro, and shows one Function before and after `pullback.complete`. Then a
parameter that never learns, and a kernel that is not what it says.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
PACKAGES = WORK / "packages"
# Each program, and how it is checked: of most one call of each Function.
ONE = ("--calls", "1")
PROGRAMS = {
    "entmax_attention": ONE,
    "revgrad_domains": ONE,
    "roma_registration": (*ONE, "--without", "compile"),  # it takes half a minute there
    "unit_scaling_regression": ("--calls", "2"),
    "gpytorch_regression": ONE,
}
# Exact versions, without the dependencies that these programs never import.
PINNED = (
    "entmax==1.3",
    "pytorch_revgrad==0.2.0",
    "roma==1.8.0",
    "unit-scaling==0.3.5",
    "einops==0.8.2",
    "docstring-parser==0.18.0",
    "tabulate==0.10.0",
    "gpytorch==1.15.2",
    "linear_operator==0.6.1",
    "jaxtyping==0.3.11",
    "wadler_lindig==0.1.8",
)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def main() -> int:
    """Run the demonstration; returns the exit status."""
    WORK.mkdir(exist_ok=True)
    install()
    started = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")])),
        "PYTHONWARNINGS": "ignore",
    }
    for number, program in enumerate(PROGRAMS, start=1):
        heading(f"{number} of {len(PROGRAMS)}: pullback check -- python demo/programs/{program}.py")
        check_program(program, environment)
    heading("All of them: report.html")
    write_report()
    heading("A repro: the second derivative of gpytorch's RBF covariance")
    if not show_repro(environment):
        return 1
    heading("One of them before and after pullback.complete")
    script = str(ROOT / "demo" / "before_after.py")
    run([sys.executable, script], environment)
    heading("A parameter that never learns: pullback check -- python demo/dead_parameter.py")
    checked = [sys.executable, "-m", "pullback.cli", "check", "--output", ".demo/training.pt"]
    run([*checked, "--", "python", "demo/dead_parameter.py"], environment, accept=(1,))
    heading("A kernel beside its reference: pullback verify demo/kernel.py:kernel ...")
    names = [f"demo/kernel.py:{name}" for name in ("kernel", "plain", "make")]
    verified = ["verify", names[0], "--reference", names[1], "--inputs", names[2]]
    run([sys.executable, "-m", "pullback.cli", *verified], environment, accept=(1,))
    console.print(f"\nDone in {time.monotonic() - started:.0f} s after installation.")
    return 0


def run(command: list[str], environment: dict[str, str], accept: tuple[int, ...] = (0,)) -> None:
    """Run one of our own commands; any status that is not accepted ends the demonstration."""
    sys.stdout.flush()
    code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode  # noqa: S603 - fixed words
    if code not in accept:
        raise SystemExit(f"Status {code} of: {' '.join(command)}")


def heading(text: str) -> None:
    """Print a line with a title."""
    console.print()
    console.print(Rule(f"[bold]{text}", align="left"))


def install() -> None:
    """Install the packages once; a changed list installs them again."""
    stamp = WORK / "installed.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == "\n".join(PINNED):
        return
    console.print(f"Installing {len(PINNED)} packages into .demo/packages ...")
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    target = ["--no-deps", "--upgrade", "--target", str(PACKAGES)]
    run([*command, *target, *PINNED], dict(os.environ))
    stamp.write_text("\n".join(PINNED), encoding="utf-8")


def check_program(program: str, environment: dict[str, str]) -> None:
    """Run one program under ``pullback check --``; broken Functions are what is looked for."""
    command = [sys.executable, "-m", "pullback.cli", "check"]
    kept = ["--output", f".demo/{program}.pt", "--json", f".demo/{program}.json"]
    after = ["--", "python", f"demo/programs/{program}.py"]
    run([*command, *PROGRAMS[program], *kept, *after], environment, accept=(0, 1))


def results() -> list[dict]:
    """What every check has found, from its JSON."""
    found = []
    for program in PROGRAMS:
        data = json.loads((WORK / f"{program}.json").read_text(encoding="utf-8"))
        found.append(data)
    return found


def write_report() -> None:
    """Put the reports of all programs into one page, and print one table."""
    from pullback.report import print_table, read_reports, render_page

    reports, reruns, missing = read_reports([WORK / f"{name}.json" for name in PROGRAMS])
    print_table(reports, console)
    page = render_page(reports, not_checked=missing, command="make demo", reruns=reruns)
    (ROOT / "report.html").write_text(page, encoding="utf-8")
    console.print("Open report.html in a browser.")


def show_repro(environment: dict[str, str]) -> bool:
    """Print and run the script that the checker wrote; whether there was one."""
    for data in results():
        for function in data["functions"]:
            if not function["function"].endswith("RBFCovariance"):
                continue
            for finding in function["findings"]:
                if finding["clause"] == "double" and finding["verdict"] == "broken":
                    script = WORK / "repro.py"
                    script.write_text(finding["repro"], encoding="utf-8")
                    console.print(finding["repro"], markup=False, soft_wrap=True)
                    console.print("[dim]$ python .demo/repro.py[/]")
                    run([sys.executable, str(script)], environment)
                    return True
    console.print("[red]The wrong second derivative was not found.")
    return False


if __name__ == "__main__":
    raise SystemExit(main())
