"""Learning from CSV and scoring CSV, with learners in files."""

import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from edgemerge import (
    Bank,
    Projection,
    Stats,
    load,
)
from tests.cli.calls import call, failure
from tests.cli.pumps import AGREE, FAST, IDLE, SHARED, detector, saved, written


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    return written(tmp_path / "idle.csv", IDLE)


def test_a_new_detector_learns_what_the_library_would_have_learnt(tmp_path, idle):
    result = call("learn", tmp_path / "pump", idle, "--new", "detector", *AGREE, "--json")
    assert json.loads(result.stdout) == {
        "learner": str(tmp_path / "pump"),
        "learnt": 400,
        "rejected": 0,
        "own_samples": 400.0,
        "others_samples": 0.0,
    }
    assert load(tmp_path / "pump").own == Stats.of(SHARED, IDLE)


def test_bad_rows_are_an_error_or_skipped_and_counted(tmp_path, idle):
    lines = idle.read_text().splitlines()
    lines[5] = lines[5].replace(lines[5].split(",")[0], "broken", 1)
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    new = ("learn", tmp_path / "pump", tmp_path / "bad.csv", "--new", "detector", *AGREE)
    assert "found 'broken', expected a number" in failure(call(*new))
    result = call(*new, "--skip-bad-rows", "--json")
    told = json.loads(result.stdout)
    assert (told["learnt"], told["skipped"]) == (399, 1)
    assert "1 rows were skipped, the last: line 6: found 'broken'" in result.stderr
    scored = call("score", tmp_path / "pump", tmp_path / "bad.csv", "--skip-bad-rows")
    assert "1 rows were skipped" in scored.stderr
    assert "399 samples" in scored.stderr
    (tmp_path / "bad.csv").write_text("1;2;3\n4;5;6\n")
    nothing = call("score", tmp_path / "pump", tmp_path / "bad.csv", "--skip-bad-rows")
    assert nothing.exit_code == 5
    assert "none of 1 rows could be read, the last: line 2: found '4;5;6'" in nothing.stderr


def test_a_learner_goes_on_where_it_stopped(tmp_path, idle):
    pump = saved(detector(FAST), tmp_path / "pump")
    result = call("learn", pump, idle)
    assert load(pump).own == Stats.of(SHARED, np.vstack([FAST, IDLE]))
    assert "own_samples     800\n" in result.stdout


@pytest.mark.parametrize("kind", ["bank", "detector"])
def test_fewer_samples_than_hidden_values_are_a_warning(tmp_path, kind):
    few = written(tmp_path / "few.csv", IDLE[:30])
    start = ("--new", kind, "--range-from", few)
    warned = call("learn", tmp_path / "pump", few, *start)
    assert warned.exit_code == 0
    assert "Found 30 samples for 128 hidden values: scores are rough" in warned.stderr
    assert "or begin again with a smaller --n-hidden." in warned.stderr
    more = call("learn", tmp_path / "pump", written(tmp_path / "more.csv", IDLE[:98]))
    assert "rough" not in more.stderr
    small = call("learn", tmp_path / "small", few, *start, "--n-hidden", 30)
    assert "rough" not in small.stderr


def test_a_bank_counts_the_samples_that_wait_for_their_block(tmp_path):
    lines = "\n".join(",".join(map(repr, row)) for row in IDLE[:205].tolist())
    result = call("learn", tmp_path / "b", "-", "--new", "bank", *AGREE, "--json", given=lines)
    told = json.loads(result.stdout)
    assert told["own_samples"] + told["rejected"] == 205
    assert isinstance(load(tmp_path / "b"), Bank)


def test_settings_of_a_new_learner_arrive(tmp_path, idle):
    wanted = ("--forgetting", 0.99, "--reject-above", 9, "--activation", "sigmoid")
    call("learn", tmp_path / "pump", idle, "--new", "detector", *AGREE, *wanted)
    pump = load(tmp_path / "pump")
    assert (pump.forgetting, pump.reject_above) == (0.99, 9.0)
    assert pump.projection.activation == "sigmoid"
    call("learn", tmp_path / "bank", idle, "--new", "bank", *AGREE, "--max-patterns", 3)
    assert load(tmp_path / "bank").max_patterns == 3


def test_two_devices_agree_by_a_file_and_can_merge(tmp_path, idle):
    fast = written(tmp_path / "fast.csv", FAST)
    assert call("learn", tmp_path / "a", idle, "--new", "bank", "--range-from", idle).exit_code == 0
    agreed = ("--projection", tmp_path / "a")
    assert call("learn", tmp_path / "b", fast, "--new", "detector", *agreed).exit_code == 0
    a, b = load(tmp_path / "a").projection, load(tmp_path / "b").projection
    assert a == b == Projection.of_data(IDLE)


