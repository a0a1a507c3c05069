"""`write_html`: a run as one file to be looked at, offline, in any browser."""

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from pullback.errors import RecordingError
from pullback.internal._files import write_whole
from pullback.internal._text import clean_within
from pullback.tracking.formats import FORMATS, NumberFormat, QuantisationNoise
from pullback.tracking.formats._recipe import ROLES
from pullback.tracking.report._diagnosis import diagnose
from pullback.tracking.report._rows import GROUPS, Row, row_name, shown_rows, thin
from pullback.tracking.run._identity import ROOT
from pullback.tracking.run._log import Run, Series, pack_points

__all__ = ["render_html", "write_html"]

SHOWN_FINDINGS = 12
TILES = ("fp16", "bf16", "E4M3", "E5M2")
LOSS = 0.01  # of the nonzero values
STEP = 20  # decibels between two marks of the axis of noise
FIGURES = ("scale", "mean", "max |x|", "min |x| > 0", "zeros, %", "non-finite")


def write_html(run: Run, path: str | Path) -> None:
    """Write a run as one self-contained file."""
    text = render_html(run)
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise RecordingError(
            f"The report cannot be written to {path}; what was there is as it was.",
            given=error.strerror,
            mend="Make room, or name a file in a folder that exists and can be written.",
        ) from error


def render_html(run: Run) -> str:
    """A run as a page: what looks wrong, all layers over time, and each layer by itself.

    It asks nothing of the network.
    """
    findings, run = diagnose(run), thin(run)
    rows = shown_rows(run, findings)
    numbers = {name: at for at, row in enumerate(rows) for name in (row.name, *row.also)}
    page = files("pullback.tracking.report") / "_page"
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=clean_within
    )
    template = environment.from_string((page / "report.html.jinja").read_text("utf-8"))
    return template.render(
        title=run.title,
        subtitle=_subtitle(run, rows),
        tiles=_tiles(run, rows),
        noise=_noise_table(run.noise, numbers),
        run=run,
        findings=[(each, numbers[row_name(each.key)]) for each in findings[:SHOWN_FINDINGS]],
        more_findings=max(0, len(findings) - SHOWN_FINDINGS),
        formats=FORMATS,
        chosen="fp16",
        style=(page / "report.css").read_text("utf-8"),
        script=(page / "report.js").read_text("utf-8"),
        data=_embed(_data(run, rows)),
    )


def _subtitle(run: Run, rows: list[Row]) -> str:
    steps = {int(step) for series in run.series for step in series.points.steps}
    shown = f"steps {min(steps)} to {max(steps)}" if steps else "no steps"
    cadence = "every step" if run.every == 1 else f"every {run.every} steps"
    return f"{_counted(rows)}, {shown}, measured {cadence}"


def _counted(rows: list[Row]) -> str:
    counts = Counter(row.group for row in rows)
    words = {"layers": "layers with their gradients", "states": "states of the optimizer"}
    parts = [
        f"{counts[group]:,} {words.get(group, group)}" for group in GROUPS.values() if counts[group]
    ]
    return ", ".join(parts) or "no layers"


class _Tile(NamedTuple):
    """What the page says at its top, in large letters."""

    value: str
    label: str
    tone: str = ""


def _tiles(run: Run, rows: list[Row]) -> list[_Tile]:
    first = run.first_nonfinite
    layers = sum(row.group == GROUPS["module"] for row in rows)
    wrong = sum(bool(row.problems) for row in rows)
    tiles = [
        _Tile(f"{layers:,}", "layers watched"),
        _Tile(str(wrong), "tensors look wrong", "warn" if wrong else "good"),
    ]
    if first is None:
        tiles.append(_Tile("none", "held NaN or infinity", "good"))
    else:
        where = f"first with NaN or infinity, {first.key.direction}, step {first.place.step}"
        tiles.append(_Tile(str(first.key), where, "bad"))
    trained = [one for one in run.series if one.key.source in ("module", "parameter")]
    for known in FORMATS:
        if known.name in TILES:
            losing = sum(_share_outside(one.total.exponents, known) > LOSS for one in trained)
            label = f"values or gradients lose over 1 % in {known.name}, unscaled"
            tiles.append(_Tile(str(losing), label, "warn" if losing else "good"))
    noise = [each for each in run.noise if not math.isnan(each.decibels)]
    if noise:  # the factor that keeps least
        least = min(noise, key=lambda each: each.decibels)
        label = f"least signal to quantisation noise: {least.role} of {least.module or ROOT}"
        tone = "bad" if least.decibels <= 0 else ""
        tiles.append(_Tile(_kept(least), f"{label}, {least.number_format}", tone))
    return tiles


