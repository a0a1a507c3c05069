"""What rules raise where autograd sees them, as a refusal by name."""

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import is_raised_by_tracing
from pullback.tensor._call import Call
from pullback.tensor._watch import Watch, refusal

__all__ = ["Refusals"]

_OTHERS = (PullbackError, Warning, torch.OutOfMemoryError, MemoryError)


class Refusals:
    """Collects a refusal, or what rules raise; a generator's context takes three times as long.

    Arguments:
        purpose: what is derived.
        call: of which application.
        watch: what the rules run under, which may know why.
    """

    def __init__(self, purpose: str, call: Call, watch: Watch | None = None) -> None:
        self._purpose, self._call, self._watch = purpose, call, watch
        self._found: list[UnsupportedError] = []

    def __enter__(self) -> list[UnsupportedError]:
        return self._found

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, UnsupportedError):
            self._found.append(error)
            return True
        if not isinstance(error, Exception) or isinstance(error, _OTHERS):
            return False
        if is_raised_by_tracing(error) or self._call.tentative:
            return False
        first = str(error).strip().split("\n")[0][:200]
        why = f"its rules, run where autograd sees them, raise {type(error).__name__}: {first}"
        if self._watch is not None and self._watch.left is not None:
            why = self._watch.left
        self._found.append(refusal(self._purpose, self._call.definition.name, why))
        self._found[0].__cause__ = error
        return True
