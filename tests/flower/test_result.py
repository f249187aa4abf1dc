"""At the end it is said who is in the sum, and which nodes failed and why."""

import json

from edgemerge import Contribution, Ledger, Stats, load
from edgemerge.flower.aggregate import ACCEPTED, COMPLETED, FAILED, NodeStatus, RunResult
from tests.flower.fleet import SHARED, note, rows


def result():
    ledger = Ledger(SHARED)
    ledger.put(note("a", 1))
    ledger.put(note("b", 2))
    found = RunResult(ledger, ended=COMPLETED)
    found.took(
        [NodeStatus(5, "a", ACCEPTED, samples=40.0), NodeStatus(6, "b", ACCEPTED, samples=40.0)]
    )
    found.took(
        [NodeStatus(5, "a", ACCEPTED, "as before", 40.0), NodeStatus(6, "", FAILED, "no answer")]
    )
    return found


def test_the_table_names_nodes_devices_and_reasons():
    lines = result().table().splitlines()
    assert lines[0].split() == ["NODE", "DEVICE", "STATE", "SAMPLES"]
    assert lines[1].split() == ["5", "a", "in", "the", "sum", "40", "as", "before"]
    assert lines[2].split()[:3] == ["6", "b", "failed"], "known by the round before"
    assert lines[2].endswith("no answer; what it gave before stays in the sum")
    assert lines[3].startswith("80 samples of 2 devices, digest ")
    assert lines[3].endswith(": a, b")


def test_who_did_not_adopt_is_named():
    found = result()
    found.not_adopted = {5: "No space left"}
    assert "as before; did not adopt: No space left" in found.table()
    assert found.plain()["not_adopted"] == {"5": "No space left"}


def test_the_file_says_the_same_and_the_sum_lies_beside(tmp_path):
    result().write(tmp_path / "new" / "out")
    told = json.loads((tmp_path / "new" / "out" / "result.json").read_text(encoding="utf-8"))
    total = load(tmp_path / "new" / "out" / "total.safetensors")
    assert total == Stats.of(SHARED, rows(1)) + Stats.of(SHARED, rows(2))
    assert told["ended"] == "well"
    assert told["digest"] == total.digest
    assert told["projection"] == SHARED.fingerprint
    assert [each["device"] for each in told["devices"]] == ["a", "b"]
    assert told["devices"][0] == {
        "device": "a",
        "incarnation": 0,
        "pattern": "normal",
        "revision": 1,
        "samples": 40.0,
    }
    assert [(each["node"], each["words"]) for each in told["failed"]] == [("6", "no answer")]
    assert [len(each) for each in told["rounds"]] == [2, 2]


def test_a_run_that_ended_early_leaves_no_sum(tmp_path):
    result().write(tmp_path)
    early = result()
    early.ended = "too few"
    early.write(tmp_path)
    assert not (tmp_path / "total.safetensors").exists()
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["ended"] == "too few"


def test_an_empty_sum_has_no_devices():
    assert RunResult(Ledger(SHARED)).table().endswith(": none")


def test_a_pattern_that_is_gone_is_not_in_the_sum():
    found = result()
    found.ledger.put(Contribution("b", Stats.empty(SHARED), 2))
    assert [each["device"] for each in found.plain()["devices"]] == ["a"]
