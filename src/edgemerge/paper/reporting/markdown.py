"""The report as a Markdown page, one sentence to a line, its pictures in a folder beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from edgemerge.paper.plan import Claim
from edgemerge.paper.reporting import summary, telling
from edgemerge.paper.reporting.report import (
    ABOUT,
    MARKS,
    TITLE,
    WORDS,
    Absent,
    Report,
    Section,
    how,
    verdict,
)
from edgemerge.paper.reporting.tables import Table
from edgemerge.paper.running import keeping
from edgemerge.paper.running.whole import write

ORIGIN = "<!-- Made by `edgemerge paper report --markdown`; changes belong into what it reads. -->"


def save(report: Report, path: Path, folder: Path) -> None:
    """Write the page, and its pictures to images/ beside it; `folder` holds the rows."""
    pictures = Path("images") / path.stem
    for section in report.sections:
        keeping.draw(path.parent / pictures, section.name, section.figures)
    rows = Path(os.path.relpath(folder, path.parent))
    write(page(report, pictures=pictures.as_posix(), rows=rows.as_posix()).encode(), path)


def page(report: Report, *, pictures: str, rows: str) -> str:
    """Write the page; `pictures` and `rows` are the folders of both, as seen from it."""
    blocks = [f"# {TITLE}", ORIGIN, lines(ABOUT), *_summary(report)]
    for section in report.sections:
        blocks += _section(section, pictures, rows)
    if report.absent:
        blocks += ["## Not run", *map(_absent, report.absent)]
    blocks += ["## Machine and versions", _machines(report)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _summary(report: Report) -> Iterator[str]:
    yield "## Summary"
    yield "\n".join(map(text, telling.remarks(report)))
    means = summary.means(report)
    if means:
        yield f"{text(means.title)}:"
        yield grid(means)
    yield f"{verdict(report)}\nThose that do not hold come first:"
    yield grid(summary.claims(report))


def _section(section: Section, pictures: str, rows: str) -> Iterator[str]:
    yield f"## {text(section.title)}"
    if section.note:
        yield lines(text(section.note))
    for end in section.figures:
        name = keeping.file_name(section.name, end)
        yield f"![{text(section.named(end))}]({pictures}/{name})"
    yield "\n".join(map(_claim, section.claims))
    if section.table:
        yield grid(section.table)
    yield "\n".join(
        f"- {word}: {_linked(section, rows) if word == 'Rows' else text(words)}"
        for word, words in telling.facts(section.record).items()
    )


def _linked(section: Section, rows: str) -> str:
    return f"[{section.name}.csv]({rows}/{section.name}.csv), {len(section.rows)} of them"


def _claim(claim: Claim) -> str:
    return f"- {MARKS[claim.holds]} {WORDS[claim.holds]}: {text(claim.text)} ({text(claim.found)})"


def _absent(absent: Absent) -> str:
    return f"### {text(absent.title)}\n\n{lines(text(f'{absent.why} {how(absent.name)}'))}"


def _machines(report: Report) -> str:
    found = telling.machines(report).items()
    return "\n".join(f"- {text(names)}: {text(words)}" for names, words in found)


def grid(table: Table) -> str:
    """Write a table."""
    bold = {*table.bold}
    rules = ["---:" if number else "---" for number in table.numbers]
    body = [
        [f"**{text(cell)}**" if (i, j) in bold else text(cell) for j, cell in enumerate(line)]
        for i, line in enumerate(table.lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[*map(text, table.head)], rules, *body])


def text(words: str) -> str:
    r"""Escape what Markdown would take for its own; code stays code.

    >>> text("a*b | `x_y`")
    'a\\*b \\| `x_y`'
    """
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(
        part.replace("|", r"\|") if i % 2 else re.sub(r"([\\*_<\[\]|])", r"\\\1", part)
        for i, part in enumerate(parts)
    )


def lines(words: str) -> str:
    r"""Put each sentence on a line of its own.

    >>> lines("One, e.g. this. Two? Three.")
    'One, e.g. this.\nTwo?\nThree.'
    """
    return re.sub(r"(?<=[.!?]) +(?=[A-Z`])", "\n", words)
