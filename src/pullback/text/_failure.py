"""`Failure`: a bad answer as data; and how many of them a run takes before it ends."""

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Self

from pullback.errors import ArgumentError, ArgumentTypeError, ModelError, ReplyError
from pullback.internal._arguments import checked, is_whole
from pullback.internal._setting import setting
from pullback.text.lm import current_run, scrub
from pullback.text.lm._lm import hearing

__all__ = ["Failure", "Failures", "tolerate"]

SHARE = 0.2  # of all answers, where nothing else is said
ENOUGH = 10  # answers, before a share of them says anything; and failures, before it says the truth


class Failure(str):
    """What stands where a text was expected and a model gave none that can be used.

    As a text it says so. Operations hand it on and ask nobody; evaluators score it 0, and what is
    said of it goes back to the call that failed.

    Arguments:
        cause: what happened.

    Example:
        >>> Failure("The answer was cut off.")
        '[failed: The answer was cut off.]'
    """

    cause: str

    @checked
    def __new__(cls, cause: str) -> Self:
        """A text that names the cause."""
        failure = super().__new__(cls, f"[failed: {cause}]")
        failure.cause = cause
        return failure

    def __iter__(self) -> Iterator["Failure"]:  # type: ignore[bad-override]
        return iter((self,))  # a list that failed has one entry, and not its letters

    def __getitem__(self, key: Any) -> "Failure":
        return self

    def __add__(self, other: str) -> "Failure":  # type: ignore[bad-override]
        return self if isinstance(other, str) else NotImplemented

    __radd__ = __add__

    def __getnewargs__(self) -> tuple[str]:
        return (self.cause,)  # a copy, or one from another process, is made of the cause again


class NoText(Failure):
    """What stands where a number, a flag or a list was expected: it breaks what reads it so."""

    def __bool__(self) -> bool:
        raise ArgumentTypeError(
            "An answer that failed was read as a flag or a list.", given=str(self),
            mend="Ask first: isinstance(value, text.Failure).",
        )  # fmt: skip

    __len__ = __bool__  # type: ignore[bad-override]


def failure_in(data: Any) -> Failure | None:
    """The first failure in a value of any structure, or None."""
    if isinstance(data, list | tuple | dict):
        entries = data.values() if isinstance(data, dict) else data
        return next((found for each in entries if (found := failure_in(each)) is not None), None)
    return data if isinstance(data, Failure) else None


@checked
class Failures:
    """What failed so far, beside all that was asked.

    Arguments:
        most: the count that is too many, or the share of all that may fail, beyond what may be
            luck.

    Attributes:
        causes: what failed, each in words.
        asked: how many answers were wanted.

    Raises:
        ArgumentError: the most is neither a count from 1 nor a share above 0.
    """

    def __init__(self, most: float = SHARE) -> None:
        count = is_whole(most)
        if not (most >= 1 if count else 0 < most <= 1):
            raise ArgumentError(
                "The most that may fail is a count, or a share of all.", given=repr(most),
                expected="1, 2, 3, ... or a number from 0.0 to 1.0",
            )  # fmt: skip
        self.most, self.asked = int(most) if count else float(most), 0
        self.causes: list[str] = []
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{len(self.causes)} of {self.asked} answers failed"

    def count(self, asked: int, causes: Sequence[str] = ()) -> None:
        """Count what was asked, and what of it failed."""
        with self._lock:
            self.asked += asked - len(causes)
        for cause in causes:
            self.add(cause)

    def _share_of(self, asked: int) -> float:
        """How many of so many may fail: the share, and of few what is luck, two deviations more.

        Without that, one run in 30 would end at 20 % with a model that fails in 5 % of its answers,
        and one in 5 with 10 %; so it is none in 4,000, and one in 40.
        """
        share = self.most * asked
        luck = 2 * math.sqrt(share * (1 - self.most))
        return asked if asked < ENOUGH else max(share, min(ENOUGH, share + luck))

    def add(self, cause: str) -> Failure:
        """Count one that could not.

        Raises:
            ModelError: these are too many. What the journal holds of them is asked again by a run
                that is resumed.
        """
        run = current_run()
        with self._lock:
            self.asked += 1
            self.causes.append(cause)
            failed, asked = len(self.causes), self.asked
        is_count = isinstance(self.most, int)
        if failed < self.most if is_count else failed <= self._share_of(asked):
            return Failure(cause)
        if run is not None:
            run.retire_failures()
        raise ModelError(
            "Too many answers of the models failed.",
            given=f"{failed} of {asked}; the last: {cause}",
            expected=f"fewer than {self.most}" if is_count
            else f"at most {self.most:.0%}",
            mend="Mend the prompts or the model, or raise max_failures; then resume.",
        )  # fmt: skip


met: ContextVar[list[Failure]] = ContextVar("pullback.text.met")
"""The failures that are met here."""

_tolerance: ContextVar[Failures | None] = ContextVar("pullback.text.failures", default=None)


@checked
def tolerate(max_failures: float = SHARE) -> AbstractContextManager[Failures]:
    """Inside, an answer that cannot be used is a `Failure` and not an error, until too many are.

    A count is that of the failure which raises, a share is of what may fail. Training and measuring
    do this of themselves. A share ends nothing before ten answers, nor, while fewer than ten have
    failed, where so many may be luck.

    Example:
        >>> from pullback.text import chat
        >>> from pullback.text.lm import Scripted
        >>> with tolerate() as failures:
        ...     answer = chat(Scripted([""]), "Hello")
        >>> print(failures)
        1 of 1 answers failed
        >>> answer.data
        '[failed: The model answered nothing.]'
    """
    return setting(_tolerance, Failures(max_failures))  # type: ignore[bad-return]


def tolerating() -> AbstractContextManager[Failures]:
    """The tolerance that is in force here, or one for what happens inside."""
    now = _tolerance.get()
    return tolerate() if now is None else contextlib.nullcontext(now)


@contextlib.contextmanager
def forgiven() -> Iterator[list[Failure]]:
    """What a model's failure inside counts as, where failures are tolerated: the only entry.

    Any model and provider has some now and then. A wrong key, an unknown model and options that no
    server takes are the program's, and raise. A prompt is too long where an answer in it was.
    """
    failed: list[Failure] = []
    now = _tolerance.get()
    try:
        yield failed
    except ModelError as error:
        is_usual = isinstance(error, ReplyError) or error.transient or error.too_long
        if now is None or not is_usual:
            raise
        failed.append(now.add(scrub(error.what)))
        met.get([]).append(failed[0])


@contextlib.contextmanager
def attempted() -> Iterator[list[Failure]]:
    """One answer that a model is asked for: what is raised inside is its failure, the only entry.

    Inside, nothing else is tolerated, so that a part of the answer that fails counts once, as it.
    """
    now = _tolerance.get()
    with forgiven() as failed, hearing(), setting(_tolerance, None):
        yield failed
    if now is not None and not failed:
        now.count(1)
