"""`Variable`: the tape's, with afnio's habits."""

from collections.abc import Sequence
from typing import Any

from pullback import tape
from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.tape import Feedback, space_of

__all__ = ["Variable", "adopt", "adopt_pair", "backward", "grad"]

_assign: Any = tape.Variable.data.fset  # type: ignore[missing-attribute]


class Variable(tape.Variable):
    """A text, a number, or a list of one kind of them, which stands for a batch.

    Unlike the tape's, its data may be assigned at any time, its ``grad`` is always a list, and the
    explanation of an evaluator runs back without a gradient.

    Arguments:
        data: the value; a list of whole numbers and floats becomes one of floats.
        role: what it is for, in words.
        requires_grad: whether feedback is wanted.

    Raises:
        TypeError: the data is of another kind, or a list of several kinds.
    """

    __slots__ = ()

    def __init__(self, data: Any = "", role: str = "", requires_grad: bool = False) -> None:
        super().__init__(_of_one_kind(data), role, requires_grad)

    @tape.Variable.data.setter
    def data(self, value: Any) -> None:
        with tape.no_grad():
            _assign(self, _of_one_kind(value))

    @property
    def grad(self) -> list[Any]:
        """What was said of it, in order; of a batch, that of its items one after another."""
        return _notes(super().grad)

    @grad.setter
    def grad(self, value: Any) -> None:
        if isinstance(value, list | tuple) and not isinstance(self._data, str):
            for note in value:
                self.append_grad(note)
            return
        tape.Variable.grad.__set__(self, value)

    @checked
    def append_grad(self, gradient: tape.Variable) -> None:
        """Add one more piece of feedback."""
        self._grad = space_of(self._data).accumulate(self._grad, self._conformed(gradient))

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Run back; the explanation (or score) of an evaluator needs no gradient."""
        backward([self], [gradient], retain_graph, create_graph, inputs)

    def detach(self) -> "Variable":
        """The same value without history."""
        return adopt(super().detach())

    @checked
    def copy_(self, src: tape.Variable) -> "Variable":
        """Take the data, role and requires_grad of another Variable."""
        self.data = src._data
        self.role = src.role
        if self._node is None:
            self.requires_grad_(src.requires_grad)
        return self

    def requires_grad_(  # type: ignore[bad-override-param-name]
        self, mode: bool = True
    ) -> "Variable":
        """Require a gradient, or no longer; gives the Variable back."""
        super().requires_grad_(mode)
        return self


def adopt(value: Any) -> Any:
    """Variables of the tape as afnio's, in place; structures are gone through."""
    if isinstance(value, tuple | list):
        for each in value:
            adopt(each)
    elif type(value) is tape.Variable:
        value.__class__ = Variable
    return value


def adopt_pair(score: tape.Variable, explanation: tape.Variable) -> tuple[Variable, Variable]:
    """What an evaluator gives; the explanation, given no feedback, runs back from the score."""
    adopt(explanation)._score = score
    return adopt(score), explanation  # type: ignore[bad-return]


def backward(
    variables: tape.Variable | Sequence[tape.Variable],
    grad_variables: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Run back from Variables: see `pullback.tape.backward`."""
    roots = [variables] if isinstance(variables, tape.Variable) else list(variables)
    if grad_variables is None or isinstance(grad_variables, list | tuple):
        given = list(grad_variables or [None] * len(roots))
    else:
        given = [grad_variables]
    if len(given) == len(roots):
        pairs = zip(roots, given, strict=True)
        roots = [getattr(r, "_score", r) if each is None else r for r, each in pairs]
    tape.backward(roots, given, retain_graph, create_graph, inputs)


def grad(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The gradients of some inputs: see `pullback.tape.grad`."""
    return adopt(tape.grad(*args, **kwargs))


def _of_one_kind(data: Any) -> Any:
    if not isinstance(data, list):
        if isinstance(data, str | int | float) and not isinstance(data, bool):
            return data
        raise ArgumentTypeError("The data of a Variable is a text, a number or a list.",
                                given=repr(data)[:80])  # fmt: skip
    made = [_of_one_kind(each) for each in data]
    kinds = {type(each) for each in made}
    if kinds == {int, float}:
        return [float(each) for each in made]
    if len(kinds) > 1:
        raise ArgumentTypeError(
            "The data of a Variable is a list of several kinds.",
            given=", ".join(sorted(kind.__name__ for kind in kinds)), expected="one kind",
        )  # fmt: skip
    return made


def _notes(gradient: Any) -> list[Any]:
    """What a gradient says, of a structure that of its entries one after another."""
    if isinstance(gradient, Feedback):
        return [adopt(each) for each in gradient.notes]
    if isinstance(gradient, list):
        return [note for each in gradient for note in _notes(each)]
    if gradient is None or (isinstance(gradient, str) and not gradient):
        return []
    if not isinstance(gradient, tape.Variable):
        return [Variable(gradient)]
    return _notes(gradient._data) if isinstance(gradient._data, list) else [adopt(gradient)]
