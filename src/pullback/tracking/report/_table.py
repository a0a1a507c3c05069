"""`render_table`: a run as text, one tensor a line."""

from pullback.tracking.formats._noise import render_noise
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._rows import gradient_of
from pullback.tracking.run._log import Run

__all__ = ["render_table"]

_COLUMNS = ("scale", "mean", "max |x|", "zero", "bad")


def render_table(run: Run) -> str:
    """Every tensor on a line: its scale (root mean square), mean, maximum, share of zeros, and
    number of non-finite elements; first of the value, then of its gradient. Where formats were
    simulated and measured, the signal to quantisation noise of each layer's factors follows.
    """  # noqa: D205 - the claim is one sentence and takes two lines
    found = {series.key: series.total for series in run.series}
    values = [key for key in found if key.direction != "backward"]
    paired = {gradient_of(key) for key in values}
    alone = [key for key in found if key.direction == "backward" and key not in paired]
    header = ["tensor", *_COLUMNS, *(f"grad {name}" for name in _COLUMNS)]
    body = [[str(key), *_cells(found[key]), *_cells(found.get(gradient_of(key)))] for key in values]
    body += [[str(key), *_cells(None), *_cells(found[key])] for key in alone]
    widths = [max(len(line[i]) for line in [header, *body]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [header, ["-" * width for width in widths], *body]
    ]
    noise = ["", render_noise(run.noise)] if run.noise else []
    return "\n".join([*lines, *noise, *([run.advice] if run.advice else [])])


def _cells(statistics: Statistics | None) -> list[str]:
    if statistics is None:
        return [""] * len(_COLUMNS)
    share = statistics.zeros / statistics.count if statistics.count else 0.0
    bad = statistics.count - statistics.finite
    return [
        f"{statistics.scale:.3g}",
        f"{statistics.mean:.3g}",
        f"{statistics.max_abs:.3g}",
        f"{share:.1%}",
        str(bad) if bad else "",
    ]
