"""`Call`: one call of a model, as a journal keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.text.lm._completion import Completion

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Arguments:
        id: its place in the journal.
        digest: of the request and the model's name.
        place: where in the program it was asked.
        occurrence: which of the equal requests at that place it is, from 0; below 0 if it failed
            and is to be asked again.
        model: the model's name.
        request: `Request.to_dict`.
        key: sent as ``Idempotency-Key``.
        begun, ended: seconds since 1970.
        answer: None where none arrived: whether the call was billed is in doubt.
        failure: why the answer could not be used; None if it could.
        fresh: whether the entry was just made, so that it was never sent before.
    """

    id: int
    digest: str
    place: str
    occurrence: int
    model: str
    request: Mapping[str, Any]
    key: str
    begun: float
    ended: float | None = None
    answer: Completion | None = None
    failure: str | None = None
    fresh: bool = False
