"""docs/paper.md says what the committed rows say."""

import csv
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


def test_the_claims_are_those_that_the_rows_support():
    from edgemerge.paper.claims import FILE, read_claims

    with (ROWS / FILE).open(encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    assert kept == read_claims(ROWS), "make it again: edgemerge paper claims"
    assert len(kept) >= 30
    open_ones = [row["result"] for row in kept if row["verdict"] == "not run here"]
    assert open_ones == ["loss-driving"], "only the data set that may not be passed on"


def test_federated_averaging_has_thirty_seeds_on_every_pair_that_is_reported():
    with (ROWS / "small-experiments.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["experiment"] == "federated averaging"]
    by_sample = [row for row in rows if row["split"] == "sample"]
    assert {int(row["trials"]) for row in by_sample} == {30}
    assert {row["split"] for row in rows} == {"sample", "person"}


def test_what_sharing_reveals_says_what_was_measured():
    with (ROWS / "small-experiments.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["experiment"] == "membership"]
    page = (DOCS / "how-to" / "what-sharing-reveals.md").read_text(encoding="utf-8")
    attack = {row["setting"]: row for row in rows if "attack" in row["measure"]}
    assert len(attack) == 6
    for setting, row in attack.items():
        low, high = (f"{float(row[key]):.2f}" for key in ("low", "high"))
        spread = f"{low} to {high}" if low != high else low
        (line,) = (text for text in page.splitlines() if text.startswith(f"| {setting[:-8]} |"))
        assert f"({spread})" in line, setting
    (single,) = (row for row in rows if row["setting"] == "1 sample")
    assert float(single["high"]) < 2.0**-13, "half a step of the grid"
