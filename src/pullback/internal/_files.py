"""Files that take the answer of long work: tried before it begins, and written whole or not."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from pullback.errors import ArgumentError

__all__ = ["refuse_unwritable", "write_whole"]


def write_whole(path: Path, content: str | Callable[[IO[bytes]], object]) -> None:
    """Write a file beside the one that is there, and put it in its place when all is on the disk.

    A disk that is full, or a program that is killed, leaves what was there before.

    Arguments:
        path: the file; a link stays one, and a pipe or a device is written as it is.
        content: a text, or what writes into the open file.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not (stat.S_ISREG(mode) and os.access(target.parent, os.W_OK)):
        with target.open("wb") as stream:
            _write(stream, content)
        return
    part = target.with_name(f".{target.name[:64]}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            _write(stream, content)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _write(stream: IO[bytes], content: str | Callable[[IO[bytes]], object]) -> None:
    if isinstance(content, str):
        stream.write(content.encode())
        return
    told = _Told(stream)
    try:
        content(told)  # type: ignore[arg-type]
    except RuntimeError as error:  # torch says of a full disk that a position is unexpected
        raise told.refused or error from None


class _Told:
    """A stream that keeps what the system said where nothing could be written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.refused: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write, as the stream does."""
        try:
            return self._stream.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._stream.flush()


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
