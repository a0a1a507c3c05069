"""Judge many subjects in other processes: results as they come, kept, and not made twice."""

import json
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

from pullback.errors import ArgumentError, ArgumentTypeError, PullbackError
from pullback.internal._arguments import checked
from pullback.internal._processes import count_cores
from pullback.report._report import Report

__all__ = ["gather_reports"]

_Work = Callable[[str], Report]
_Outcome = tuple[str, Report | Exception]
# How each line of a file of results begins.
_LEAD = '{"name": '


@checked
def gather_reports(
    work: _Work,
    names: Iterable[str],
    *,
    executor: Executor | None = None,
    results: Path | str | None = None,
    asked: Callable[[str], str] | None = None,
) -> Iterator[_Outcome]:
    """Judge many subjects, each in a process of an executor.

    Arguments:
        work: takes a name and returns its report. It is handed to other processes, so it is a
            function of a module, or a `functools.partial` of one.
        names: of the subjects, each judged once.
        executor: of any library that has one (``dask.distributed.Client().get_executor()``,
            ``mpi4py.futures.MPIPoolExecutor()``); processes of this machine, one on each core,
            unless given. One of these that ends without an answer is tried again, alone.
        results: a file of JSON lines. Reports are added as they come, and those that it holds
            are not made again, so that what was interrupted goes on.
        asked: says for a name what its report depends on, such as options and the kernel's text.
            Where that has changed since, the report is made again.

    Yields:
        Each name, and its report or what its work has raised: first those of the file, then in the
        order in which they end.

    Raises:
        ArgumentError: at once, before any work: the file cannot be read or written, or is one of
            something else; the work cannot be handed to other processes.
        ArgumentTypeError: at once: names, work, executor, results or what ``asked`` says is of
            another type.
        PullbackError: the executor that was given has ended.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> def work(name):
        ...     return Report(name, "exact", False, (), 0)
        >>> with ThreadPoolExecutor() as pool:
        ...     found = dict(gather_reports(work, ["a:F", "a:G"], executor=pool))
        >>> sorted(found)
        ['a:F', 'a:G']
    """
    wanted = _wanted(names, asked)
    path = None if results is None else Path(results)
    known = {} if path is None else _read(path, wanted)
    if executor is None and wanted.keys() - known.keys():
        _refuse_to_hand_over(work)
    kept = None if path is None else _appended(path)
    return _gathered(work, wanted, known, executor, kept)


def _gathered(
    work: _Work, wanted: Mapping[str, str], known: Mapping[str, Report],
    executor: Executor | None, kept: IO[str] | None,
) -> Iterator[_Outcome]:  # fmt: skip
    with nullcontext() if kept is None else kept:
        yield from ((name, known[name]) for name in wanted if name in known)
        left = [name for name in wanted if name not in known]
        outcomes = _in_processes(work, left) if executor is None else _by(executor, work, left)
        for name, outcome in outcomes:
            if kept is not None and isinstance(outcome, Report):
                line = {"name": name, "asked": wanted[name], "report": asdict(outcome)}
                kept.write(json.dumps(line) + "\n")
                kept.flush()
            yield name, outcome


def _wanted(names: Iterable[str], asked: Callable[[str], str] | None) -> dict[str, str]:
    """What the report of each name depends on."""
    wanted = {name: "" if asked is None else asked(name) for name in names}
    for each in (item for pair in wanted.items() for item in pair):
        if not isinstance(each, str):
            raise ArgumentTypeError(
                "A name, or what its report depends on, is no text.", given=repr(each)[:80]
            )
    return wanted


def _refuse_to_hand_over(work: object) -> None:
    try:
        pickle.dumps(work)
    except Exception as error:  # whatever an object raises that cannot be copied
        raise ArgumentError(
            "The work cannot be handed to another process.", given=str(error),
            expected="a function of a module, or a functools.partial of one",
            mend="Pass an executor of threads, or move the function to a module.",
        ) from error  # fmt: skip


def _read(path: Path, wanted: Mapping[str, str]) -> dict[str, Report]:
    """The reports of a file; a line that was cut off when its process ended is none."""
    found: dict[str, Report] = {}
    try:
        lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    except OSError as error:
        raise ArgumentError("The results cannot be read.", given=str(error)) from error
    for line in lines:
        if not (line.startswith(_LEAD) or _LEAD.startswith(line)):
            raise ArgumentError(
                "The file holds something else than results, and is left as it is.",
                given=f"{path}: {line[:60]!r}",
                expected="a file that a run before has written, or none",
            )
        try:
            entry = json.loads(line)
            if entry["asked"] == wanted.get(entry["name"]):
                found[entry["name"]] = Report.from_json(json.dumps(entry["report"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _appended(path: Path) -> IO[str]:
    try:
        is_whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
        stream = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ArgumentError("The results cannot be written.", given=str(error)) from error
    if not is_whole:
        stream.write("\n")  # the last line was cut off
    return stream


def _by(executor: Executor, work: _Work, names: Sequence[str]) -> Iterator[_Outcome]:
    waiting: dict[Future[Any], str] = {}
    try:
        for name in names:
            waiting[executor.submit(work, name)] = name
        for future in as_completed(waiting):
            yield waiting[future], _outcome(future)
    except RuntimeError as error:  # one that has been shut down, or is broken
        raise PullbackError(
            "The executor has ended before all was judged.",
            given=str(error),
            mend="Ask again with the same file of results: what it holds is not made again.",
        ) from error
    finally:
        for future in waiting:
            future.cancel()


def _outcome(future: Future[Any]) -> Report | Exception:
    try:
        found = future.result()
    except BrokenExecutor:
        raise
    except Exception as error:
        return error
    if isinstance(found, Report):
        return found
    return ArgumentTypeError("The work returned no report.", given=repr(found)[:80])


def _in_processes(work: _Work, names: Sequence[str]) -> Iterator[_Outcome]:
    """Judge in processes of this machine; who was at work when one died is judged again, alone."""
    waiting, again = deque(names), deque[str]()
    for cores, left in ((count_cores(), waiting), (1, again)):
        while left:
            pool, working = ProcessPoolExecutor(cores, get_context("spawn")), dict[Any, str]()
            try:
                while left or working:
                    # No more are handed over than can be at work, so that it is known who was.
                    while left and len(working) < cores:
                        future = pool.submit(work, left[0])
                        working[future] = left.popleft()
                    future = next(as_completed(working))
                    outcome = _outcome(future)
                    yield working.pop(future), outcome
            except BrokenExecutor as error:
                if left is waiting:
                    again += working.values()
                    continue
                ended = PullbackError("Its process ended without an answer.", given=str(error))
                yield from ((name, ended) for name in working.values())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
