"""The pages of comparisons say what the committed rows say."""

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pysad")

from edgemerge.cli.paper import find_result
from edgemerge.paper.reporting import markdown
from edgemerge.paper.reporting.content import Report, read_report

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("streams", "ablation")
ROWS = DOCS / "results" / "comparison"


def report(name: str) -> Report:
    return read_report(ROWS, [find_result(name)])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_command_makes_of_the_rows(name):
    rows = Path(os.path.relpath(ROWS, DOCS)).as_posix()
    made = markdown.render_result(report(name), pictures=f"images/{name}", rows=rows)
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert made == page, f"make it again: edgemerge paper report --only {name}"
    assert (DOCS / "images" / name / f"{name}.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_rows_are_those_of_a_full_run(name):
    (section,) = report(name).sections
    assert not section.record.quick
    assert len({row["seed"] for row in section.rows}) >= 3


@pytest.mark.slow
def test_other_pages_say_of_the_grid_what_its_rows_say():
    ablation = (DOCS / "ablation.md").read_text(encoding="utf-8")
    (most,) = re.findall(r"from 8 bits on, the grid changes .* \(([\d.]+) at most\)", ablation)
    for page in ("scale.md", "how-to/train-on-a-cluster.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        assert f"own to g = 8 the mean ROC-AUC of a data set changes by at most {most}" in text


@pytest.mark.slow
def test_undo_was_exact_in_every_fleet():
    (section,) = report("streams").sections
    undone = [row for row in section.rows if "same_sums" in row]
    assert len(undone) >= 4 * 3
    assert all(row["same_sums"] == 1 and row["difference"] == 0.0 for row in undone)
