"""`python -m benchmarks.kernels_in_use.setup`: make `.kernels-venv` for the kernels of others."""

import os
from pathlib import Path

from benchmarks.environments import ROOT, install, make_environment

VENV = ROOT / ".kernels-venv"
# Two build a CUDA extension unless they are asked not to, and one asks when it is built.
WITHOUT_CUDA = {
    "CAUSAL_CONV1D_FORCE_BUILD": "TRUE",
    "CAUSAL_CONV1D_SKIP_CUDA_BUILD": "TRUE",
    "DS_BUILD_OPS": "0",
    "MAMBA_FORCE_BUILD": "TRUE",
    "MAMBA_SKIP_CUDA_BUILD": "TRUE",
}


def main() -> None:
    os.environ.update(WITHOUT_CUDA)
    here = Path(__file__).parent
    first = ("numpy", "ninja", "setuptools", "wheel")
    make_environment(VENV.name, here / "requirements.txt", *first)
    built = ("--no-deps", "--no-build-isolation", "-r", str(here / "built.txt"))
    # Beside it other packages would take its library for installed.
    counted = ("--no-deps", "--upgrade", "--target", str(VENV / "counted"))
    install(VENV, built, (*counted, "transformer-engine==2.20.2"))
    print(".kernels-venv is ready: .kernels-venv/bin/python -m benchmarks.kernels_in_use")


if __name__ == "__main__":
    main()
