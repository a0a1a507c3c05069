"""The rows of a damaged file of SQLite, whatever of it can be read."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["BROKEN", "connect", "rows_of"]

BROKEN = (sqlite3.DatabaseError, UnicodeDecodeError)  # of which the second hides the first


def connect(path: Path | str, wait: float = 0) -> sqlite3.Connection:
    """A connection that reads a text with a damaged byte too: its checksum then tells."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=wait)
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return connection


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
