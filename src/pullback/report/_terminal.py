"""The table Function x clause for a terminal, and what is broken below it."""

import os
import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pullback.report._findings import SIGNS, Finding, Findings, Verdict

__all__ = ["make_console", "print_problems", "print_table", "short_names"]

_NAME_WIDTH = 38
_PIPE_WIDTH = 100
_FEW = 8  # clauses that are named though nothing is wrong with them
_CAUSES = 3  # that are told, of one Function


def make_console(*, stderr: bool = False) -> Console:
    """A console of 100 columns where there is no terminal that has a width of its own.

    Names of data are printed as they are, emoji codes among them. ``FORCE_COLOR`` asks for colours
    in a log, not for a cursor that moves.
    """
    watched = (sys.stderr if stderr else sys.stdout).isatty()
    console = Console(
        stderr=stderr, highlight=False, emoji=False, force_interactive=None if watched else False
    )
    if not watched and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    return console


def short_names(names: Sequence[str]) -> list[str]:
    """Leave out the packages in the middle of a name where the rest stays unique.

    Example:
        >>> short_names(["a.b.c:F", "a.b.d:G"])
        ['a:F', 'a:G']
    """
    shortened = [re.sub(r"^(\w+)\.[\w.]+:", r"\1:", _file(name)) for name in names]
    return [
        short if shortened.count(short) == 1 else _file(name)
        for short, name in zip(shortened, names, strict=True)
    ]


def _file(name: str) -> str:
    """A name without the folder of its file, where it is in one."""
    return re.sub(r"^.*/(?=[^/]+:)", "", name)


def print_table(reports: Sequence[Findings], console: Console, *, verbose: bool = False) -> None:
    """Print the table Function x clause, broken first, and its legend.

    Columns are the clauses that not every Function keeps; the others are counted below. Beside what
    is broken, what is refused clearly is counted too.

    Arguments:
        reports: what was checked.
        console: where to print.
        verbose: name the others.
    """
    if not reports:
        return
    reports = sorted(reports, key=lambda report: report.rank)
    every = list(dict.fromkeys(item.clause for report in reports for item in report))
    refused = not verbose and any(not report.ok for report in reports)
    quiet = (Verdict.HOLDS, Verdict.SKIPPED, *((Verdict.LACKING,) if refused else ()))
    shown = [
        clause
        for clause in every
        if any(clause in r and r[clause].verdict not in quiet for r in reports)
    ]
    plain = console.encoding.lower().replace("-", "") not in ("utf8", "utf16")
    names = short_names([report.function for report in reports])
    if shown:
        pairs = zip(reports, names, strict=True)
        rows = [(r, name) for r, name in pairs if any(clause in r for clause in shown)]
        console.print(_matrix(rows, shown, plain=plain))
        console.print(_legend(plain=plain))
    rest = [clause for clause in every if clause not in shown]
    if rest:
        one = not shown or len(rest) == 1
        found = {r[clause].verdict for r in reports for clause in rest if clause in r}
        lead = "clause holds" if one else f"{len(rest)} clauses hold"
        tail = "does not apply" if one else "do not apply"
        line = f"{'The other' if shown else 'Every'} {lead} or {tail}"
        line += ", or refuse clearly" * (Verdict.LACKING in found)
        if not shown and found == {Verdict.SKIPPED}:
            line = "No clause applies"
        which = f": {', '.join(rest)}" if verbose or len(rest) <= _FEW else " (--verbose has them)"
        console.print(f"[green]{line}[/]{which}.")
    left_out = list(dict.fromkeys(clause for report in reports for clause in report.without))
    if left_out:
        console.print(f"[yellow]Left out as asked:[/] {', '.join(left_out)}.")
    for report, name in zip(reports, names, strict=True):
        _print_remarks(report, name, console)
    console.print()


def _print_remarks(report: Findings, name: str, console: Console) -> None:
    """What the signs do not say: constants, accepted findings, clauses that were not run."""
    accepted = (f"{item.clause} {item.verdict.value}, {item.accepted}" for item in report.accepted)
    untidy = [item for item in report if item.verdict is Verdict.UNTIDY]
    remarks = (
        ("[dim]constants of[/]", ", ".join(report.constants)),
        ("[dim]judged of[/]", ", ".join(report.cut_down)),
        *(("[dim]accepted in[/]", text) for text in accepted),
        *((f"[cyan]{item.clause} untidy[/] in", _in_a_line(item)) for item in untidy),
        ("[yellow]guessed inputs of[/]", report.guessed),
        ("[yellow]not all of[/]", report.unchecked),
    )
    for lead, text in remarks:
        if text:
            console.print(f"{lead} {escape(name)}: {escape(text)}", soft_wrap=True)


