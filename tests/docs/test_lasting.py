"""The table of lasting faults is made from the committed trials."""

from pathlib import Path

from benchmarks.lasting import RESULTS, markdown, means, read

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-anomalies-out.md"


def test_the_table_on_the_page_is_that_of_the_rows():
    assert RESULTS.exists()
    assert markdown(read()) in PAGE.read_text(encoding="utf-8")


def test_the_number_of_trials_on_the_page_is_that_of_the_rows():
    seeds = {trial.seed for trial in read()}
    assert f"means of {len(seeds)} trials" in PAGE.read_text(encoding="utf-8")


def test_plain_lasting_faults_stay_alarms_and_normal_stays_calm():
    plain = [m for m in means(read()) if m.stream.endswith((", fault", "restart", "10 times"))]
    assert len(plain) == 24
    assert all(m.in_alarm >= 0.98 for m in plain), [m for m in plain if m.in_alarm < 0.98]
    assert all(max(m.before, m.after) <= 0.005 for m in plain)


def test_faults_that_were_in_commissioning_stay_alarms():
    dirty = [m for m in means(read()) if m.stream.endswith(("16N", "64N"))]
    assert len(dirty) == 32
    assert all(m.worst >= 0.98 for m in dirty), [m for m in dirty if m.worst < 0.98]
