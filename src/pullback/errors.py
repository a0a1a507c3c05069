"""The exceptions of pullback, one tree.

.. code-block:: text

    PullbackError
    ├── MissingExtraError        (ImportError)   an optional dependency is not installed
    ├── TorchVersionError        (ImportError)   the installed torch is not one that we work with
    ├── ArgumentError            (ValueError)    a value that cannot be used
    │   └── ArgumentTypeError    (TypeError)     a value of the wrong type
    ├── DefinitionError          (TypeError)     a Function is written against the contract
    ├── GraphError               (RuntimeError)  a graph cannot be run: freed, changed or cyclic
    ├── UnsupportedError         (RuntimeError)  a transform or layout that is refused by name
    ├── BrokenContractError      (AssertionError) a checked Function breaks the contract
    ├── RecordingError           (ValueError)    a recording cannot be read or replayed
    ├── ModelError               (RuntimeError)  a language model cannot be asked
    │   └── ReplyError           (ValueError)    its answer cannot be read or breaks its schema
    ├── BudgetError              (RuntimeError)  what is asked would exceed the budget
    └── ProgramError             (RuntimeError)  a program that pullback ran has failed

Every message says what happened, what was given, what was expected, and how to mend it.
"""

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BrokenContractError",
    "BudgetError",
    "DefinitionError",
    "GraphError",
    "MissingExtraError",
    "ModelError",
    "ProgramError",
    "PullbackError",
    "RecordingError",
    "ReplyError",
    "TorchVersionError",
    "UnsupportedError",
]


class PullbackError(Exception):
    """The root of every error that pullback raises on purpose.

    Arguments:
        what: what happened, one sentence.
        given: what was given, if that helps.
        expected: what was expected instead.
        mend: how to mend it.

    Example:
        >>> print(PullbackError("The step is not positive.", given="dt=-0.1",
        ...                     expected="dt > 0, in seconds", mend="Pass dt=0.1."))
        The step is not positive.
          given:    dt=-0.1
          expected: dt > 0, in seconds
          mend:     Pass dt=0.1.
    """

    def __init__(
        self,
        what: str,
        *,
        given: str | None = None,
        expected: str | None = None,
        mend: str | None = None,
    ) -> None:
        self.what = what
        self.given = given
        self.expected = expected
        self.mend = mend
        # Not super().__init__(what), which Dynamo does not trace: it would hide what is said.
        self.args = (what,)
        if isinstance(self, ImportError):
            self.msg = what

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (
            ("given:", self.given),
            ("expected:", self.expected),
            ("mend:", self.mend),
        ):
            if text is not None:
                lines.append(f"  {label:<9} {text}")
        return "\n".join(lines)


class MissingExtraError(PullbackError, ImportError):
    """An optional dependency is needed and not installed."""


class TorchVersionError(PullbackError, ImportError):
    """The installed torch is older than we support, or lacks a part of itself that we need."""


class ArgumentError(PullbackError, ValueError):
    """An argument has a value that cannot be used."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that cannot be used."""


class DefinitionError(PullbackError, TypeError):
    """A Function is written in a way that the contract does not allow."""


class GraphError(PullbackError, RuntimeError):
    """A recorded graph cannot be run: it was freed, a value in it changed, or it has a cycle."""


class UnsupportedError(PullbackError, RuntimeError):
    """A transform, dtype or layout is refused by name rather than answered wrongly."""


class BrokenContractError(PullbackError, AssertionError):
    """A checked Function breaks a clause of the contract."""


class RecordingError(PullbackError, ValueError):
    """A recording cannot be read, written or replayed."""


class ModelError(PullbackError, RuntimeError):
    """A language model cannot be asked: it is not there, refuses, or has no time.

    Arguments:
        what, given, expected, mend: as of `PullbackError`.
        transient: whether the same request may succeed later.
        retry_after: the seconds that the provider asks to wait, if it says so.
        status: the HTTP status, if there is one.
        may_be_billed: whether the provider may have done the work, and bill it.
        too_long: whether the messages are more than the model takes.
    """

    def __init__(
        self,
        what: str,
        *,
        given: str | None = None,
        expected: str | None = None,
        mend: str | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        may_be_billed: bool = False,
        too_long: bool = False,
    ) -> None:
        self.may_be_billed = may_be_billed
        self.too_long = too_long or status == 413  # Content Too Large
        self.transient = transient
        self.retry_after = retry_after
        self.status = status
        super().__init__(what, given=given, expected=expected, mend=mend)


class ReplyError(ModelError, ValueError):
    """What a language model answered cannot be read, or breaks the schema it was asked for."""


class BudgetError(PullbackError, RuntimeError):
    """What is asked would exceed the budget; nothing was sent."""


class ProgramError(PullbackError, RuntimeError):
    """A program that pullback was asked to run has failed.

    ``status`` is the one that it ended with, as a shell has it; 0 where it did not run.
    ``interrupted`` says whether Ctrl-C ended it.
    """

    status = 0
    interrupted = False
