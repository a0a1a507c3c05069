"""`save` and `load`: state as JSON."""

import json
from pathlib import Path
from typing import Any

from pullback.compat.afnio._variable import Variable
from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import reading
from pullback.internal._text import shown
from pullback.tape import Variable as TapeVariable
from pullback.text._module import json_of, write_json

__all__ = ["load", "save"]

_MARK = "pullback.compat.afnio.Variable"


def save(obj: object, f: Any, pickle_protocol: int = 2) -> None:
    """Write dicts, lists, texts, numbers and Variables to a path or binary file, as JSON.

    ``pickle_protocol`` is taken and not used: what is read back runs no code.

    Raises:
        TypeError: something in it is none of these, or the key of a dict is no text.
    """
    _check_keys(obj)
    try:
        if hasattr(f, "write"):
            f.write(json_of(obj, _written).encode())
        else:
            write_json(f, obj, _written)
    except TypeError as error:
        raise ArgumentTypeError("This cannot be saved as JSON.", given=str(error)) from None


def load(f: Any) -> Any:
    """Read what `save` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    with reading("file of save", f):
        text = f.read() if hasattr(f, "read") else Path(f).read_bytes()
        return json.loads(text, object_hook=lambda v: Variable(*v[_MARK]) if _MARK in v else v)


def _check_keys(value: Any) -> None:
    """Refuse keys that are no texts: JSON has none, and they would be read back as texts."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentTypeError(
                    "A dict whose keys are no texts cannot be saved as JSON.", given=shown(key)
                )
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            _check_keys(each)


def _written(value: Any) -> Any:
    if isinstance(value, TapeVariable):
        return {_MARK: [value.data, value.role, value.requires_grad]}
    raise TypeError(shown(value))