def _share_outside(exponents: Mapping[int, int], known: NumberFormat) -> float:
    """The share of nonzero values that a format flushes to zero or lets overflow, at least.

    The exponent that a border falls into counts as inside; `advise_from_exponents` gives bounds
    for it and the best scale, and takes a thousand times as long.
    """
    tiny, _, top = known.reach
    lost = sum(count for e, count in exponents.items() if e + 1 <= tiny or e >= top)
    return lost / max(sum(exponents.values()), 1)


def _embed(data: dict[str, Any]) -> str:
    """JSON that can stand inside a script element, whatever the names of the layers are."""
    # A long text is cut as it is cleaned, and the points are one: letters and digits, all needed.
    cleaned = clean_within({**data, "points": ""}) | {"points": data["points"]}
    text = json.dumps(cleaned, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _data(run: Run, rows: list[Row]) -> dict[str, Any]:
    moments = sorted({moment for each in run.series for moment in each.points.moments()})
    column = {moment: index for index, moment in enumerate(moments)}
    shown: list[dict[str, Any]] = []
    blocks: list[np.ndarray] = []
    offset = 0
    for row in rows:
        told: dict[str, Any] = {"name": row.name, "problems": row.problems, "rank": row.rank}
        if row.also:
            told["also"] = row.also
        if row.group != GROUPS["module"]:  # a page says so of few
            told["group"] = row.group
        for direction, series in row.sides.items():
            told[direction] = _side(series, column, offset)
            offset += len(series.points)
            points = series.points
            blocks.append(pack_points(points.scale, points.peak, points.zeros, points.flags))
        shown.append(told)
    packed = np.concatenate(blocks).tobytes() if blocks else b""
    return {
        "rows": shown,
        "moments": moments,
        "microbatches": any(batch for _, batch in moments),
        "points": base64.b64encode(packed).decode("ascii"),
        "figures": FIGURES,
        "formats": [
            dict(zip(("tiny", "normal", "top"), each.reach, strict=True)) for each in FORMATS
        ],
    }


def _side(series: Series, column: dict[tuple[int, int], int], offset: int) -> dict[str, Any]:
    total, points = series.total, series.points
    first = min(total.exponents, default=0)
    last = max(total.exponents, default=-1)
    most = max(total.exponents.values(), default=1)
    places = [column[moment] for moment in points.moments()]
    side: dict[str, Any] = {
        "offset": offset,
        "count": len(points),
        "first": first,
        # Thousandths of the fullest bin: a picture needs no more.
        "bins": [
            math.ceil(1000 * total.exponents.get(e, 0) / most) for e in range(first, last + 1)
        ],
        "figures": [
            _figure(total.scale),
            _figure(total.mean),
            _figure(total.max_abs),
            _figure(total.min_abs),
            _figure(total.zeros / total.count if total.count else math.nan),
            total.count - total.finite,
        ],
    }
    if places != list(range(len(column))):
        side["moments"] = places
    return side


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _noise_table(noise: tuple[QuantisationNoise, ...], rows: Mapping[str, int]) -> dict[str, Any]:
    """Each module with its factors, roles apart, on one axis, and its row in the page."""
    known = [each.decibels for each in noise if math.isfinite(each.decibels)]
    top = STEP * max(1, math.ceil(max(known, default=STEP) / STEP))
    modules: dict[str, dict[str, Any]] = {}
    for each in noise:
        name = each.module or ROOT
        fresh = {"name": name, "row": _row_of(name, rows), "roles": {role: [] for role in ROLES}}
        line = modules.setdefault(name, fresh)
        share = 0.0 if math.isnan(each.decibels) else min(max(each.decibels / top, 0.0), 1.0)
        bar = {"text": _kept(each), "format": each.number_format, "share": round(100 * share, 1)}
        bar["tone"] = "alarm" if each.decibels <= 0 else ""  # errors as large as the values
        line["roles"][each.role].append(bar)
    return {"top": top, "mark": 100 * STEP / top, "roles": ROLES, "modules": list(modules.values())}


def _row_of(name: str, rows: Mapping[str, int]) -> int | None:
    """The row of a layer, or of the first of its outputs."""
    outputs = (row for row in rows if row.startswith((f"{name}[", f"{name}.")))
    return rows[name] if name in rows else rows.get(next(outputs, ""))


def _kept(each: QuantisationNoise) -> str:
    if math.isfinite(each.decibels):
        return f"{each.decibels:.1f} dB"
    return "all zero" if math.isnan(each.decibels) else "nothing lost"
