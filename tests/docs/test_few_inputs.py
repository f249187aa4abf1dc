"""The table about few inputs is made from the committed rows."""

import csv
from pathlib import Path

import pytest

from benchmarks.few_inputs import markdown, rows
from benchmarks.results import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "set-a-limit.md"


def test_the_table_on_the_page_is_that_of_the_rows():
    with (RESULTS / "few_inputs.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 10 * 2 * 2 * 3 * 5
    assert markdown(found) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_benchmark_runs():
    found = rows(quick=True)
    assert {row["first_limit"] for row in found} == {"up to 6", "as it is"}
    assert all(0.0 <= row["in_alarm"] <= 1.0 for row in found)
