"""``pullback record``: run a program and keep the calls it makes."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pullback.cli._files import KEPT, make_kept_folder, refuse_recording
from pullback.cli._options import RecordOptions
from pullback.cli._signals import end_if_asked
from pullback.cli._words import say
from pullback.errors import ProgramError
from pullback.internal._processes import STOP
from pullback.internal._text import command_line
from pullback.recording import Recording
from pullback.report import make_console

__all__ = ["Ran", "keep", "run_record", "say_recorded"]


Ran = tuple[Recording, ProgramError | None]  # what a program applied, and how it failed


def run_record(options: RecordOptions, ran: Ran) -> int:
    """Keep what a program applied; returns the status that the program ended with.

    Where it failed, what it applied before is kept, and the failure is said.

    Raises:
        ProgramError: the program applied no custom Function.
        RecordingError: the file cannot be written after all.
        ArgumentError: the program has written a file of its own there.
    """
    recording, failure = ran
    try:
        keep(recording, options.output, failure)
    except ProgramError as error:
        if error is not failure or STOP.is_set():
            raise
        say(str(error))
        return error.status
    end_if_asked()
    say_recorded(recording, make_console(stderr=True))
    return 0


def keep(recording: Recording, output: Path, failure: ProgramError | None) -> None:
    """Write the recording, then raise the failure of the program, if it failed.

    Raises:
        ProgramError: the program failed, or applied no custom Function.
    """
    if len(recording):
        refuse_recording(output)  # the program itself may have written there meanwhile
        if output == KEPT:
            make_kept_folder()
        recording.save(output)
    if failure is not None:
        if len(recording):
            kept = f"What it applied until then is kept: {_check_command(recording, output)}"
            failure.mend = " ".join(filter(None, (failure.mend, kept)))
        raise failure
    if not len(recording):
        raise ProgramError(
            "The program applied no custom torch.autograd.Function.",
            given=command_line(recording.program),
            mend="Run a part that does; inside torch.compile they are seen only with --eager.",
        )


def _check_command(recording: Recording, output: Path) -> str:
    """The command line that checks a recording as it is."""
    flags = dict.fromkeys(item.loader.flags for item in recording)
    words = [word for flag in flags for word in flag]
    return command_line(["pullback", "check", str(output), *words])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def say_recorded(recording: Recording, console: Console) -> None:
    """Print what was recorded, one line for each Function."""
    calls = sum(len(item.calls) for item in recording)
    found = f"{len(recording)} Function{'' if len(recording) == 1 else 's'}"
    console.print(f"Recorded {found}, {calls} call{'' if calls == 1 else 's'}.")
    for item in recording:
        kept = f"{len(item.calls)} kept" if item.calls else "[yellow]none kept[/]"
        said = f"  {escape(item.name)}: applied {_times(item.applied)}, {kept}"
        console.print(said, highlight=False, soft_wrap=True)
        here = recording.answers.get(item.name, {}).get("report")
        what = "checked where it ran" if here else "[yellow]not replayable[/]"
        for reason, count in item.reasons.items():
            said = f"    {what} ({count}): {escape(reason)}"
            console.print(said, highlight=False, soft_wrap=True)
