"""`Feedback`: what is said back to a text, and by whom."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal._text import shown
from pullback.tape._layout import below
from pullback.tape._variable import Variable, wrap

__all__ = ["Feedback", "Origin", "distinct", "gather", "held", "notes_in", "notes_of"]


class Origin(NamedTuple):
    """Where a piece of feedback comes from.

    Arguments:
        function: the name of the graph node that wrote it.
        role: the role of the output that it answers for.
        node: tells the nodes of one process apart.
    """

    function: str
    role: str
    node: int


class Feedback(Variable):
    """What is said back to one text: an ordered set of notes, each a Variable with an origin.

    It is the gradient of a text. Rules of a `Function` receive it for each text that their
    forward gave; its data is the texts of the notes, each on lines of its own. Notes of the same
    origin with the same text are one note.

    Arguments:
        notes: the notes, text Variables.
        role: what the feedback is about.

    Raises:
        ArgumentTypeError: a note is no text.

    Example:
        >>> feedback = Feedback([Variable("too long"), Variable("no source")])
        >>> print(feedback.data)
        too long
        no source
        >>> [note.data for note in feedback]
        ['too long', 'no source']
    """

    __slots__ = ("notes",)

    @checked
    def __init__(self, notes: Iterable[Variable] = (), role: str = "") -> None:
        found = notes_of(tuple(notes))
        if found is None:
            raise ArgumentTypeError("Feedback is made of text Variables.", given=shown(notes))
        self.notes: tuple[Variable, ...] = distinct(found)
        super().__init__("\n".join(note._data for note in self.notes), role)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.notes)

    def __len__(self) -> int:
        return len(self.notes)

    def __bool__(self) -> bool:
        return bool(self.notes)

    def __getitem__(self, key: Any) -> Any:
        return self.notes[key]

    def __reduce__(self) -> Any:
        return Feedback, (self.notes, self.role)


def gather(notes: tuple[Variable, ...]) -> Feedback:
    """The feedback of notes that are known to be distinct texts, made without looking at them."""
    text = notes[0]._data if len(notes) == 1 else "\n".join([n._data for n in notes])
    feedback = wrap(text, kind=Feedback)
    feedback.notes = notes
    return feedback


def distinct(notes: Iterable[Variable]) -> tuple[Variable, ...]:
    """The notes without those that repeat what the same origin has said before."""
    seen: dict[Any, Variable] = {}
    for note in notes:
        origin = note._origin
        seen.setdefault(id(note) if origin is None else (origin.node, note._data), note)
    return tuple(seen.values())


def notes_in(gradient: Any) -> Sequence[Variable]:
    """The notes in a gradient of any structure."""
    if isinstance(gradient, Feedback):
        return gradient.notes
    if isinstance(gradient, Variable):
        return (gradient,) if isinstance(gradient._data, str) else notes_in(gradient._data)
    return [note for each in below(gradient) for note in notes_in(each)]


def notes_of(gradient: Any) -> tuple[Variable, ...] | None:
    """The notes in a gradient of a text, or None if it is something else."""
    if isinstance(gradient, Feedback):
        return gradient.notes
    if isinstance(gradient, Variable):
        return (gradient,) if isinstance(gradient._data, str) else None
    parts = [notes_of(part) for part in gradient] if isinstance(gradient, list | tuple) else [None]
    return None if None in parts else tuple(note for part in parts for note in part or ())


def held(gradient: Any) -> Any:
    """A gradient as a slot of a structured gradient holds it: feedback as it is, else its data."""
    return gradient if isinstance(gradient, Feedback) or gradient is None else gradient._data
