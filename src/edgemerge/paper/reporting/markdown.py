"""The report as a Markdown page, one sentence to a line, its pictures in a folder beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from edgemerge.paper.plan import Claim
from edgemerge.paper.reporting import content
from edgemerge.paper.reporting.content import (
    ABOUT,
    MARKS,
    REPORT_TITLE,
    VERDICTS,
    AbsentResult,
    Report,
    Section,
    Table,
    count_verdicts,
    how_to_run,
)
from edgemerge.paper.running import result_files
from edgemerge.paper.running.result_files import write_file

ORIGIN = "<!-- Made by `edgemerge paper report --markdown`; changes belong into what it reads. -->"


def save_markdown(report: Report, path: Path, folder: Path) -> None:
    """Write the page, and its pictures to images/ beside it; `folder` holds the rows."""
    pictures = Path("images") / path.stem
    for section in report.sections:
        result_files.save_figures(path.parent / pictures, section.name, section.figures)
    rows = Path(os.path.relpath(folder, path.parent))
    write_file(
        render_markdown(report, pictures=pictures.as_posix(), rows=rows.as_posix()).encode(), path
    )


def render_markdown(report: Report, *, pictures: str, rows: str) -> str:
    """Write the page; `pictures` and `rows` are the folders of both, as seen from it."""
    blocks = [f"# {REPORT_TITLE}", ORIGIN, sentence_per_line(ABOUT), *_summary(report)]
    for section in report.sections:
        blocks += _section(section, pictures, rows)
    if report.absent:
        blocks += ["## Not run", *map(_absent, report.absent)]
    blocks += ["## Machine and versions", _machines(report)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _summary(report: Report) -> Iterator[str]:
    yield "## Summary"
    yield "\n".join(map(escape_markdown, content.remarks(report)))
    means = content.mean_auc_table(report)
    if means:
        yield f"{escape_markdown(means.title)}:"
        yield markdown_table(means)
    yield f"{count_verdicts(report)}\nThose that do not hold come first:"
    yield markdown_table(content.claims_table(report))


def _section(section: Section, pictures: str, rows: str) -> Iterator[str]:
    yield f"## {escape_markdown(section.title)}"
    if section.note:
        yield sentence_per_line(escape_markdown(section.note))
    for end in section.figures:
        name = result_files.figure_name(section.name, end)
        yield f"![{escape_markdown(section.named(end))}]({pictures}/{name})"
    yield "\n".join(map(_claim, section.claims))
    if section.table:
        yield markdown_table(section.table)
    yield "\n".join(
        f"- {word}: {_linked(section, rows) if word == 'Rows' else escape_markdown(words)}"
        for word, words in content.record_facts(section.record).items()
    )


def _linked(section: Section, rows: str) -> str:
    return f"[{section.name}.csv]({rows}/{section.name}.csv), {len(section.rows)} of them"


def _claim(claim: Claim) -> str:
    return (
        f"- {MARKS[claim.holds]} {VERDICTS[claim.holds]}: "
        f"{escape_markdown(claim.text)} ({escape_markdown(claim.found)})"
    )


def _absent(absent: AbsentResult) -> str:
    words = escape_markdown(f"{absent.why} {how_to_run(absent.name)}")
    return f"### {escape_markdown(absent.title)}\n\n{sentence_per_line(words)}"


def _machines(report: Report) -> str:
    found = content.machines(report).items()
    return "\n".join(
        f"- {escape_markdown(names)}: {escape_markdown(words)}" for names, words in found
    )


def markdown_table(table: Table) -> str:
    """Write a table."""
    bold = {*table.bold}
    rules = ["---:" if number else "---" for number in table.numbers]
    body = [
        [
            f"**{escape_markdown(cell)}**" if (i, j) in bold else escape_markdown(cell)
            for j, cell in enumerate(line)
        ]
        for i, line in enumerate(table.lines)
    ]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in [[*map(escape_markdown, table.head)], rules, *body]
    )


def escape_markdown(words: str) -> str:
    r"""Escape what Markdown would take for its own; code stays code.

    >>> escape_markdown("a*b | `x_y`")
    'a\\*b \\| `x_y`'
    """
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(
        part.replace("|", r"\|") if i % 2 else re.sub(r"([\\*_<\[\]|])", r"\\\1", part)
        for i, part in enumerate(parts)
    )


def sentence_per_line(words: str) -> str:
    r"""Put each sentence on a line of its own.

    >>> sentence_per_line("One, e.g. this. Two? Three.")
    'One, e.g. this.\nTwo?\nThree.'
    """
    return re.sub(r"(?<=[.!?]) +(?=[A-Z`])", "\n", words)
