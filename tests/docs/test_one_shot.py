"""docs/one-shot.md says what the committed rows say."""

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from edgemerge.comparison import datasets, one_shot
from edgemerge.paper.running import result_files

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
ROWS, PAGE = DOCS / "results" / "one-shot", DOCS / "one-shot.md"


@pytest.fixture(scope="module")
def saved():
    found = result_files.read_result(ROWS, one_shot.NAME)
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.slow
def test_the_page_is_what_the_command_fills_in(saved):
    text = PAGE.read_text(encoding="utf-8")
    made = one_shot.page(saved, text)
    assert made == text, "fill it again: edgemerge paper report --only one-shot"
    places = set(re.findall(r"<!-- (.+?) -->", text)) - {"end"}
    assert set(one_shot.page_tables(saved)) <= places
    assert (DOCS / "images" / "one-shot" / "one-shot-devices.png").exists()


def test_the_sizes_on_the_page_are_those_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    for words in (
        f"at most {datasets.MOST_PAIR_ROWS:,} rows a pattern".replace(",", " "),
        f"at most {datasets.MOST_LEARNT} rows to learn",
        f"at most {datasets.MOST_TESTED} normal rows of each pattern",
        f"and {2 * datasets.MOST_TESTED} odd ones",
        "fewer than ten rows",
    ):
        assert words in text
    assert datasets.MIN_DEVICE_ROWS == 10


def test_the_settings_of_the_rows_are_those_that_the_rows_chose(saved):
    tried = one_shot.select(saved.rows, kind=one_shot.CHOICE)
    for place in {(row["set"], row["exam"], row["method"]) for row in tried}:
        same = [row for row in tried if (row["set"], row["exam"], row["method"]) == place]
        best = max(float(row["auc"]) for row in same)
        (chosen,) = (row for row in same if row["chosen"])
        assert float(chosen["auc"]) >= best - one_shot.WITHIN - 1e-4  # rows have four digits