def test_inputs_with_names_are_found_by_name(tmp_path):
    (tmp_path / "names").write_text("b\na\n", encoding="utf-8")
    table = tmp_path / "samples.csv"
    table.write_text("time,a,b\nnoon,0.25,0.5\n", encoding="utf-8")
    agree = ("--names-file", tmp_path / "names", "--low", "-1,-1", "--high", "1,1")
    assert call("learn", tmp_path / "p", table, "--new", "detector", *agree).exit_code == 0
    pump = load(tmp_path / "p")
    assert pump.projection.names == ("b", "a")
    assert pump.own == Stats.of(pump.projection, [[0.5, 0.25]])


def test_one_bad_line_leaves_the_file_as_it_was(tmp_path):
    pump = saved(detector(FAST), tmp_path / "pump")
    before = pump.read_bytes()
    bad = tmp_path / "bad.csv"
    bad.write_text("0,0,0,0,0,0\n0,0,0,oops,0,0\n", encoding="utf-8")
    assert failure(call("learn", pump, bad)).startswith(f"{bad}: line 2: found 'oops'")
    assert pump.read_bytes() == before


def test_scores_are_those_of_the_library_line_by_line(tmp_path):
    pump = saved(detector(IDLE), tmp_path / "pump")
    rows = np.vstack([IDLE[:5], FAST[:5]])
    result = call("score", pump, written(tmp_path / "s.csv", rows))
    found = list(csv.DictReader(result.stdout.splitlines()))
    assert [float(row["score"]) for row in found] == detector(IDLE).score(rows).round(4).tolist()
    assert [row["alarm"] for row in found] == ["0"] * 5 + ["1"] * 5
    assert [row["sample"] for row in found] == [str(i + 1) for i in range(10)]
    assert result.stderr == "10 samples, 5 above 4\n"


def test_scores_for_machines_are_json_lines_with_reasons(tmp_path):
    bank = Bank(SHARED)
    bank.learn(IDLE)
    odd = IDLE[0].copy()
    odd[2] += 0.8
    table = written(tmp_path / "s.csv", np.vstack([IDLE[0], odd]))
    result = call("score", saved(bank, tmp_path / "bank"), table, "--json", "--explain")
    usual, found = map(json.loads, result.stdout.splitlines())
    assert (usual["alarm"], usual["why"]) == (False, [])
    assert found["alarm"] is True
    assert found["pattern"] == bank.closest(odd)
    assert found["why"][0] == {"input": "c", "times": round(float(bank.explain(odd)[2]), 2)}
    assert len(found["why"]) == 3


def test_reasons_stand_in_the_csv_too(tmp_path):
    pump = saved(detector(IDLE), tmp_path / "pump")
    result = call("score", pump, "-", "--explain", given="0.1,0.1,0.9,0.1,0.1,0.1\n")
    (row,) = csv.DictReader(result.stdout.splitlines())
    assert row["why"].startswith("3=")


def test_the_limit_of_an_alarm_can_be_set(tmp_path):
    pump = saved(detector(IDLE), tmp_path / "pump")
    table = written(tmp_path / "s.csv", FAST[:3])
    assert call("score", pump, table, "--limit", 1e9).stderr == "3 samples, 0 above 1e+09\n"


def test_scoring_changes_nothing(tmp_path, idle):
    pump = saved(detector(IDLE), tmp_path / "pump")
    before = pump.read_bytes()
    assert call("score", pump, idle).exit_code == 0
    assert pump.read_bytes() == before


@pytest.mark.slow
def test_scores_before_a_bad_line_are_told(tmp_path):
    pump = saved(detector(IDLE), tmp_path / "pump")
    table = tmp_path / "s.csv"
    table.write_text("0,0,0,0,0,0\n" * 20_000 + "x,0,0,0,0,0\n", encoding="utf-8")
    result = call("score", pump, table)
    assert result.exit_code == 3
    assert result.stdout.count("\n") > 1000
    assert "line 20001: found 'x'" in result.stderr


def test_what_a_learner_holds_is_for_its_owner_alone(tmp_path, idle):
    call("learn", tmp_path / "pump", idle, "--new", "detector", *AGREE)
    assert stat.S_IMODE((tmp_path / "pump").stat().st_mode) == 0o600
