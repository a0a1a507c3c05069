"""The specimens of a clause in one file: what it must pass, what it must catch, what mends that."""

from importlib import import_module
from pathlib import Path

__all__ = ["MENDS", "RIGHT", "WRONG"]

_FILES = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
_PARTS = [import_module(f"{__name__}.{stem}") for stem in _FILES]
RIGHT, WRONG, MENDS = (
    [specimen for part in _PARTS for specimen in getattr(part, name)]
    for name in ("RIGHT", "WRONG", "MENDS")
)
