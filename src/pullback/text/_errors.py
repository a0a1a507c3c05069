"""Errors as plain data, so that another process can raise them."""

import traceback
from collections.abc import Mapping
from typing import Any

from pullback import errors
from pullback.errors import ProgramError, PullbackError
from pullback.text.lm import scrub

__all__ = ["read_error", "write_error"]

_FIELDS = (
    "given", "expected", "mend", "transient", "retry_after", "status", "may_be_billed",
)  # fmt: skip


def write_error(error: Exception) -> dict[str, Any]:
    """An error as JSON, keys taken out: what ours says; of another, where it was raised."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__]
    if not isinstance(error, PullbackError):
        where = "".join(traceback.format_exception(error)[-4:])
        what = "A program failed in another process."
        return {"kind": "ProgramError", "what": what, "given": scrub(where)}
    told = {name: getattr(error, name) for name in _FIELDS if getattr(error, name, None)}
    told = {name: scrub(each) if isinstance(each, str) else each for name, each in told.items()}
    return {"kind": kinds[0], "what": scrub(error.what), **told}


def read_error(value: Mapping[str, Any]) -> PullbackError:
    """The error that `write_error` wrote; one of a kind that is not known as `ProgramError`."""
    kind = value["kind"]
    cls = getattr(errors, kind) if kind in errors.__all__ else ProgramError
    return cls(value["what"], **{name: value[name] for name in _FIELDS if name in value})
