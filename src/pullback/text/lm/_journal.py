"""`Journal`: every call of a run, on disk before its answer is handed on; in a file of SQLite."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pullback.errors import PullbackError, RecordingError
from pullback.internal._arguments import checked, reading
from pullback.tape import place
from pullback.text.lm import _database
from pullback.text.lm._completion import Call, Completion, ModelSummary
from pullback.text.lm._database import BROKEN, connect
from pullback.text.lm._json import canonical, digest_of
from pullback.text.lm._request import Request
from pullback.text.lm._secrets import scrub, writable

__all__ = ["MEMORY", "Journal"]


MEMORY = ":memory:"  # a file for SQLite that is none
_JOURNAL, _CACHE = 0x50424A32, 0x50424332  # "PBJ2", "PBC2": SQLite's application_id
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_OF_DISK = {  # a disk that is full or only read, too many open files: the file itself is whole
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
}  # fmt: skip
_ALL = "SELECT * FROM calls ORDER BY id"
_ANSWERED = "SELECT * FROM calls WHERE digest=? AND answer IS NOT NULL ORDER BY id LIMIT 1"
_WRITE = """
INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET occurrence=excluded.occurrence, begun=excluded.begun,
    ended=excluded.ended, answer=excluded.answer, failure=excluded.failure,
    checksum=excluded.checksum
