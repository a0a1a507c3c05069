"""The file of a journal: made whole, and where it is damaged, whatever of it can be read."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["BROKEN", "CALLS", "NOTES", "SCHEMA", "connect", "make_file", "mark_of", "salvage"]

BROKEN = (sqlite3.DatabaseError, UnicodeDecodeError)  # of which the second hides the first
CALLS = """CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL, place TEXT NOT NULL, occurrence INTEGER NOT NULL,
    model TEXT NOT NULL, request TEXT NOT NULL, key TEXT NOT NULL,
    begun REAL NOT NULL, ended REAL, answer TEXT, failure TEXT, checksum TEXT NOT NULL,
    UNIQUE (place, digest, occurrence)
) STRICT"""
NOTES = (
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
)
SCHEMA = f"PRAGMA application_id={{mark}};BEGIN;{CALLS};{NOTES};COMMIT"


def connect(path: Path | str, wait: float = 0) -> sqlite3.Connection:
    """A connection that reads a text with a damaged byte too: its checksum then tells."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=wait)
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return connection


@contextlib.contextmanager
def _fresh(file: Path, mark: int) -> Iterator[Path]:
    """A new file under a name of its own, to be given its name when it is complete."""
    part = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        part.touch(0o600, exist_ok=False)  # for its owner alone
        with contextlib.closing(connect(part)) as connection:
            connection.executescript(SCHEMA.format(mark=mark))
        yield part
    finally:
        part.unlink(missing_ok=True)


def make_file(file: Path, mark: int) -> None:
    """Make a file of a mark, unless another process has made it meanwhile."""
    with _fresh(file, mark) as part:
        try:
            os.link(part, file)  # unlike a rename, this never replaces another's file
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(part, file)


def mark_of(file: Path, mark: int) -> int:
    """The mark in a damaged file; what has neither that nor the name of SQLite is refused."""
    with file.open("rb") as opened:
        head = opened.read(72)
    if not head.startswith(b"SQLite") and head[68:] != mark.to_bytes(4):
        raise sqlite3.DatabaseError("file is not a database")
    return int.from_bytes(head[68:])


def salvage(file: Path, mark: int) -> int:
    """Take what can be read out of a damaged file, row by row, into a new one.

    Gives how many rows were read that are none any more. The name is that of the old file until it
    is that of the whole new one: whatever fails here, nothing that was paid for is lost.
    """
    with contextlib.suppress(*BROKEN), contextlib.closing(connect(file)) as old:
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what a killed process left beside it
    data = file.read_bytes()
    with _fresh(file, mark) as part:
        found = [
            (f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
            for table in ("calls", "notes") for row in rows_of(data, table, part)
        ]  # fmt: skip
        lost = len(found)
        with contextlib.closing(connect(part)) as new:
            new.execute("BEGIN")
            for statement, row in found:
                with contextlib.suppress(sqlite3.Error, UnicodeEncodeError):
                    new.execute(statement, row)
                    lost -= 1
            new.execute("COMMIT")
        kept = file.with_name(f"{file.name}.damaged")
        kept.touch(0o600)
        kept.write_bytes(data)
        for more in ("-wal", "-shm"):
            file.with_name(file.name + more).unlink(missing_ok=True)
        os.replace(part, file)
    return lost


def rows_of(data: bytes, table: str, fresh: Path) -> list[tuple[Any, ...]]:
    """Each row of a table that can be read in a damaged file; a new file says what it looks like.

    The first page names the tables, and their roots say where the leaves are, which hold the rows:
    https://www.sqlite.org/fileformat2.html. Every leaf is read with the first page of the new file
    and in the place of the root, so a broken page hides only its own rows. A leaf that is no longer
    used may hold a row as it was once: of two the one that has more in it is the later.
    """
    found: list[tuple[Any, ...]] = []
    head = fresh.read_bytes()
    page = int.from_bytes(head[16:18])
    with contextlib.closing(connect(fresh)) as new:
        named = "SELECT rootpage FROM sqlite_schema WHERE name=?"
        root = page * (new.execute(named, (table,)).fetchone()[0] - 1)
    count = -(-len(data) // page)
    whole = head[:28] + count.to_bytes(4) + head[32:page] + data[page:].ljust((count - 1) * page)
    part = fresh.with_name(f".{fresh.name}.{os.getpid()}")
    part.touch(0o600)
    try:
        part.write_bytes(whole)
        for start in range(page, len(whole), page):
            if data[start : start + 1] == b"\r":  # a leaf of a table
                with part.open("r+b") as file:
                    file.seek(root)
                    file.write(whole[start : start + page])
                with contextlib.closing(connect(part)) as leaf:
                    found += _rows_in(leaf, table)
    finally:
        part.unlink()
    found.sort(key=lambda row: row.count(None), reverse=True)
    return list({row[0]: row for row in found}.values())


def _rows_in(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a table of one leaf, those of another table left out; asked for one by one."""
    numbers: set[int] = set()
    for order in ("ASC", "DESC"):  # to a broken one from both of its sides
        with contextlib.suppress(*BROKEN):
            for (number,) in connection.execute(
                f"SELECT rowid FROM {table} NOT INDEXED ORDER BY rowid {order}"  # noqa: S608  # ours
            ):
                numbers.add(number)
    for number in sorted(numbers):
        with contextlib.suppress(*BROKEN):
            one = f"SELECT * FROM {table} NOT INDEXED WHERE rowid=?"  # noqa: S608
            row = connection.execute(one, (number,)).fetchone()
            if row is not None and None not in (row[0], row[-1]):
                yield row
