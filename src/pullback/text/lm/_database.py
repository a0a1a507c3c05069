"""SQLite files of ours: made whole, opened whole, or refused by name."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pullback.errors import RecordingError

__all__ = ["Database"]


class Database:
    """An SQLite file with a schema of ours, safe to use from several threads.

    A new file gets its name when it is complete, so that a file which is not complete is never
    one that was being made. Every commit outlives the process.

    Arguments:
        path: the file; it is made if it is not there, unless ``make`` is False.
        mark: SQLite's ``application_id``, which tells our kinds of file apart.
        schema: the statements that make the tables.
        alone: whether no other process may have it open.
        what: what it is, for messages: ``"journal"``.
        tables: those whose rows are taken out of a file that is damaged, into a new one; the old
            one is kept beside it.

    Attributes:
        salvaged: whether that has happened.

    Raises:
        RecordingError: it is not there, corrupt, of another kind, or in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mark: int,
        schema: str,
        alone: bool,
        what: str,
        make: bool = True,
        tables: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self.what = what
        self.lock = threading.RLock()
        self._process = os.getpid()
        if not self.path.exists():
            if not make:
                raise RecordingError(f"There is no such {what}.", given=str(self.path))
            self._make(mark, schema)
        self.salvaged = False
        try:
            self._connect(mark, alone)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            with self.errors():
                if not tables or "locked" in str(error):
                    raise
                self._salvage(mark, schema, tables)
                self._connect(mark, alone)
            self.salvaged = True

    def _connect(self, mark: int, alone: bool) -> None:
        self._connection = sqlite3.connect(
            self.path, check_same_thread=False, isolation_level=None, timeout=0 if alone else 30
        )
        try:
            self._open(mark, alone)
        except BaseException:
            self._connection.close()
            raise

    def _salvage(self, mark: int, schema: str, tables: Sequence[str]) -> None:
        """Take what can be read out of a damaged file, row by row, into a new one."""
        damaged = self.path.with_name(f"{self.path.name}.damaged")
        with contextlib.closing(sqlite3.connect(self.path, timeout=0)) as old:
            if old.execute("PRAGMA application_id").fetchone()[0] != mark:
                raise RecordingError(f"This is no {self.what}.", given=str(self.path))
            found = {table: list(_readable(old, table, self.path)) for table in tables}
        os.replace(self.path, damaged)
        for more in ("-wal", "-shm"):
            self.path.with_name(self.path.name + more).unlink(missing_ok=True)
        self._make(mark, schema)
        with contextlib.closing(sqlite3.connect(self.path)) as new, new:
            for table, rows in found.items():
                for row in rows:
                    marks = ", ".join("?" * len(row))
                    with contextlib.suppress(sqlite3.Error):  # a row that is none any more
                        new.execute(f"INSERT INTO {table} VALUES ({marks})", row)  # noqa: S608

    def _make(self, mark: int, schema: str) -> None:
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            os.close(
                os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            )  # for its owner alone
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.executescript(f"PRAGMA application_id={mark}; BEGIN; {schema}; COMMIT;")
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

    def _open(self, mark: int, alone: bool) -> None:
        execute = self._connection.execute
        if alone:
            execute("PRAGMA locking_mode=EXCLUSIVE")
        if execute("PRAGMA application_id").fetchone()[0] != mark:
            raise RecordingError(f"This is no {self.what}.", given=str(self.path))
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        if alone:  # takes the lock at once, not at the first write
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
        self._check_process()
        with self.lock, self.errors():
            return self._connection.execute(statement, values)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        self._check_process()
        with self.lock, self.errors():
            return self._connection.execute(statement, values).fetchall()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # SQLite's files do not outlive a fork unharmed
            raise RecordingError(
                f"A {self.what} does not reach over a fork.", given=str(self.path),
                expected=f"process {self._process}, which opened it",
                mend="Use another file in each process.",
            )  # fmt: skip

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