ON CONFLICT DO NOTHING RETURNING id
"""  # of a cache, another process may have been before
_ONE = "SELECT * FROM calls WHERE place=? AND digest=? AND occurrence=?"


@checked
class Journal(contextlib.AbstractContextManager["Journal"]):
    """Every call of a run, in one SQLite file, on disk before its answer is handed on.

    Only one process at a time writes it, and only its owner may read it; several threads may use
    it. Opening it reads every entry and its checksum: one that was damaged is dropped, counted in
    `damaged`, and asked again where it is needed; of a file that is damaged the rows that can be
    read are taken into a new one, and the old one is kept beside it. Keys are never in it.

    Arguments:
        path: the file; made if it is not there, unless ``make`` is False.
        read_only: whether what it holds is read alone, of a copy: the file stays as it is, may be
            on a disk that is only read, and several may read it at once.
        shared: whether several processes may have it open: a cache, which looks up answers by
            what was asked alone, wherever it was.

    Attributes:
        paid: a `ModelSummary` of the answers that were written since it is open.
        recorded: how many were handed on again.

    Raises:
        RecordingError: it is corrupt, something else, in use, or not there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        make: bool = True,
        shared: bool = False,
        read_only: bool = False,
    ) -> None:
        self.path, self._shared = Path(path), shared
        self._file, self._in_memory = self.path, path == MEMORY
        self._what, self._mark = ("cache", _CACHE) if shared else ("journal", _JOURNAL)
        self._lock, self._process = threading.RLock(), os.getpid()
        self.paid, self.recorded, self._closed = ModelSummary(), 0, False
        self._taken: dict[tuple[str, str], set[int]] = defaultdict(set)
        is_there = self._in_memory or self.path.exists()
        if not (is_there or (make and not read_only)):
            raise RecordingError(f"There is no such {self._what}.", given=str(self.path))
        if not is_there:
            try:
                _database.make_file(self._file, self._mark)
            except (*BROKEN, OSError) as error:
                raise RecordingError(
                    f"The {self._what} cannot be made.", given=f"{self.path}: {error}"
                ) from None
        with self._errors():
            self._read_copy() if read_only else self._begin()

    def _read_copy(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
            self._file = Path(folder, "copy")
            for more in ("", "-wal"):  # in which a run that was killed has left its last calls
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{self.path}{more}", f"{self._file}{more}")
            self._begin()
            with contextlib.closing(self._connection) as copy:
                self._connection, self._in_memory = connect(MEMORY), True
                copy.backup(self._connection)
        self._connection.execute("PRAGMA query_only=1")

    def _begin(self) -> None:
        """Open the file, and forget what in it is damaged."""
        salvaged = None  # rows that were read in a damaged file, and are not in its new one
        try:
            self._open()
        except BROKEN as error:
            if self._shared or _code(error) in _BUSY | _OF_DISK:
                raise
            self._refuse_another_kind(_database.mark_of(self._file, self._mark))
            salvaged = _database.salvage(self._file, self._mark)
            self._open()
        try:
            self.damaged = self._drop_damaged(salvaged)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        wait = 30 if self._shared else 0
        self._connection = connect(self._file, wait)
        execute = self._connection.execute
        try:
            if self._in_memory:
                self._connection.executescript(_database.SCHEMA.format(mark=self._mark))
            if not self._shared:
                execute("PRAGMA locking_mode=EXCLUSIVE")
            self._refuse_another_kind(execute("PRAGMA application_id").fetchone()[0])
            # With FULL, which WAL does not need to stay whole, a commit is on the disk when it
            # returns: an answer that a power cut takes back after the program has seen it would be
            # paid twice.
            execute("PRAGMA journal_mode=WAL")
            execute("PRAGMA synchronous=FULL")
            if not self._shared:  # takes the lock at once, not at the first write
                execute("BEGIN EXCLUSIVE")
                execute("COMMIT")
            faults = [row[0] for row in execute("PRAGMA integrity_check(3)")]
            tables = [row[0] for row in execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")]
            if faults != ["ok"] or tables != [_database.CALLS, _database.NOTES]:
                raise sqlite3.DatabaseError("; ".join(map(str, faults)))
        except BaseException:
            self._connection.close()
            raise

    def _refuse_another_kind(self, mark: int) -> None:
        if mark != self._mark:
            raise RecordingError(f"This is no {self._what}.", given=str(self.path))

    def _drop_damaged(self, salvaged: int | None) -> int:
        """Forget the entries that are not as they were written; how many there were, ever."""
        lost = salvaged or 0
        for row in self._execute(_ALL):
            try:
                self._read(row)
            except RecordingError:
                self._execute("DELETE FROM calls WHERE id=?", row[0])
                lost += 1
        known = self.notes().get("damaged", 0)
        if lost or salvaged is not None:
            known += max(lost, 1)
            self.note("damaged", known)
        return known

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors inside into ours."""
        try:
            yield
        except (*BROKEN, OSError) as error:
            if _code(error) in _BUSY:
                raise RecordingError(
                    f"The {self._what} is in use by another run.", given=str(self.path),
                    mend="Wait until that has ended, or use another file.",
                ) from None  # fmt: skip
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise RecordingError(
                    f"The {self._what} cannot be used.", given=f"{self.path}: {error}"
                ) from None
            raise self._corrupt(str(error)) from None

    def _corrupt(self, why: str) -> RecordingError:
        return RecordingError(
            f"The {self._what} cannot be read: it is corrupt.", given=f"{self.path}: {why}"[:400],
            mend="Restore it from a copy, or start anew with another file.",
        )  # fmt: skip

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        """The rows that one statement gives, which is committed when this returns."""
        if os.getpid() != self._process and not self._in_memory:
            raise RecordingError(  # SQLite's files do not outlive a fork unharmed
                f"A {self._what} does not reach over a fork.", given=str(self.path),
                expected=f"process {self._process}, which opened it",
                mend="Use another file in each process.",
            )  # fmt: skip
        with self._lock, self._errors():
            if self._closed:
                raise RecordingError(
                    f"The {self._what} is closed.", given=str(self.path),
                    mend="Open it again: what it holds is there.",
                )  # fmt: skip
            return self._connection.execute(statement, values).fetchall()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def calls(self) -> list[Call]:
        """Every call, in the order in which they began.

        Raises:
            RecordingError: an entry is corrupt.
        """
        return [self._read(row) for row in self._execute(_ALL)]

    def find(self, digest: str) -> Completion | None:
        """An answer to what has this digest, wherever it was asked."""
        rows = self._execute(_ANSWERED, digest)
        return self._read(rows[0]).answer if rows else None

    def keep(self, request: Request, model: str, answer: Completion) -> None:
        """Write a call and its answer at once; another process may have been before."""
        self._write(replace(_call(request, model), answer=answer))

    def take(self, request: Request, model: str, *, make: bool = True) -> Call | None:
        """The entry of a request at the place where it is asked: the first that nobody has taken.

        An entry without an answer is to be asked for, with its key. Where there is none, it is
        made; or None is given, if ``make`` is False.
        """
        digest, where = request.digest(model), here()
        with self._lock:
            # Arrival decides only among requests that are equal and at one place. Operations,
            # items, batches and epochs have places of their own; tasks that a program starts itself
            # have one if it gives them one.
            taken = self._taken[where, digest]
            occurrence = next(number for number in range(len(taken) + 1) if number not in taken)
            rows = self._execute(_ONE, where, digest, occurrence)
            if not rows and not make:
                return None
            call = (
                self._read(rows[0]) if rows
                else self._write(replace(_call(request, model), place=where, occurrence=occurrence))
            )  # fmt: skip
            taken.add(occurrence)
            if call.answer is None:  # what an earlier run has asked begins anew
                return replace(call, begun=time.time())
            self.recorded += 1
            return call

    def settle(self, call: Call, answer: Completion) -> Call:
        """Write an answer; when this returns, it is on disk."""
        ended = max(time.time(), call.begun)  # a clock may go back
        call = self._write(replace(call, ended=ended, answer=answer))
        with self._lock:
            self.paid.add(call)
        return call

    def fail(self, call: Call, why: str) -> Call:
        """Keep that an answer could not be used."""
        return self._write(replace(call, failure=why))

    def forget(self, digest: str) -> None:
        """Drop the answers to what has this digest, wherever it was asked."""
        self._execute("DELETE FROM calls WHERE digest=?", digest)

    def retire_failures(self) -> None:
        """Let what failed be asked again by a run that goes on; what was paid stays counted."""
        for call in self.calls():
            if call.failure is not None and call.occurrence >= 0:
                # Nobody asks for an occurrence below 0, so the row stays and is counted as paid,
                # and its place is free for the next attempt.
                self._write(replace(call, occurrence=-call.id))

    def release(self, call: Call, *, forget: bool) -> None:
        """A call ended without an answer: it can be taken again.

        It is forgotten if nothing was sent, now or earlier: what an earlier attempt may have been
        billed for stays in doubt, with its key.
        """
        with self._lock:
            self._taken[call.place, call.digest].discard(call.occurrence)
            if forget and call.fresh:
                self._execute("DELETE FROM calls WHERE id=? AND answer IS NULL", call.id)

    def note(self, name: str, value: Any) -> None:
        """Keep plain JSON by a name, in place of what that name had."""
        with reading("plain JSON", value):
            name, text = writable(name), scrub(canonical(value))
        statement = "INSERT OR REPLACE INTO notes VALUES (?, ?, ?)"
        self._execute(statement, name, text, digest_of([name, text]))

    def notes(self) -> dict[str, Any]:
        """All that was kept by name, and is as it was written."""
        rows = self._execute("SELECT * FROM notes ORDER BY name")
        return {
            name: json.loads(text) for name, text, checksum in rows
            if checksum == digest_of([name, text])
        }  # fmt: skip

    def _write(self, call: Call) -> Call:
        """Write a call, new or changed, without keys; gives it as it is written."""
        values = (
            call.digest, call.place, call.occurrence, writable(call.model),
            scrub(canonical(call.request)), call.key, call.begun, call.ended,
            None if call.answer is None else scrub(canonical(call.answer.to_dict())),
            None if call.failure is None else writable(call.failure),
        )  # fmt: skip
        checksum = digest_of(values)
        made = self._execute(_WRITE, call.id or None, *values, checksum)
        written = self._read((made[0][0] if made else call.id, *values, checksum))
        return replace(written, fresh=not call.id)

    def _read(self, row: tuple[Any, ...]) -> Call:
        number, *values, checksum = row
        if checksum != digest_of(values):
            raise self._corrupt(f"call {number} has changed")
        digest, where, occurrence, model, request, key, begun, ended, answer, failure = values
        try:
            completion = None if answer is None else Completion.from_dict(json.loads(answer))
            return Call(
                number, digest, where, occurrence, model, json.loads(request), key, begun, ended,
                completion, failure,
            )  # fmt: skip
        except (ValueError, PullbackError) as error:
            raise self._corrupt(f"call {number}: {error}") from None


def here() -> str:
    """The place in the program that this is in, as a journal writes it."""
    return writable("/".join(map(_named, place())))


_PLAIN = re.compile(r"(?!-?[0-9]+\Z)(?!\")[^/\\\ud800-\udfff]+")  # what reads as nothing else


def _named(part: str | int) -> str:
    """A part of a place; a text that could be a number, several parts or a quote is quoted."""
    if isinstance(part, int):
        return f"{part:d}"
    return part if _PLAIN.fullmatch(part) else json.dumps(part)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _call(request: Request, model: str) -> Call:
    asked = request.digest(model), "", 0, model, request.written(), uuid.uuid4().hex
    return Call(0, *asked, time.time())
