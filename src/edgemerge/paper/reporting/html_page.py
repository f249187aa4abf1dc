"""The report as one HTML page that needs nothing else: no script, no request, no other file."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files

from matplotlib.figure import Figure

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

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
KINDS = {True: "yes", False: "no", None: "unknown"}
PIXELS = 96  # of a page, to the inch


def render_html(report: Report) -> str:
    """Return the report as an HTML page."""
    style = files("edgemerge.paper.reporting").joinpath("page.css").read_text(encoding="utf-8")
    parts = [*_summary(report), *map(_section, report.sections), *_absents(report)]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            f'<head>\n<meta charset="utf-8">\n<title>{escape(REPORT_TITLE)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
            f"<style>\n{style}</style>\n</head>\n<body>",
            f"<header>\n<h1>{escape(REPORT_TITLE)}</h1>\n<p>{escape_html(ABOUT)}</p>\n</header>",
            _contents(report),
            "<main>",
            *parts,
            '<section id="machine">\n<h2>Machine and versions</h2>',
            f"{_facts(content.machines(report))}\n</section>",
            "</main>\n</body>\n</html>\n",
        )
    )


def _contents(report: Report) -> str:
    places = [("summary", "Summary"), ("claims", content.PAPER_CLAIMS_TITLE)]
    places += [*((each.name, each.title) for each in report.sections)]
    places += [("not-run", "Not run")] if report.absent else []
    places += [("machine", "Machine and versions")]
    items = (f'<li><a href="#{place}">{escape_html(title)}</a></li>' for place, title in places)
    return f'<nav aria-label="Contents">\n<ol>\n{_joined(items)}\n</ol>\n</nav>'


def _summary(report: Report) -> Iterator[str]:
    yield '<section id="summary">\n<h2>Summary</h2>'
    yield from (f"<p>{escape_html(words)}</p>" for words in content.remarks(report))
    means = content.mean_auc_table(report)
    if means:
        yield html_table(means)
    yield f"<p>{escape_html(count_verdicts(report))}</p>"
    yield _all_claims(report)
    yield "</section>"
    yield f'<section id="claims">\n<h2>{escape_html(content.PAPER_CLAIMS_TITLE)}</h2>'
    yield f"<p>{escape_html(content.paper_claims_note(report))}</p>"
    yield html_table(content.paper_claims_table(report), "box wordy")
    yield "</section>"


def _all_claims(report: Report) -> str:
    head = _joined(f'<th scope="col">{word}</th>' for word in ("Holds", "Claim", "Found", "Result"))
    lines = _joined(
        f'<tr class="{KINDS[claim.holds]}"><td>{_verdict(claim)}</td>'
        f"<td>{escape_html(claim.text)}</td><td>{escape_html(claim.found)}</td>"
        f'<td><a href="#{section.name}">{section.name}</a></td></tr>'
        for section, claim in content.failed_claims_first(report)
    )
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>"
    return _boxed(content.CLAIMS_TITLE, inner, "box wordy")


def _section(section: Section) -> str:
    parts = (
        f'<section id="{section.name}">\n<h2>{escape_html(section.title)}</h2>',
        f"<p>{escape_html(section.note)}</p>" if section.note else "",
        *(_figure(section, end, each) for end, each in section.figures.items()),
        _claims(section.claims),
        html_table(section.table) if section.table else "",
        *map(html_table, section.more_tables),
        "<h3>How it was made</h3>",
        _facts(content.record_facts(section.record)),
        "</section>",
    )
    return _joined(filter(None, parts))


def _figure(section: Section, end: str, figure: Figure) -> str:
    data = b64encode(result_files.figure_png(figure)).decode()
    width, height = (round(inches * PIXELS) for inches in figure.get_size_inches())
    name = escape(section.named(end), quote=True)
    image = (
        f'<img alt="{name}" width="{width}" height="{height}" src="data:image/png;base64,{data}">'
    )
    label = f'class="box" tabindex="0" role="group" aria-label="Figure: {name}"'
    return f"<figure>\n<div {label}>{image}</div>\n</figure>"


def _claims(claims: list[Claim]) -> str:
    items = (
        f'<li class="{KINDS[claim.holds]}">{_verdict(claim)} <div><p>{escape_html(claim.text)}</p>'
        f'<p class="found">{escape_html(claim.found)}</p></div></li>'
        for claim in claims
    )
    return f'<ul class="claims">\n{_joined(items)}\n</ul>' if claims else ""


def _verdict(claim: Claim) -> str:
    return (
        f'<span class="mark"><span aria-hidden="true">{MARKS[claim.holds]}</span> '
        f'<span class="word">{VERDICTS[claim.holds]}</span></span>'
    )


def _absents(report: Report) -> Iterator[str]:
    if report.absent:
        yield '<section id="not-run">\n<h2>Not run</h2>'
        for each in report.absent:
            yield f'<h3 id="{each.name}">{escape_html(each.title)}</h3>'
            yield f"<p>{escape_html(f'{each.why} {how_to_run(each.name)}')}</p>"
        yield "</section>"


def _facts(found: Mapping[str, str]) -> str:
    items = (
        f"<dt>{escape_html(word)}</dt><dd>{escape_html(words)}</dd>"
        for word, words in found.items()
    )
    return f'<dl class="facts">\n{_joined(items)}\n</dl>'


def html_table(table: Table, kind: str = "box") -> str:
    """Return a table in a box that scrolls."""
    kinds = [' class="number"' if number else "" for number in table.numbers]
    head = "".join(
        f'<th scope="col"{kind}>{escape_html(word)}</th>'
        for word, kind in zip(table.head, kinds, strict=True)
    )
    lines = _joined(_line(table, i, kinds) for i in range(len(table.lines)))
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>"
    return _boxed(table.title, inner, kind)


def _line(table: Table, i: int, kinds: list[str]) -> str:
    cells = []
    for j, (cell, kind) in enumerate(zip(table.lines[i], kinds, strict=True)):
        shown = escape_html(cell)
        if (i, j) in table.bold:
            shown = f"<strong>{shown}</strong>"
        cells.append(f'<th scope="row">{shown}</th>' if j == 0 else f"<td{kind}>{shown}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _boxed(title: str, inner: str, kind: str = "box") -> str:
    name = escape(title, quote=True)
    box = f'<div class="{kind}" tabindex="0" role="region" aria-label="{name}">'
    return f"{box}\n<table>\n<caption>{escape_html(title)}</caption>\n{inner}\n</table>\n</div>"


def escape_html(words: str) -> str:
    """Escape text for HTML; between backticks is code, between asterisks a title.

    >>> escape_html("a < b, `x & y`, *Title*")
    'a &lt; b, <code>x &amp; y</code>, <cite>Title</cite>'
    """
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words, quote=False))
    return re.sub(r"\*(\w[^*<]*)\*", r"<cite>\1</cite>", safe)


def _joined(parts: Iterator[str]) -> str:
    return "\n".join(parts)
