"""The table of explanations is made from the committed rows, and keeps what it promises."""

from pathlib import Path

from benchmarks.explain import markdown, read

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "explain-an-alarm.md"


def test_the_table_on_the_page_is_that_of_the_rows():
    assert markdown(read()) in PAGE.read_text(encoding="utf-8")


def test_one_input_that_moved_is_named_first_more_often_than_by_residuals():
    single = [row for row in read() if row["moved"] == "1"]
    assert {row["learner"] for row in single} == {"detector", "bank"}
    assert {row["activation"] for row in single} == {"identity", "tanh", "sigmoid", "cosine"}
    assert all(float(row["top1"]) >= float(row["before_top1"]) - 0.03 for row in single)
    process = [row for row in single if row["data"].startswith(("process", "sensors, linear"))]
    assert all(float(row["top1"]) >= 0.95 for row in process)
