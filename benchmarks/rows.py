"""Rows of figures in CSV files: what everything that measures or tabulates reads and writes."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Row", "read_rows", "write_rows"]

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, by the names in its first line."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, fields: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows in the place of those that are there."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
