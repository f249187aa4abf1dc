"""The table of lasting faults is made from the committed trials."""

from pathlib import Path

import pytest

from benchmarks.lasting import ACTIVATIONS, RESULTS, markdown, means, read

PLAIN = (", fault", "restart", "10 times", "HAR, lying", "HAR, sitting")
# The block is among the 300 samples that the range comes from, and the limit has risen to 6.
KNOWN_MISS = (
    "cosine",
    "process values, two speeds, fault in one block of 5 % of 16N",
    "bank",
)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-anomalies-out.md"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_tables_on_the_page_are_those_of_the_rows(activation):
    assert RESULTS.exists()
    table = markdown(read(), activation)
    assert len(table.splitlines()) == 2 + 36 * 2
    assert table in PAGE.read_text(encoding="utf-8")


def test_the_page_says_how_much_of_a_changing_normal_is_in_alarm():
    """Where people come one after the other: the share of normal samples, before and after."""
    cosine, tanh = (
        [
            100.0 * share
            for m in means(read())
            if m.activation == activation and "one after the other" in m.stream
            for share in (m.before, m.after)
        ]
        for activation in ("cosine", "tanh")
    )
    assert (
        f"{min(cosine):.1f} to {max(cosine):.1f} % of its samples with `cosine`, "
        f"and {min(tanh):.1f} to {max(tanh):.1f} % with `tanh`"
    ) in PAGE.read_text(encoding="utf-8")


def test_the_number_of_trials_on_the_page_is_that_of_the_rows():
    seeds = {trial.seed for trial in read()}
    assert f"means of {len(seeds)} trials" in PAGE.read_text(encoding="utf-8")


def test_plain_lasting_faults_stay_alarms_and_normal_stays_calm():
    plain = [m for m in means(read()) if m.stream.endswith(PLAIN)]
    assert len(plain) == 28 * 2
    assert all(m.in_alarm >= 0.98 for m in plain), [m for m in plain if m.in_alarm < 0.98]
    assert all(max(m.before, m.after) <= 0.005 for m in plain)


def test_faults_that_were_in_commissioning_stay_alarms():
    dirty = [m for m in means(read()) if m.stream.endswith(("16N", "64N"))]
    assert len(dirty) == 32 * 2
    missed = {(m.activation, m.stream, m.learner): m for m in dirty if m.worst < 0.98}
    assert missed.keys() <= {KNOWN_MISS}, missed
    assert "In one trial of three a bank with `cosine`" in PAGE.read_text(encoding="utf-8")
