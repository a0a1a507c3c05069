"""The page on formats says of each what the table of formats has."""

import re
from pathlib import Path

import pytest

from pullback.tracking.formats import FORMATS, SCALED_FORMATS, find_format

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a head, without the head."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(cell: str) -> float:
    """``2⁻¹⁴``, ``1/2`` or ``448``."""
    if cell.startswith("2") and len(cell) > 1 and cell[1] in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹":
        return 2.0 ** int(cell[1:].translate(RAISED))
    top, _, bottom = cell.partition("/")
    return float(top) / float(bottom or 1)


def test_every_format_that_advice_is_given_for_has_its_row():
    found = {}
    for name, bits, largest, normal, smallest, has, _ in rows("| name | bits |"):
        known = find_format(re.findall("`(.*?)`", name)[0])
        found[known.name] = known
        assert int(bits) == known.bits
        assert float(largest) == pytest.approx(known.largest, rel=2e-3)
        assert (number(normal), number(smallest)) == (known.smallest_normal, known.smallest)
        assert ("infinities" in has) == known.infinite
        assert ("no negative zero" in has) != known.signed_zero
    assert list(found.values()) == list(FORMATS)


def test_every_format_with_a_scale_has_its_row():
    found = {}
    for names, elements, scale in rows("| name | elements | scale |"):
        together = re.findall("`(.*?)`", names)
        for name, element in zip(together, elements.split(", "), strict=False):
            known = find_format(name)
            found[known.name] = known
            size = (
                "tensor"
                if known.per == "tensor"
                else "channel"
                if known.per == "channel"
                else str(known.per)
            )
            assert size in scale, name
            kind = {"E8M0": "a power of two", "E4M3": "E4M3 for"}.get(known.scale, "float32")
            assert kind in scale, name
            largest = f"-{known.element.largest:.0f} to {known.element.largest:.0f}"
            assert element in (known.element.name, largest), name
    assert set(found) == {known.name for known in SCALED_FORMATS}