def _in_a_line(finding: Finding) -> str:
    """What was seen, and where."""
    facts = ("input", finding.input), ("expected", finding.expected), ("got", finding.got)
    shown = ", ".join(f"{label} {text}" for label, text in facts if text)
    return f"{finding.detail} {shown and f'({shown})'}".strip()


def _legend(*, plain: bool) -> Text:
    legend = Text()
    for sign in SIGNS.values():
        legend.append(f"{sign.plain if plain else sign.glyph} ", style=sign.style)
        legend.append(f"{sign.label}   ", style="dim")
    return legend


def _matrix(rows: Sequence[tuple[Findings, str]], clauses: Sequence[str], *, plain: bool) -> Text:
    """Rows are Functions, columns clauses; a staircase above the columns names them.

    The names stay horizontal, so that they can be read and searched for, and a column costs two
    characters: thirty fit beside a long name in 100.
    """
    width = max(len("Function"), *(min(len(name), _NAME_WIDTH) for _, name in rows)) + 2
    bar = "|" if plain else "│"
    matrix = Text()
    for number, clause in enumerate(clauses):
        lead = "Function" if number == len(clauses) - 1 else ""
        matrix.append(lead.ljust(width), style="bold")
        matrix.append(f"{bar} " * number, style="dim")
        matrix.append(f"{clause}\n")
    for report, name in rows:
        *first, last = _folded(name)
        for line in first:
            matrix.append(f"{line}\n", style="" if report.ok else "bold")
        matrix.append(last.ljust(width), style="" if report.ok else "bold")
        for clause in clauses:
            matrix.append_text(_cell(report, clause, plain=plain))
            matrix.append(" ")
        matrix.append("\n")
    return matrix


def _folded(name: str) -> list[str]:
    """Break a name that is wider than its column, before the last dots and colons that fit."""
    lines = []
    while len(name) > _NAME_WIDTH:
        place = max(name.rfind(mark, 0, _NAME_WIDTH) for mark in ".:_")
        place = place + 1 if place > 0 else _NAME_WIDTH
        lines.append(name[:place])
        name = f"  {name[place:]}"
    return [*lines, name]


def _cell(report: Findings, clause: str, *, plain: bool) -> Text:
    if clause not in report:
        return Text(" ")
    sign = SIGNS[report[clause].verdict]
    return Text(sign.plain if plain else sign.glyph, style=sign.style)


def print_problems(
    report: Findings, rerun: str, console: Console, *, verbose: bool = False
) -> None:
    """Print a finding for each cause, and the command line that runs it again.

    The first cause is printed with its numbers, others with their mend alone: a fault is mended
    before the next one is looked at, and often takes others with it.

    Arguments:
        report: what was found.
        rerun: a command line, or an empty text.
        console: where to print.
        verbose: print each finding, with the table of its entries and its script.
    """
    intent = f" (gradient: {report.gradient})" if report.gradient else ""
    told = report.problems if verbose else report.causes[:_CAUSES]
    for number, finding in enumerate(told):
        # The first line says all that a mend needs: which Function, and what is wrong with it.
        console.print(
            Text.assemble(
                (report.function, "bold"), f"{intent}: ",
                (f"{finding.clause} {finding.verdict.value}", SIGNS[finding.verdict].style),
                f". {finding.detail}",
            )
        )  # fmt: skip
        facts = [("mend", finding.hint)] if number and not verbose else finding.facts
        whole = [("entries", finding.entries)] if verbose else []
        _print_facts([*facts, ("and", report.same_cause(finding)), *whole], console)
        if verbose and finding.repro:
            # As it is: a line that is broken or indented is no Python any more.
            console.print("    [dim]script[/]")
            console.print(Text(finding.repro), soft_wrap=True)
    more = [] if verbose else [finding.clause for finding in report.causes[_CAUSES:]]
    if more:
        console.print(f"  [dim]and {len(more)} more:[/] {', '.join(more)} (--verbose has them)")
    if rerun:
        console.print(f"  [dim]rerun:[/] {escape(rerun)}", soft_wrap=True)
    console.print()


def _print_facts(facts: Sequence[tuple[str, str]], console: Console) -> None:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=10, justify="right", style="dim")
    table.add_column(overflow="fold")
    for label, text in facts:
        if text:
            table.add_row(Text(label), Text(text))
    console.print(table)
