"""Files that take the answer of long work: tried before the work begins."""

import stat
from pathlib import Path

from pullback.errors import ArgumentError

__all__ = ["refuse_unwritable"]


def refuse_unwritable(path: Path) -> None:
    """Refuse a file that cannot be written; one that is not there yet is not left behind.

    Raises:
        ArgumentError: it cannot be opened for writing.
    """
    if not path.parent.is_dir():
        raise ArgumentError(f"The folder of {path} does not exist.", mend=f"mkdir -p {path.parent}")
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:
        kind = 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return  # a pipe or a device: opening it may wait for a reader
    try:
        with path.open("ab"):
            pass
        if not kind:
            path.unlink()
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be written.",
            given=error.strerror,
            mend="Name a file in a folder that exists and can be written.",
        ) from error
