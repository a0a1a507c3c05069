"""The SQLite file of a journal or cache: made whole, opened whole, or refused by name."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pullback.errors import RecordingError

__all__ = ["Database"]

_JOURNAL, _CACHE = 0x50424A32, 0x50424332  # "PBJ2", "PBC2": SQLite's application_id
_SCHEMA = """
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL, place TEXT NOT NULL, occurrence INTEGER NOT NULL,
    model TEXT NOT NULL, request TEXT NOT NULL, key TEXT NOT NULL,
    begun REAL NOT NULL, ended REAL, answer TEXT, failure TEXT, checksum TEXT NOT NULL,
    UNIQUE (place, digest, occurrence)
) STRICT;
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) STRICT
"""


class Database:
    """An SQLite file with the tables of a journal, safe to use from several threads.

    A new file gets its name when it is complete, so that a file which is not complete is never
    one that was being made. Every commit outlives the process. Of a journal that is damaged the
    rows that can be read are taken into a new file; the old one is kept beside it.

    Arguments:
        path: the file; it is made if it is not there, unless ``make`` is False.
        shared: whether other processes may have it open, too: a cache.

    Attributes:
        salvaged: whether rows were taken out of a file that was damaged.

    Raises:
        RecordingError: it is not there, corrupt, of another kind, or in use.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool, shared: bool) -> None:
        self.path, self.shared = Path(path), shared
        self.what, self._mark = ("cache", _CACHE) if shared else ("journal", _JOURNAL)
        self.lock = threading.RLock()
        self._process = os.getpid()
        if not self.path.exists():
            if not make:
                raise RecordingError(f"There is no such {self.what}.", given=str(self.path))
            self._make()
        self.salvaged = False
        try:
            self._connect()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            with self.errors():
                if shared or "locked" in str(error):
                    raise
                self._salvage()
                self._connect()
            self.salvaged = True

    def _connect(self) -> None:
        self._connection = sqlite3.connect(
            self.path, check_same_thread=False, isolation_level=None,
            timeout=30 if self.shared else 0,
        )  # fmt: skip
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def _salvage(self) -> None:
        """Take what can be read out of a damaged file, row by row, into a new one."""
        damaged = self.path.with_name(f"{self.path.name}.damaged")
        with contextlib.closing(sqlite3.connect(self.path, timeout=0)) as old:
            if old.execute("PRAGMA application_id").fetchone()[0] != self._mark:
                raise RecordingError(f"This is no {self.what}.", given=str(self.path))
            found = [
                (f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
                for table in ("calls", "notes") for row in _readable(old, table, self.path)
            ]  # fmt: skip
        os.replace(self.path, damaged)
        for more in ("-wal", "-shm"):
            self.path.with_name(self.path.name + more).unlink(missing_ok=True)
        self._make()
        with contextlib.closing(sqlite3.connect(self.path)) as new, new:
            for statement, row in found:
                with contextlib.suppress(sqlite3.Error):  # a row that is none any more
                    new.execute(statement, row)

    def _make(self) -> None:
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            owned = os.O_CREAT | os.O_EXCL | os.O_RDWR
            os.close(os.open(part, owned, 0o600))  # for its owner alone
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.executescript(
                    f"PRAGMA application_id={self._mark}; BEGIN; {_SCHEMA}; COMMIT;"
                )
            try:
                os.link(part, self.path)  # unlike a rename, this never replaces another's file
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                os.replace(part, self.path)
        except (sqlite3.Error, OSError) as error:
            raise RecordingError(
                f"The {self.what} cannot be made.", given=f"{self.path}: {error}"
            ) from None
        finally:
            part.unlink(missing_ok=True)

    def _open(self) -> None:
        execute = self._connection.execute
        if not self.shared:
            execute("PRAGMA locking_mode=EXCLUSIVE")
        if execute("PRAGMA application_id").fetchone()[0] != self._mark:
            raise RecordingError(f"This is no {self.what}.", given=str(self.path))
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        if not self.shared:  # takes the lock at once, not at the first write
            execute("BEGIN EXCLUSIVE")
            execute("COMMIT")
        faults = [row[0] for row in execute("PRAGMA integrity_check(3)")]
        if faults != ["ok"]:
            raise sqlite3.DatabaseError("; ".join(map(str, faults)))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors inside into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise RecordingError(
                    f"The {self.what} is in use by another run.", given=str(self.path),
                    mend="Wait until that has ended, or use another file.",
                ) from None  # fmt: skip
            raise RecordingError(
                f"The {self.what} cannot be used.", given=f"{self.path}: {error}"
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self.corrupt(str(error)) from None

    def corrupt(self, why: str) -> RecordingError:
        """The error that says that the file is corrupt."""
        return RecordingError(
            f"The {self.what} cannot be read: it is corrupt.", given=f"{self.path}: {why}"[:400],
            mend="Restore it from a copy, or start anew with another file.",
        )  # fmt: skip

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Run one statement, which is committed when this returns."""
        if os.getpid() != self._process:  # SQLite's files do not outlive a fork unharmed
            raise RecordingError(
                f"A {self.what} does not reach over a fork.", given=str(self.path),
                expected=f"process {self._process}, which opened it",
                mend="Use another file in each process.",
            )  # fmt: skip
        with self.lock, self.errors():
            return self._connection.execute(statement, values)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.lock, self.errors():
            return self.execute(statement, *values).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self._connection.close()


def _readable(connection: sqlite3.Connection, table: str, path: Path) -> Iterator[tuple[Any, ...]]:
    """Each row that can be read, asked for by its number: a broken page hides only its own."""
    statement = f"SELECT * FROM {table} NOT INDEXED WHERE rowid=?"  # noqa: S608  # a name of ours
    for number in range(1, path.stat().st_size // 32 + 2):  # no row is smaller
        with contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            yield from connection.execute(statement, (number,))
