"""SQLite files of ours: made whole, opened whole, or refused by name."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
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
    ) -> None:
        self.path = Path(path)
        self.what = what
        self.lock = threading.RLock()
        if not self.path.exists():
            if not make:
                raise RecordingError(f"There is no such {what}.", given=str(self.path))
            self._make(mark, schema)
        with self.errors():
            self._connection = sqlite3.connect(
                self.path, check_same_thread=False, isolation_level=None, timeout=0 if alone else 30
            )
            try:
                self._open(mark, alone)
            except BaseException:
                self._connection.close()
                raise

    def _make(self, mark: int, schema: str) -> None:
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
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
        with self.lock, self.errors():
            return self._connection.execute(statement, values)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.lock, self.errors():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self._connection.close()
