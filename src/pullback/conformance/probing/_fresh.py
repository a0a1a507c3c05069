"""Calls in a process in which the checked code has not run yet.

What code keeps from call to call shows only beside a process that has made none: there the same
call is the first one. Such a process is a copy of this one, made before anything is called; it
waits until it is asked. What was called before that, by whoever asks for a check, nobody knows.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from pullback.conformance.inputs._arguments import Arguments, is_continuous
from pullback.conformance.inputs._held import containers_within
from pullback.conformance.inputs._structure import keep
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.probing._resize import resizings, together
from pullback.conformance.probing._unwritten import filled
from pullback.conformance.process._forked import Copy, can_copy
from pullback.conformance.process._limits import NoEnd
from pullback.internal._syntax import parse

__all__ = ["GIVEN", "Answers", "Fresh", "Kept"]

GIVEN = "the arguments that were given"

Answers = dict[str, Tensors | None]

_LARGER, _ENTRIES = 64, 2**12


class Kept(NamedTuple):
    """What is kept between calls, and two calls of which it makes the first change the second."""

    path: str  # how it is reached, in words where no script does
    arguments: Arguments
    like: Arguments  # those of the call before
    later: Tensors  # the answers after that call, and no other

    @property
    def is_in_reach(self) -> bool:
        """Whether a script reaches it: not what a closure alone leads to."""
        with suppress(SyntaxError):
            return bool(parse(self.path))
        return False


@dataclass(frozen=True)
class Fresh:
    """A call before all others, and what a copy of the process answers that does not make it."""

    probe: Probe  # the subject with its arguments, before anything is known of them
    copy: Copy | None = None  # answers other calls first; ``None`` where there are no copies
    first: Tensors | None = None  # what the first call gave; ``None`` where forward refused

    @classmethod
    def of(cls, probe: Probe, copy: Copy | None = None) -> "Fresh":
        """Make the first call, and before it the copy, unless that was made already."""
        made = cls.before(probe)
        first = None
        if copy is None and can_copy():
            copy = Copy(made.apart)
        with suppress(NoEnd):
            first = made._answer(made.probe.inputs)
        return replace(made, copy=copy, first=first)

    @classmethod
    def before(cls, probe: Probe) -> "Fresh":
        """The same where nothing has been called."""
        inputs = replace(probe.inputs, detached=True)  # forward may change them in place
        return cls(probe.at(inputs, same=True))

    def apart(self) -> Answers:
        """What a process answers in which nothing has run yet."""
        return {name: self._answer(arguments) for name, arguments, _ in self._calls()}

    def later(self, patience: float, *, others: bool = True) -> Answers:
        """The answers here and now, each after a call that differs from it as little as may be.

        At other arguments than the given ones only where that is wanted. After a call that does not
        end there are no others.
        """
        now = replace(self, probe=replace(self.probe, patience=patience))
        found: Answers = {GIVEN: now._answer(self.probe.inputs)}
        with suppress(NoEnd):
            for name, arguments, like in self._calls() if others else ():
                now._answer(like)
                found[name] = now._answer(arguments)
        return found

    def kept_in(self, name: str, place: int, first: torch.Tensor) -> Kept | None:
        """What is kept between calls that makes an answer another one than in the first call.

        Arguments:
            name: that of the call.
            place: which of its answers is another one.
            first: what that is in the first call.

        Returns:
            Once it is empty, the answer is that of the first call. ``None`` where there is none.
        """
        arguments, like = next(given for found, *given in self._calls() if found == name)
        for path, kept in containers_within(self.probe.subject.target):
            with _emptied(kept):
                answers = self._answer(arguments)
            found = [] if answers is None else answers[place : place + 1]
            if found and self.probe.differ(found, [first], looser=1e3) is None:
                with _emptied(kept):
                    self._answer(like)
                    later = self._answer(arguments) or []
                return Kept(path, arguments, like, later)
        return None

    def _calls(self) -> Iterator[tuple[str, Arguments, Arguments]]:
        """Arguments, and those that they are like: the sooner, the less like the given ones.

        A cache may have any key: what is the first call with one key is a later one with another.
        """
        given, drawn = self.probe.inputs, self.probe.generator("larger")
        found = list(resizings(given, _LARGER, _ENTRIES, drawn))
        whole = together(found, [one.size + 3 for one in found], drawn) if found else None
        if whole is not None:
            yield from ((f"{name} at larger sizes", made, whole) for name, made in _others(whole))
        whole = given.with_other_integers()
        if any(a is not b for a, b in zip(whole.values, given.values, strict=True)):
            yield "other integers", whole, given
        single = any(v.dtype == torch.float32 for v in given.values)
        yield "another dtype", given.cast(torch.float64 if single else torch.float32), given
        for resizing in found:
            made = resizing.at(resizing.largest) if resizing.largest > resizing.size else None
            if made is not None:
                where = f"{resizing.largest} of {resizing.where}"
                yield from ((f"{name} at {where}", other, made) for name, other in _others(made))
        yield from ((name, other, given) for name, other in _others(given))
        yield GIVEN, given, given

    def _answer(self, arguments: Arguments) -> Tensors | None:
        """Outputs and gradients; ``None`` where forward refuses.

        What nothing has written is the same each time, and is told by `sizes`.
        """
        with filled():
            found = self._run(arguments)
        return self._run(arguments) if found is None else found  # some code refuses that

    def _run(self, arguments: Arguments) -> Tensors | None:
        try:
            return self.probe.at(arguments).answer()
        except NoEnd:
            raise
        except (Exception, SystemExit):  # loud
            return None


@contextmanager
def _emptied(container: Any) -> Iterator[None]:
    """A list, dictionary or set without entries, which has those again that it had."""
    before = container.copy()
    container.clear()
    try:
        yield
    finally:
        container.clear()
        container.extend(before) if isinstance(container, list) else container.update(before)


def _others(given: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Larger or smaller numbers, where they stay of their kind, with other options and the same.

    Each tensor by another factor: a ratio of two may be all that counts. Those that need no
    gradient too, as a first layer's data: what is kept of these is stale as well. With the same
    options the call is another one where what is kept is known by them.
    """
    factors = itertools.cycle((3.0, 0.5, 2.0))
    made: dict[int, torch.Tensor] = {}
    for k, value in enumerate(given.values):
        other = keep(value, next(factors) * value) if is_continuous(value) else None
        if other is not None and (k in given.differentiable or k not in given.owned):
            made[k] = other
    numbers = given.with_some(made)
    if any(type(leaf) is float for leaf in given.leaves_of(float).values()):
        yield "other numbers and options", numbers.with_numbers(lambda number: 1.5 * number)
    yield "other numbers", numbers
