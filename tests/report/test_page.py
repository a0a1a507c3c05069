"""The HTML page: complete, self-contained, and everything escaped."""

import re
from html.parser import HTMLParser

import pytest

from pullback.report import Finding, Report, Verdict, render_page

EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def finding(clause: str, verdict: str, **fields: str) -> Finding:
    return Finding(clause, Verdict(verdict), fields.pop("detail", f"detail of {clause}"), **fields)


def report(name: str, *findings: Finding) -> Report:
    return Report(name, "exact", True, findings, 3, 0.5, {"torch": "2.13.0"})


GOOD = report("pkg.a:Good", finding("derivative", "holds"), finding("vmap", "lacking"))
BAD = report(
    "pkg.b:Bad",
    finding(
        "derivative",
        "broken",
        expected="1.0",
        got="2.0",
        hint="halve it",
        repro="print(1 < 2)",
        why="a reason why",
    ),
    finding("vmap", "skipped"),
)


class Balance(HTMLParser):
    """Fails on a tag that is closed without having been opened, or never closed."""

    void = frozenset({"meta", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data)


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_page_says_what_is_broken_why_and_the_mend() -> None:
    page = render_page([GOOD, BAD], command="pullback check pkg", reruns={"pkg.b:Bad": "rerun it"})
    text = " ".join(parse(page).texts)
    for part in ("1 of 2", "detail of derivative", "a reason why", "1.0", "2.0", "halve it",
                 "print(1 < 2)", "rerun it", "pullback check pkg", "2.13.0"):  # fmt: skip
        assert part in text, part


def test_broken_comes_first() -> None:
    page = render_page([GOOD, BAD])
    assert page.index("Bad") < page.index("Good")


def test_nothing_is_loaded_from_outside() -> None:
    page = render_page([GOOD, BAD])
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    "field", ["detail", "expected", "got", "hint", "source", "repro", "input", "why"]
)
def test_every_field_is_escaped(field: str) -> None:
    page = render_page([report("a:F", finding("linear", "broken", **{field: EVIL}))])
    assert "<script>alert" not in page
    assert "49" not in page
    assert EVIL in " ".join(parse(page).texts)


def test_names_reasons_and_commands_are_escaped() -> None:
    page = render_page(
        [report(f"{EVIL}:F", finding("linear", "broken"))],
        not_checked=[(EVIL, EVIL)],
        not_imported=[EVIL],
        command=EVIL,
        reruns={f"{EVIL}:F": EVIL},
    )
    assert "<script>alert" not in page
    parse(page)


def test_an_empty_report_is_a_page_too() -> None:
    parse(render_page([]))
    assert "a:F" in Report("a:F", "exact", False, (), 0).to_html()


def test_the_first_line_says_what_is_wrong_with_which_function():
    texts = [text for text in parse(render_page([GOOD, BAD])).texts if text.strip()]
    heading = texts.index("1 of 2 Functions breaks the contract")
    words = " ".join(texts[heading + 1 : heading + 4]).split()
    assert words == ["pkg.b:Bad", "derivative", "broken", ":", "detail", "of", "derivative"]
    many = [report(f"pkg:Bad{k}", finding("form", "crashes")) for k in range(8)]
    assert "and 3 more Functions below" in render_page(many)


def test_columns_that_somebody_breaks_come_first():
    page = render_page(
        [GOOD, report("p:B", finding("derivative", "holds"), finding("vmap", "broken"))]
    )
    assert page.index("<span>vmap</span>") < page.index("<span>derivative</span>")


def test_rows_of_one_class_name_say_their_whole_module():
    names = [f"a.very.long.path.of.packages.module_{k}:SameName" for k in "ab"]
    page = render_page([report(name, finding("form", "holds")) for name in names])
    for name in names:
        assert f'<span class="module">{name.rpartition(":")[0]}</span>' in page
    assert "text-overflow" not in page
