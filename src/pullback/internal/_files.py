"""Files that take the answer of long work: tried before it begins, and written whole or not.

And those of code: the package that one lies in.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from pullback.errors import ArgumentError

__all__ = ["OUR_PAGE", "package_around", "refuse_other", "refuse_unwritable", "write_whole"]

OUR_PAGE = "pullback</title>"
"""What the first characters of a page of findings hold."""
_HEAD = 400  # bytes


def package_around(file: Path) -> tuple[list[str], Path]:
    """The packages that a file of Python lies in, the outermost first, and the folder around."""
    names: list[str] = []
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return names, folder


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file beside the one that is there, and put it in its place when all is on the disk.

    A disk that is full, or a program that is killed, leaves what was there before. A link stays
    one, and a pipe or a device is written as it is.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not (stat.S_ISREG(mode) and os.access(target.parent, os.W_OK)):
        with target.open("wb") as stream:
            stream.write(data)
        return
    begins = os.fsdecode(os.fsencode(target.name)[:64])  # a name has room for few bytes more
    part = target.with_name(f".{begins}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def refuse_unwritable(path: Path) -> None:
    """Refuse a file that cannot be written; one that is not there yet is not left behind."""
    if not path.parent.is_dir():
        raise ArgumentError(f"The folder of {path} does not exist.", mend=f"mkdir -p {path.parent}")
    exists = path.exists()
    if exists and not (path.is_file() or path.is_dir()):
        return  # a pipe or a device: opening it may wait for a reader
    try:
        with path.open("ab"):
            pass
        if not exists:
            path.unlink()
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be written.",
            given=error.strerror,
            mend="Name a file in a folder that exists and can be written.",
        ) from error


def refuse_other(path: Path, sign: str) -> None:
    """Refuse a place that cannot be written, or a file whose first characters lack a sign of ours.

    So that a wrong name on a command line costs nobody a file of the same kind.
    """
    refuse_unwritable(path)
    if path.is_file():
        with path.open("rb") as stream:
            found = stream.read(_HEAD)
        if found.strip() and sign.encode() not in found:
            raise ArgumentError(
                f"{path} holds something else and is not overwritten.",
                given=found.lstrip()[:40].decode(errors="replace"),
                mend="Name another file, or remove this one.",
            )
