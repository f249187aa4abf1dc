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
    """Return the page; `pictures` and `rows` are the folders of both, relative to it."""
    blocks = [f"# {REPORT_TITLE}", ORIGIN, sentence_per_line(ABOUT), *_summary(report)]
    for section in report.sections:
        blocks += _section(section, pictures, rows)
    blocks += ["## Not run"] if report.absent else []
    for each in report.absent:
        words = escape_markdown(f"{each.why} {how_to_run(each.name)}")
        blocks.append(f"### {escape_markdown(each.title)}\n\n{sentence_per_line(words)}")
    machines = {escape_markdown(k): escape_markdown(v) for k, v in content.machines(report).items()}
    facts = "\n".join(f"- {names}: {words}" for names, words in machines.items())
    blocks += ["## Machine and versions", facts]
    return "\n\n".join(filter(None, blocks)) + "\n"


def save_result_page(report: Report, path: Path, folder: Path) -> None:
    """Write a page of one result, and its pictures to images/ beside it."""
    (section,) = report.sections
    pictures = Path("images") / path.stem
    result_files.save_figures(path.parent / pictures, section.name, section.figures)
    rows = Path(os.path.relpath(folder, path.parent))
    page = render_result(report, pictures=pictures.as_posix(), rows=rows.as_posix())
    write_file(page.encode(), path)


def render_result(report: Report, *, pictures: str, rows: str) -> str:
    """Return a page of a report's only result; `pictures` and `rows` are as for the whole."""
    (section,) = report.sections
    title, *blocks = _section(section, pictures, rows)
    facts = "\n".join(f"- {escape_markdown(words)}" for words in content.machines(report).values())
    every = [title.removeprefix("#"), ORIGIN, *blocks, "## Machine and versions", facts]
    return "\n\n".join(filter(None, every)) + "\n"


def _summary(report: Report) -> Iterator[str]:
    yield "## Summary"
    yield "\n".join(map(escape_markdown, content.remarks(report)))
    means = content.mean_auc_table(report)
    if means:
        yield f"{escape_markdown(means.title)}:"
        yield markdown_table(means)
    yield f"{count_verdicts(report)}\nThose that do not hold come first:"
    yield markdown_table(content.claims_table(report))
    yield f"## {content.PAPER_CLAIMS_TITLE}"
    yield sentence_per_line(escape_markdown(content.paper_claims_note(report)))
    yield markdown_table(content.paper_claims_table(report))


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
    for table in section.more_tables:
        yield f"{escape_markdown(table.title)}:"
        yield markdown_table(table)
    facts = {k: escape_markdown(v) for k, v in content.record_facts(section.record).items()}
    facts["Rows"] = f"[{section.name}.csv]({rows}/{section.name}.csv), {len(section.rows)} of them"
    yield "\n".join(f"- {word}: {words}" for word, words in facts.items())


def _claim(claim: Claim) -> str:
    return (
        f"- {MARKS[claim.holds]} {VERDICTS[claim.holds]}: "
        f"{escape_markdown(claim.text)} ({escape_markdown(claim.found)})"
    )


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    rules = ["---:" if number else "---" for number in table.numbers]
    lines = [[escape_markdown(cell) for cell in line] for line in table.lines]
    for i, j in table.bold:
        lines[i][j] = f"**{lines[i][j]}**"
    every = [[*map(escape_markdown, table.head)], rules, *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


def escape_markdown(words: str) -> str:
    r"""Escape Markdown's special characters; code stays code.

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
