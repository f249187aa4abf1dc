"""The table of attacks is made from the committed rows, and the checks hold what they promise."""

import csv
from pathlib import Path

from benchmarks import hostile_server
from benchmarks.attack import markdown
from benchmarks.honest import table

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
    others = (
        *("none", "honest", "342 rows of faults", "honest, quorum:2"),
        "honest rows with 10 % of faults, quorum:2",  # as the page says, like the next
        "honest rows with 5 % of noise",
    )
    attacks = [row for row in found if row["attack"] not in others]
    assert len(attacks) == 22
    for row in attacks:
        assert float(row["false"]) <= 0.01, row
        for name in ("sitting", "lying"):
            assert abs(float(row[name]) - float(calm[row["learner"]][name])) <= 0.05, row
        assert row["refused"], row
    assert not any(row["refused"] for row in found if row["attack"] in others)


def test_a_little_noise_among_honest_rows_does_little():
    found = {(row["learner"], row["attack"]): row for row in rows("attack.csv")}
    for learner, alike, most in (("bank", "none", 0.05), ("detector", "honest", 0.05)):
        spoilt = found[learner, "honest rows with 5 % of noise"]
        assert float(spoilt["false"]) == 0.0
        for name in ("sitting", "lying"):
            assert float(spoilt[name]) >= float(found[learner, alike][name]) - most


def test_honest_fleets_lose_nothing():
    found = rows("honest.csv")
    assert table(found) in PAGE.read_text(encoding="utf-8")
    for row in found:
        assert (
            float(row["checked_auc"]) >= float(row["unchecked"]) - 0.002 or row["n_hidden"] == "16"
        )
        if row["fleet"] != "MNIST pairs":
            assert row["refused_bank"] == row["refused_detector"] == "0"


def test_faults_sent_as_normal_are_adopted_by_members_and_wait_under_quorum_and_person():
    found = {(row["learner"], row["attack"]): row for row in rows("attack.csv")}
    for learner in ("detector", "bank"):
        adopted = found[learner, "342 rows of faults"]
        assert float(adopted["sitting"]) + float(adopted["lying"]) < 0.05
        for trust in ("quorum:2", "person"):
            waits = found[learner, f"342 rows of faults, {trust}"]
            assert waits["refused"].startswith("it waits")
            for name in ("false", "sitting", "lying", "adopted"):
                assert waits[name] == found[learner, "none"][name]
        honest = found[learner, "honest, quorum:2"]
        assert honest == found[learner, "honest"] | {"attack": "honest, quorum:2"}


def test_no_honest_fleet_that_was_drawn_waits_for_its_counts():
    drawn = [row for row in rows("counts.csv") if row["rule"] == "count and rate > 100 × median"]
    assert len(drawn) == 16
    for row in drawn:
        assert float(row["honest"]) == 0.0, row
        assert float(row["claim 1000"]) > 0.88, row
        assert float(row["claim 100000"]) > 0.99, row


def test_the_table_of_attacks_on_the_server_is_that_of_the_rows():
    found = rows(hostile_server.NAME)
    assert hostile_server.table(found) in PAGE.read_text(encoding="utf-8")
    assert {row["result"] for row in found} == {"refused", "held"}
    tries = {row["attack"]: int(row["tries"]) for row in found}
    assert len(tries) == len(found) == 12
    assert tries["routes × callers without rights"] >= 216
    assert tries["mutated contributions and enrolments"] >= 20_000
    assert tries["redemptions of one invitation at once"] >= 100
    assert tries["slow enrolments"] >= 1100
    assert tries["connections under ulimit 1 024"] >= 2000
    assert tries["garbage topics on a broker"] >= 3000
