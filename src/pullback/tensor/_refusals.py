"""What rules raise where autograd sees them, as a refusal by name."""

from pullback.errors import UnsupportedError
from pullback.tensor._call import Call
from pullback.tensor._errors import in_short, is_of_rules
from pullback.tensor._watch import Watch, refusal

__all__ = ["Refusals"]


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
        if error is None or self._call.tentative or not is_of_rules(error):
            return False
        why = f"its rules, run where autograd sees them, raise {in_short(error)}"
        if self._watch is not None and self._watch.left is not None:
            why = self._watch.left
        self._found.append(refusal(self._purpose, self._call.definition.name, why))
        self._found[0].__cause__ = error
        return True
