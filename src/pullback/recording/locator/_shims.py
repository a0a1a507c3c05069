"""Modules made for a while, so that another process finds by name what has no name of its own.

The checker runs clauses in worker processes, which import what they check. A Function out of a
script cannot be imported; a shim, a small module in a temporary folder on ``sys.path`` (which
workers inherit), gives it a name.
"""

import atexit
import functools
import importlib
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from types import ModuleType

from pullback.recording.locator._locator import SHIM_PREFIX

__all__ = ["shim"]


def shim(source: str) -> ModuleType:
    """Import a module with the given source under a name that depends on the source alone.

    Arguments:
        source: Python source.

    Returns:
        The module, which another process that inherits ``sys.path`` can import too.

    Example:
        >>> shim("answer = 42").answer
        42
    """
    name = f"{SHIM_PREFIX}{zlib.crc32(source.encode()):08x}"
    if name not in sys.modules:
        if str(_folder()) not in sys.path:  # somebody has put an earlier path back
            sys.path.append(str(_folder()))
        (_folder() / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
    return importlib.import_module(name)


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="pullback-shims-")
    sys.path.append(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
