"""Where our defaults are ahead and behind: made from the rows, and said so on the pages."""

import csv

import numpy as np
import pytest

from benchmarks import ahead
from benchmarks.results import RESULTS

PAGE = (RESULTS.parent / "results.md").read_text(encoding="utf-8")


def committed(name):
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_are_those_of_the_rows():
    rows = ahead.read()
    assert ahead.ahead(rows) == committed("ahead.csv")
    assert ahead.behind(rows) == committed("behind.csv")


def low_end(other, column):
    (line,) = (row for row in committed("ahead.csv") if row["ours against"] == other)
    return float(line[column].split("(")[1].split()[0])


@pytest.mark.parametrize(
    ("share", "open_to"),
    [("clean", {"5-NN", "LocalOutlierFactor"}), ("10 %", {"5-NN", "IsolationForest"})],
)
def test_the_page_names_those_whom_the_interval_leaves_open(share, open_to):
    others = [row["ours against"] for row in committed("ahead.csv")]
    for ours in ahead.OURS:
        assert {one for one in others if low_end(one, f"{ours}, {share}") < 0.0} == open_to
    said = [line for line in PAGE.splitlines() if "leaves open who is ahead" in line]
    assert any(all(name in line for name in open_to) for line in said)


def test_the_interval_draws_data_sets_and_not_tasks():
    alike = {"one": np.full(99, 0.1), "two": np.full(1, -0.1)}
    low, high = ahead.interval(alike)
    assert low == pytest.approx(-0.1)
    assert high == pytest.approx(0.1)
