"""The files that a command writes: tried before anything runs, and never somebody else's."""

import os
import stat
from pathlib import Path

from pullback.errors import ArgumentError
from pullback.internal._files import refuse_other, write_whole

__all__ = [
    "KEPT",
    "make_kept_folder",
    "refuse_kept",
    "refuse_recording",
    "refuse_same",
    "write_file",
]

_OUR_RECORDING = "pullback recording"  # torch.save compresses nothing

KEPT = Path(".pullback") / "calls.pt"
"""Where the calls of a program are kept unless another place is named."""


def refuse_recording(path: Path) -> None:
    """Refuse a place for a recording that cannot be written, or holds something else."""
    if path == KEPT:
        refuse_kept()
    else:
        refuse_other(path, _OUR_RECORDING)


def refuse_same(*paths: Path | None) -> None:
    """Refuse one file for two outputs, of which the second would replace the first."""
    # Unlike `Path.resolve`, whatever the links are.
    found = [
        os.path.realpath(path) for path in paths if path and (path.is_file() or not path.exists())
    ]
    twice = [path for number, path in enumerate(found) if path in found[:number]]
    if twice:
        raise ArgumentError(
            "One file is named for two outputs.", given=twice[0], mend="Name two files."
        )


def refuse_kept() -> None:
    """Refuse a ``.pullback`` that is not a folder of ours, before a program is run."""
    for place, wanted in ((KEPT.parent, stat.S_ISDIR), (KEPT, stat.S_ISREG)):
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ArgumentError(f"{place} cannot be used.", given=error.strerror) from error
        if not wanted(mode):
            raise ArgumentError(
                f"{place} is not ours, and nothing is written there.",
                given="a link" if stat.S_ISLNK(mode) else "a file of another kind",
                expected="a folder, made by pullback, that keeps the calls of a program",
                mend="Remove it, or name a file: pullback check -o calls.pt -- python train.py",
            )
    is_new = not KEPT.parent.exists()
    try:
        if is_new:
            KEPT.parent.mkdir()
    except OSError as error:
        raise ArgumentError(
            "A recording cannot be kept in this folder.",
            given=error.strerror,
            mend="Name a file with --output.",
        ) from error
    try:
        refuse_other(KEPT, _OUR_RECORDING)
    finally:
        if is_new:
            KEPT.parent.rmdir()


def make_kept_folder() -> None:
    """Make the folder ``.pullback``, which git does not see, as other tools keep theirs."""
    refuse_kept()
    KEPT.parent.mkdir(exist_ok=True)
    try:
        with (KEPT.parent / ".gitignore").open("x", encoding="utf-8") as stream:
            stream.write("*\n")
    except FileExistsError:
        pass


def write_file(path: Path, text: str) -> None:
    """Write a text."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be written; what was there is as it was.",
            given=error.strerror,
            mend="Make room, or name a file on another disk.",
        ) from error
