"""What a check found, `Finding` and `Report`, and its faces: table, HTML, JSON, JUnit."""

from pullback.internal._text import clean
from pullback.report._baseline import Baseline
from pullback.report._findings import SIGNS, Finding, Sign, Verdict
from pullback.report._gather import gather_reports
from pullback.report._junit import render_junit
from pullback.report._page import render_page
from pullback.report._report import Report, merge_reports, read_reports, render_json
from pullback.report._sarif import render_annotations, render_sarif
from pullback.report._terminal import make_console, print_problems, print_table

__all__ = [
    "SIGNS",
    "Baseline",
    "Finding",
    "Report",
    "Sign",
    "Verdict",
    "clean",
    "gather_reports",
    "make_console",
    "merge_reports",
    "print_problems",
    "print_table",
    "read_reports",
    "render_annotations",
    "render_json",
    "render_junit",
    "render_page",
    "render_sarif",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
