"""The table of named faults is made from the committed trials."""

from pathlib import Path

from benchmarks.naming import markdown, read, totals

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "faults-by-name.md"


def test_the_table_on_the_page_is_that_of_the_rows():
    assert markdown(read()) in PAGE.read_text(encoding="utf-8")


def test_hardly_any_fault_gets_a_wrong_name():
    for each in totals(read()):
        met = each.right + each.wrong + each.none
        assert each.wrong <= 0.02 * met, each
        assert each.unknown_named <= 0.05 * each.unknown, each
        if "speed" in each.world:
            assert each.wrong == each.unknown_named == 0, each


def test_machines_at_one_speed_and_devices_of_five_people_get_the_right_name():
    for each in totals(read()):
        met = each.right + each.wrong + each.none
        if "one speed" in each.world:
            assert each.right >= 0.85 * met, each
        elif "five people" in each.world and each.activation == "tanh":
            assert each.right >= 0.68 * met, each


def test_the_share_of_unknown_faults_that_are_named_is_what_the_page_says():
    worst = max(each.unknown_named / each.unknown for each in totals(read()))
    assert f"in up to {100 * worst:.0f} % of such cases" in PAGE.read_text(encoding="utf-8")
