"""`edgemerge replay`: what a limit would have done on recorded samples."""

import json

import numpy as np
import pytest

from edgemerge.cli.group import ExitCode
from edgemerge.cli.options import MAX_RANGE_ROWS, evenly_spaced_rows
from tests.cli.calls import call, failure
from tests.cli.pumps import AGREE, written

pytestmark = pytest.mark.slow

FAULT = slice(1000, 1200)


@pytest.fixture
def recorded(tmp_path):
    """Normal samples, a fault of input b that lasts for 200 of them, and normal ones again."""
    rows = np.random.default_rng(0).normal(0.0, 0.1, (1500, 6))
    rows[FAULT, 1] += 0.8
    return written(tmp_path / "pump.csv", rows)


def replayed(*arguments):
    result = call("replay", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_lasting_fault_is_one_episode_with_its_input(recorded):
    found = replayed(recorded, "--limit", 4, "--learner", "detector", *AGREE)
    (episode,) = found["episodes"]
    assert abs(episode["began"] - 1001) <= 1
    assert abs(episode["ended"] - 1205) <= 2
    assert episode["samples"] >= 198
    assert episode["inputs"][0][0] == "b"
    assert episode["pattern"] == "odd-1"
    assert found["limit"] == {"value": 4.0, "kind": "fixed", "missing": 0}
    assert found["samples"] == 1500
    assert found["watched"] == 1500 - 16 * 16


def test_the_table_says_how_many_episodes_other_limits_raise(recorded):
    found = replayed(recorded, "--limit", 4, "--learner", "detector", *AGREE)
    episodes = {each["limit"]: each["episodes"] for each in found["limits"]}
    assert episodes[4.0] == episodes[8.0] == 1
    assert episodes[2.0] >= 1
    strict = replayed(recorded, "--limit", 1e6, "--learner", "detector", *AGREE)
    assert strict["episodes"] == []
    assert strict["limits"][-1] == {"limit": 1e6, "episodes": 0}


def test_without_a_limit_commissioning_sets_one_as_the_help_says(recorded):
    found = replayed(recorded, *AGREE)["limit"]
    assert found["kind"] in {"commissioned", "default"}
    assert 4.0 <= found["value"] <= 6.0
    assert "4 to 6, as commissioning asks" in " ".join(call("replay", "--help").stdout.split())


def test_a_promise_that_needs_more_samples_says_how_many(recorded):
    found = replayed(recorded, "--false-alarms", "1 per week", "--interval-s", 60, *AGREE)
    assert found["limit"]["kind"] == "provisional"
    assert 4.0 <= found["limit"]["value"] <= 6.0
    assert found["limit"]["missing"] + found["watched"] - found["episodes"][0]["samples"] == (
        pytest.approx(10_080, abs=20)
    )


def test_people_get_tables_and_a_summary(recorded):
    result = call("replay", recorded, "--n-hidden", 16)
    assert result.exit_code == 0, result.output
    first, *rest = result.stdout.splitlines()
    assert first.split() == ["EPISODE", "BEGAN", "ENDED", "SAMPLES", "PEAK", "PATTERN", "INPUTS"]
    assert ["LIMIT", "EPISODES"] in [line.split() for line in rest]
    assert "1,500 samples, 1,244 of them watched; limit 4 (default)" in result.stderr
    calm = call("replay", recorded, "--limit", 1e6, *AGREE)
    assert calm.stdout.startswith("No episode.\n")


def test_samples_far_outside_the_range_are_told(recorded):
    low_and_high = ("--n-inputs", 6, "--n-hidden", 16, "--low", -0.3, "--high", 0.3)
    result = call("replay", recorded, *low_and_high)
    rows = np.loadtxt(recorded, delimiter=",", skiprows=1)
    far = np.count_nonzero((np.abs(rows) > 2 * 0.3).any(1))
    assert far > 150
    assert f"{far} samples far outside the projection's range" in result.stderr


def test_too_few_samples_are_an_error_that_says_so(tmp_path):
    few = written(tmp_path / "few.csv", np.zeros((9, 6)))
    assert "commissioning did not end" in failure(call("replay", few, *AGREE), ExitCode.NO_DATA)


def test_wrong_usage_is_refused(recorded):
    both = call("replay", recorded, "--limit", 4, "--false-alarms", 0.01, *AGREE)
    assert "expected one of them" in failure(both, ExitCode.USAGE)
    votes = call("replay", recorded, "--votes", "5", *AGREE)
    assert votes.exit_code == ExitCode.USAGE
    assert "expected two whole numbers such as 3,5" in votes.stderr
    piped = call("replay", "-", given="1,2\n")
    assert "add --projection FILE" in failure(piped, ExitCode.USAGE)


def test_a_range_is_taken_from_evenly_spaced_rows_of_a_large_file():
    rows = np.arange(5.0 * MAX_RANGE_ROWS)[:, None]
    found = evenly_spaced_rows(np.array_split(rows, 7))[:, 0]
    assert MAX_RANGE_ROWS / 2 < len(found) <= MAX_RANGE_ROWS
    assert set(np.diff(found)) == {8.0}
    few = evenly_spaced_rows(np.array_split(rows[:100], 3))
    assert np.array_equal(few, rows[:100])


def test_a_column_of_times_is_named_when_the_range_is_taken_from_the_samples(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{i},{x:.3f}" for i, x in enumerate(rng.normal(size=300))]
    path = tmp_path / "pump.csv"
    path.write_text("\n".join(["t,flow", *rows]), encoding="utf-8")
    assert call("replay", path).stderr.splitlines()[0] == (
        "note: as a time or a counter does, t only rises; if it is no reading, leave it out: "
        "--columns flow"
    )
    assert "note:" not in call("replay", path, "--columns", "flow").stderr
    assert "note:" not in call("replay", path, "--columns", "t,flow").stderr
