"""The table of attacks is made from the committed rows, and the checks hold what they promise."""

import csv
from pathlib import Path

from benchmarks.attack import markdown

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "how-to" / "what-a-bad-device-can-do.md"


def rows(name):
    with (DOCS / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_on_the_page_is_that_of_the_rows():
    table = markdown(rows("attack.csv"), rows("attack-unchecked.csv"))
    assert table in PAGE.read_text(encoding="utf-8")


def test_every_attack_but_true_faults_leaves_a_device_as_it_was():
    found = rows("attack.csv")
    calm = {row["learner"]: row for row in found if row["attack"] == "none"}
    others = ("none", "honest", "342 rows of faults")
    attacks = [row for row in found if row["attack"] not in others]
    assert len(attacks) == 12
    for row in attacks:
        assert float(row["false"]) <= 0.01, row
        for name in ("sitting", "lying"):
            assert abs(float(row[name]) - float(calm[row["learner"]][name])) <= 0.05, row
        assert row["refused"], row
    assert not any(row["refused"] for row in found if row["attack"] in others)
