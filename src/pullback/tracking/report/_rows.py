"""Which rows a report has, and in which order: the same for the page and for the picture."""

from pullback.tracking.report._diagnosis import Finding, same_tensors
from pullback.tracking.run._identity import Key
from pullback.tracking.run._log import Run

__all__ = [
    "GROUPS",
    "aliases_of",
    "count_groups",
    "gradient_of",
    "group_of",
    "row_name",
    "row_names",
]

GROUPS = {"module": "layers", "parameter": "parameters", "update": "updates", "state": "states"}
"""What is shown apart, by source: an optimizer's states are many, and far from layers in scale."""


def row_name(key: Key) -> str:
    """The row that a series is shown in: the same for a value and its gradient."""
    shown = str(key._replace(order=max(key.order, 1)))
    return f"{shown} · tangent" if key.direction == "tangent" else shown


def group_of(key: Key) -> str:
    """One of `GROUPS`."""
    return GROUPS[key.source]


def count_groups(run: Run, names: list[str]) -> dict[str, int]:
    """How many rows each group has."""
    groups = {row_name(series.key): group_of(series.key) for series in run.series}
    return {group: sum(groups[name] == group for name in names) for group in GROUPS.values()}


def aliases_of(run: Run) -> dict[str, str]:
    """Rows whose value and gradient are those of an earlier row, each with that row."""
    same = same_tensors(run)
    keys = {series.key for series in run.series}
    aliases = {}
    for key, first in same.items():
        gradient, other = gradient_of(key), gradient_of(first)
        equal = same.get(gradient, gradient) == same.get(other, other)
        alone = gradient not in keys and other not in keys
        if key.direction == "forward" and (equal or alone):
            aliases[row_name(key)] = row_name(first)
    return aliases


def gradient_of(key: Key) -> Key:
    """The key of a value's gradient."""
    return key._replace(direction="backward", order=1)


def row_names(run: Run, findings: list[Finding], aliases: dict[str, str]) -> list[str]:
    """All rows but the aliases: those that look wrong first, the worst at the top."""
    keys = [finding.key for finding in findings] + [series.key for series in run.series]
    return [name for name in dict.fromkeys(map(row_name, keys)) if name not in aliases]
