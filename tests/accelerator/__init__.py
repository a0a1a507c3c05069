"""A machine with an accelerator, without one: see second.cpp.

A process that has what `environment` says finds a device named ``second`` when it imports torch.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

__all__ = ["environment"]

_HERE = Path(__file__).parent
_NAMES = ("second.cpp", "second_device.py")


def environment() -> dict[str, str]:
    """The variables of a process that has a second device, which is built at first use.

    Raises:
        FileNotFoundError: there is no C++ compiler.
    """
    paths = [str(_built()), str(_HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _built() -> Path:
    content = b"".join((_HERE / name).read_bytes() for name in _NAMES) + torch.__version__.encode()
    folder = Path(sys.prefix, "second-device", hashlib.sha256(content).hexdigest()[:16])
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the processes that test side by side one builds it
        if not folder.is_dir():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    for name in _NAMES:
        shutil.copy(_HERE / name, made)
    described = made / "second_device-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: second-device\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[torch.backends]\nsecond = second_device:load\n")
    libraries = cpp_extension.library_paths()
    subprocess.run(
        [
            os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-w", "-fPIC", "-shared",
            "-DAT_PER_OPERATOR_HEADERS", made / "second.cpp", "-o", made / "second.so",
            *(f"-I{path}" for path in cpp_extension.include_paths()),
            *(f"-L{path}" for path in libraries), "-ltorch_cpu", "-lc10",
        ],
        check=True,
    )  # fmt: skip
    made.rename(folder)
