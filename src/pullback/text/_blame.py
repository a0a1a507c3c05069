"""`blame`: which parts of a pipeline what was said speaks of."""

from collections.abc import Iterable
from dataclasses import dataclass

from pullback.tape import Variable

__all__ = ["Blame", "blame"]


@dataclass(frozen=True)
class Blame:
    """What was said of one part.

    Arguments:
        parameter: the part.
        share: its share of all notes, from 0 to 1.
        notes: what was said, each a text Variable with its origin.
    """

    parameter: Variable
    share: float
    notes: tuple[Variable, ...]

    def __str__(self) -> str:
        said = "; ".join(
            f"{note.data} (by {note.origin.function})" if note.origin else str(note.data)
            for note in self.notes
        )
        return f"{self.share:.0%} {self.parameter.role or 'a part'}: {said}"


def blame(parameters: Iterable[Variable]) -> list[Blame]:
    """The parts that feedback has reached, those that it speaks of most first.

    Arguments:
        parameters: text Variables, after backward.

    Example:
        >>> from pullback.text import Parameter
        >>> first, second = Parameter("x", role="first step"), Parameter("y", role="second step")
        >>> second.grad = [Variable("This is not upper case.")]
        >>> [str(each) for each in blame([first, second])]
        ['100% second step: This is not upper case.']
    """
    told = [(each, tuple(each.grad or ())) for each in parameters]
    total = sum(len(notes) for _, notes in told)
    found = [Blame(each, len(notes) / total, notes) for each, notes in told if notes]
    return sorted(found, key=lambda each: -each.share)
