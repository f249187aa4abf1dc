"""docs/paper.md says what the committed rows say."""

import os
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

DOCS = Path(__file__).parents[2] / "docs"
ROWS, PAGE = DOCS / "results" / "paper", DOCS / "paper.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGE.exists(), reason="docs/paper.md has not been made yet"),
]


def test_the_page_is_what_the_command_makes_of_the_rows():
    from edgemerge.paper.plan import NAMES, load_result
    from edgemerge.paper.reporting import markdown
    from edgemerge.paper.reporting.content import read_report

    report = read_report(ROWS, [load_result(name) for name in NAMES])
    rows = Path(os.path.relpath(ROWS, DOCS)).as_posix()
    made = markdown.render_markdown(report, pictures="images/paper", rows=rows)
    assert made == PAGE.read_text(encoding="utf-8"), "make it again: edgemerge paper report"
    for section in report.sections:
        for end in section.figures:
            name = f"{section.name}-{end}.png" if end else f"{section.name}.png"
            assert (DOCS / "images" / "paper" / name).exists()
