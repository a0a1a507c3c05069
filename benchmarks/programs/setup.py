"""`python -m benchmarks.programs.setup`: make `.programs-venv` for the programs of others."""

import subprocess
from pathlib import Path

from benchmarks.environments import ROOT, make_environment

VENV = ROOT / ".programs-venv"
# PyPI's torchvision is built for CUDA. Beside a torch for the CPU it is imported without its
# kernels, in the programs and in the processes that check them.
WITHOUT_KERNELS = (
    "import sys, types; "
    "sys.modules.setdefault('torchvision._meta_registrations', types.ModuleType('without'))\n"
)


def main() -> None:
    make_environment(VENV.name, Path(__file__).with_name("requirements.txt"))
    asked = "import torch, sysconfig; print(torch.version.cuda, sysconfig.get_path('purelib'))"
    python = VENV / "bin" / "python"
    cuda, site = subprocess.run(
        [python, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()
    if cuda == "None":
        (Path(site) / "torchvision_without_kernels.pth").write_text(WITHOUT_KERNELS)
    print(".programs-venv is ready: .programs-venv/bin/python -m benchmarks.programs")


if __name__ == "__main__":
    main()
