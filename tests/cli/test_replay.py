"""`edgemerge replay`: what a limit would have done on recorded samples."""

import json
import re

import numpy as np
import pytest

from edgemerge.cli.group import ExitCode
from edgemerge.cli.options import MAX_RANGE_ROWS, evenly_spaced_rows
from tests.cli.calls import call, failure, program
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
    assert re.search(r" b ×[0-9.,]+", rest[0])
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


# With an agent's configuration


def logged(folder, *, name="pump", fault=slice(900, 1000)):
    """A logger's file, a row a minute: semicolons, decimal commas, a time and missing values."""
    rng = np.random.default_rng(0)
    load = 0.5 + 0.3 * np.sin(np.arange(1200) / 40.0)
    rows = np.stack([20.0 + 15.0 * load, 5.0 + 6.0 * load, 40.0 + 10.0 * load], axis=1)
    rows += rng.normal(0.0, [0.3, 0.1, 0.2], rows.shape)
    rows[fault, 1] += 2.0
    lines = ["Zeit;Fluss (m³/h);Strom (A);Lager (°C)"]
    for i, row in enumerate(rows):
        cells = [f"{value:.2f}".replace(".", ",") for value in row]
        cells[0] = "" if i % 100 == 50 else cells[0]
        lines.append(f"17.11.2026 {i // 60:02d}:{i % 60:02d}:00;" + ";".join(cells))
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n", encoding="cp1252")
    return path


@pytest.fixture
def configured(tmp_path):
    """What `init` writes for such a file."""
    made = tmp_path / "pump.toml"
    result = call("init", logged(tmp_path), "--yes", "--output", made)
    assert result.exit_code == 0, result.output
    return made


def test_a_configuration_is_replayed_with_its_rows_times_and_settings(configured):
    found = replayed(configured, "--commissioning", 600)
    assert (found["samples"], found["skipped"]) == (1188, 12)
    assert "the cell is empty" in found["why_skipped"]
    assert found["watched"] == 1188 - 600
    (episode,) = found["episodes"]
    assert episode["began"].startswith("2026-11-17T15:0")
    assert episode["ended"].startswith("2026-11-17T16:4")
    assert episode["inputs"][0][0] == "Strom (A)"
    assert not (configured.parent / "pump-state").exists(), "nothing is saved"


def test_it_gives_the_episodes_that_the_agent_raises(configured):
    result = call("agent", configured)
    assert result.exit_code == 0, result.output
    lines = (configured.parent / "pump.jsonl").read_text(encoding="utf-8").splitlines()
    alarms = [json.loads(line) for line in lines if json.loads(line)["alarm"]]
    found = replayed(configured)
    assert found["watched"] == sum(json.loads(line)["ready"] for line in lines) > 0
    assert sum(each["samples"] for each in found["episodes"]) == len(alarms) > 50


def test_options_go_over_the_configuration(configured):
    with configured.open("a", encoding="utf-8") as file:
        file.write("\n")
    text = configured.read_text(encoding="utf-8")
    text = text.replace("[monitor]\n", '[monitor]\nfalse_alarms = "1 per week"\n')
    configured.write_text(text, encoding="utf-8")
    assert replayed(configured)["limit"]["kind"] == "provisional"
    strict = replayed(configured, "--limit", 1e6, "--learner", "detector", "--votes", "1,1")
    assert (strict["limit"]["kind"], strict["episodes"]) == ("fixed", [])


def test_people_get_times_and_how_many_rows_were_skipped(configured):
    result = program("replay", configured)
    assert result.returncode == 0, result.stderr
    assert "2026-11-17T15:0" in result.stdout
    (said,) = result.stderr.splitlines()
    assert said.startswith("1,188 samples, ")
    assert "12 rows were skipped, the last: '' is no finite number" in said


def test_windows_are_taken_and_rows_without_a_time_are_counted(tmp_path):
    rows = np.random.default_rng(0).normal(0.0, 0.1, (4000, 2))
    rows[3000:, 1] += 0.8
    np.savetxt(tmp_path / "pump.csv", rows, "%.3f", ",", header="flow,current", comments="")
    (tmp_path / "pump.toml").write_text(
        """
device = "pump"
state = "state"
[projection]
n_inputs = 4
n_hidden = 8
[source]
kind = "tail"
path = "pump.csv"
[features]
kind = "window"
length = 10
statistics = ["mean", "std"]
"""
    )
    found = replayed(tmp_path / "pump.toml")
    assert (found["samples"], found["skipped"]) == (400, 0)
    assert abs(found["episodes"][0]["began"] - 301) <= 1
    assert found["episodes"][0]["inputs"][0][0] == "current mean"


def test_one_of_several_devices_is_chosen(tmp_path):
    folder = tmp_path / "hall"
    folder.mkdir()
    logged(folder, name="pump-1"), logged(folder, name="pump-2", fault=slice(0, 0))
    made = tmp_path / "hall.toml"
    result = call("init", folder, "--devices", "each", "--yes", "--output", made)
    assert result.exit_code == 0, result.output
    assert "choose one with --device (pump-1, pump-2)" in failure(call("replay", made))
    episodes = [replayed(made, "--device", f"pump-{i}")["episodes"] for i in (1, 2)]
    assert list(map(bool, episodes)) == [True, False]


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({}, ["--n-hidden", 8], "found --n-hidden with a configuration, which says that itself"),
        ({}, ["--columns", "a"], "found --columns with a configuration"),
        ({"[projection]": "[quality]", "file =": "#"}, [], r"has no \[projection\]"),
        ({'kind = "csv"': 'kind = "stdin"', "path =": "#"}, [], "reads standard input"),
    ],
)
def test_what_cannot_be_replayed_is_refused(configured, change, options, words):
    text = configured.read_text(encoding="utf-8")
    for old, new in change.items():
        text = text.replace(old, new, 1)
    configured.write_text(text, encoding="utf-8")
    result = call("replay", configured, *options)
    assert re.search(words, failure(result, ExitCode.USAGE))


def test_a_device_needs_a_configuration(recorded):
    result = call("replay", recorded, "--device", "pump-1", *AGREE)
    assert "found --device, and pump.csv is no CONFIG.toml" in failure(result, ExitCode.USAGE)


def test_a_file_that_only_an_agent_can_read_says_how(tmp_path):
    words = failure(call("replay", logged(tmp_path)))
    assert "`edgemerge init` writes a configuration that reads it" in words
    (tmp_path / "plain.csv").write_text("Zeit,Fluss (m³/h)\n08:00,1\n08:01,2\n", encoding="utf-8")
    assert "--columns 'Fluss (m³/h)'" in failure(call("replay", tmp_path / "plain.csv"))
