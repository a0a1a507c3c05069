"""The quantisation noise of a run as the page shows it: a bar for each layer and factor."""

import math
from collections.abc import Mapping
from typing import Any

from pullback.tracking.formats._noise import ROLES, QuantisationNoise

__all__ = ["noise_table", "noise_tile"]

STEP = 20  # decibels between two marks of the axis


def noise_table(noise: tuple[QuantisationNoise, ...], rows: Mapping[str, int]) -> dict[str, Any]:
    """Each module with its factors, roles apart, on one axis, and its row in the page."""
    known = [each.decibels for each in noise if math.isfinite(each.decibels)]
    top = STEP * max(1, math.ceil(max(known, default=STEP) / STEP))
    modules: dict[str, dict[str, Any]] = {}
    for each in noise:
        line = modules.setdefault(
            each.module,
            {
                "name": each.module or "(root)",
                "row": _row(each.module or "(root)", rows),
                "roles": {role: [] for role in ROLES},
            },
        )
        line["roles"][each.role].append(_bar(each, top))
    return {"top": top, "mark": 100 * STEP / top, "roles": ROLES, "modules": list(modules.values())}


def _row(name: str, rows: Mapping[str, int]) -> int | None:
    """The row of a layer, or of the first of its outputs."""
    outputs = (row for row in rows if row.startswith((f"{name}[", f"{name}.")))
    return rows[name] if name in rows else rows.get(next(outputs, ""))


def _bar(each: QuantisationNoise, top: int) -> dict[str, Any]:
    if math.isnan(each.decibels):
        return {"text": "all zero", "format": each.number_format, "share": 0, "tone": ""}
    if math.isinf(each.decibels):
        return {"text": "nothing lost", "format": each.number_format, "share": 100, "tone": ""}
    share = round(100 * min(max(each.decibels / top, 0.0), 1.0), 1)
    tone = "alarm" if each.decibels <= 0 else ""  # the errors are as large as the values
    text = f"{each.decibels:.1f} dB"
    return {"text": text, "format": each.number_format, "share": share, "tone": tone}


def noise_tile(noise: tuple[QuantisationNoise, ...]) -> list[dict[str, str]]:
    """The factor that keeps least."""
    known = [each for each in noise if not math.isnan(each.decibels)]
    if not known:
        return []
    least = min(known, key=lambda each: each.decibels)
    value = "nothing lost" if math.isinf(least.decibels) else f"{least.decibels:.1f} dB"
    label = f"least signal to quantisation noise: {least.role} of {least.module or '(root)'}"
    tone = "bad" if least.decibels <= 0 else ""
    return [{"value": value, "label": f"{label}, {least.number_format}", "tone": tone}]
