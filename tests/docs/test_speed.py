"""What the page says of speed is what the committed rows say."""

import csv
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def size(row):
    return int(row["inputs"]), int(row["hidden"])


def rows():
    with (DOCS / "results" / "speed-bars.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_says_that_all_aims_are_met():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert all(row["verdict"] == "ok" for row in rows())
    assert f"All {len(rows())} aims are met on this machine." in page


def test_the_page_names_the_size_and_the_job_that_are_closest_to_an_aim():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    single = [row for row in rows() if "of published" in row["what"] and "rows" not in row["what"]]
    closest = max(single, key=lambda row: float(row["measured"]) / float(row["bar"]))
    assert closest["what"] == "learn one, score a fresh one, of published, received sums"
    inputs, hidden = size(closest)
    margin = f"The narrowest margin for single samples is {closest['measured']} against "
    where = f"{inputs} inputs, {hidden} hidden values, received sums."
    assert f"{margin}{closest['bar']}: learning one and scoring a fresh one, {where}" in page


def test_the_page_says_how_long_rows_that_are_only_learnt_take():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    (ratio,) = {f"{float(r['measured']):.1f}" for r in rows() if r["what"].startswith("learn rows")}
    assert f"only learnt take {ratio} times as long" in page
