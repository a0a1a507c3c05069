"""Read a file that a stranger may have made: plain data and tensors, as large as it says."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from pullback.errors import RecordingError
from pullback.recording.codec import describe_fault

__all__ = ["MAKE", "read_archive"]

# The encoder goes 40 deep, with up to four lists and tuples for a level.
_DEPTH = 200
_LEAST_VALUES = 2**16
MAKE = "Make one with: pullback record -o calls.pt -- python train.py"


def read_archive(path: Path) -> Any:
    """The plain data in a file that `torch.save` wrote.

    Raises:
        RecordingError: there is no such file, or it holds more than plain data.
    """
    if not path.is_file():
        raise RecordingError(f"There is no recording at {path}.", mend=MAKE)
    try:
        _refuse_other_archives(path)
        data = torch.load(path, weights_only=True, map_location="cpu")
        _refuse_inflated(data, path.stat().st_size)
        return data
    except Exception as error:  # a file of any other form fails in some way or other
        what, mend, said = f"{path} cannot be read.", MAKE, describe_fault(error)
        if isinstance(error, pickle.UnpicklingError):
            what = f"{path} is damaged or holds more than plain data, and was not opened."
            mend = "Open only recordings made by pullback record; it never writes such data."
            said = str(error).strip().splitlines()[0][:160]
        raise RecordingError(what, given=said, mend=mend) from error


def _refuse_other_archives(path: Path) -> None:
    """Let torch see what torch.save writes only: it unpacks old archives into a folder."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    names = [entry.filename.partition("/")[2] for entry in entries]
    if "data.pkl" not in names or "constants.pkl" in names:
        raise ValueError("an archive of another kind")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its parts are compressed, as torch.save never does")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its parts are larger than the file")


def _refuse_inflated(data: Any, size: int) -> None:
    """Refuse data that are larger than their file: the same parts named again and again.

    Every value takes a byte of an honest file at least, and every number of a tensor its own.
    """
    values, numbers = max(size, _LEAST_VALUES), size
    pending = [(data, 0)]
    while pending:
        node, depth = pending.pop()
        values -= 1
        if type(node) is torch.Tensor:
            numbers -= node.numel() * node.element_size()
        inside = [*node, *node.values()] if type(node) is dict else node
        if type(inside) in (list, tuple):
            pending.extend((item, depth + 1) for item in inside)
        if depth > _DEPTH:
            raise ValueError(f"its values are nested more than {_DEPTH} deep")
        if values < 0 or numbers < 0:
            raise ValueError("it holds more than its file: the same parts again and again")
