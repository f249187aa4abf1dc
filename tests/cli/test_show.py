"""`edgemerge show`."""

import json

import numpy as np

from edgemerge import Bank, Contribution, Detector, Ledger, Monitor, Projection, Stats
from edgemerge.agent.state import AgentState, state_to_bytes
from edgemerge.cli.files import describe, format_description
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.files import save
from edgemerge.wire.codec import encode
from tests.cli.calls import call, failure

SHARED = Projection(n_inputs=2, n_hidden=3, seed=5)
SEEN = Stats.of(SHARED, [[0.1, 0.2], [0.3, 0.4]])


def test_show_says_what_is_in_a_file(tmp_path):
    save(Contribution("pump-3", SEEN, revision=4, pattern="idle"), tmp_path / "file")
    result = call("show", tmp_path / "file")
    said = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert said["kind"] == "contribution"
    assert (said["device"], said["pattern"], said["revision"]) == ("pump-3", "idle", "4")
    assert (said["samples"], said["n_inputs"], said["n_hidden"]) == ("2", "2", "3")
    assert said["fingerprint"] == SHARED.fingerprint


def test_show_for_machines_is_json(tmp_path):
    save(SEEN, tmp_path / "file")
    told = json.loads(call("show", tmp_path / "file", "--json").stdout)
    assert (told["kind"], told["samples"], told["digest"]) == ("stats", 2.0, SEEN.digest)


def test_a_wrong_file_is_told_in_one_line(tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04K\x01.")
    assert failure(call("show", tmp_path / "model.pkl")).startswith(
        f"{tmp_path / 'model.pkl'}: found "
    )


def test_a_ledger_is_described_with_one_line_for_each_contribution():
    ledger = Ledger(SHARED)
    for device in ("pump-1", "pump-2"):
        ledger.put(Contribution(device, SEEN, revision=1))
    said = [
        line for line in format_description(describe(ledger)) if line.startswith("contribution")
    ]
    assert len(said) == 2
    assert said[1].endswith("pump-2/normal, revision 1, 2 samples")
    assert "contributions  none" in format_description(describe(Ledger(SHARED)))


def test_a_detector_is_described_by_what_it_saw_and_what_it_was_told():
    pump = Detector(SHARED, forgetting=0.9, reject_above=5.0)
    pump.adopt(SEEN)
    found = describe(pump)
    assert (found["own_samples"], found["others_samples"]) == (0.0, 2.0)
    assert (found["forgetting"], found["reject_above"]) == (0.9, 5.0)
    assert "ridge           not set" in format_description(found)


def test_a_projection_is_described_by_its_settings():
    found = describe(SHARED)
    assert (found["kind"], found["seed"], found["activation"]) == ("projection", 5, "tanh")


def test_what_an_exchange_told_is_described_part_by_part(tmp_path):
    notes = [Contribution(device, SEEN, revision=1) for device in ("pump-2", "pump-1")]
    save(Merged(SHARED, (MergedPart.of(notes, SHARED),)), tmp_path / "told")
    assert "4 samples of pump-1, pump-2" in call("show", tmp_path / "told").stdout
    found = json.loads(call("show", tmp_path / "told", "--json").stdout)
    assert found["kind"] == "merged"
    assert found["parts"][0]["origins"][1]["device"] == "pump-2"


def test_show_tells_the_patterns_of_a_bank(tmp_path):
    bank = Bank(Projection(n_inputs=3, n_hidden=8, seed=1))
    bank.learn(np.random.default_rng(0).normal(0.0, 0.1, (96, 3)))
    save(bank, tmp_path / "bank.safetensors")
    told = call("show", tmp_path / "bank.safetensors")
    assert told.exit_code == 0
    assert "normal: " in told.stdout
    assert "rejected" in told.stdout
    as_json = call("show", "--json", tmp_path / "bank.safetensors")
    assert json.loads(as_json.stdout)["patterns"][0]["pattern"] == "normal"


def test_show_lists_the_odd_patterns_of_an_agent_that_has_ended(tmp_path):
    rng = np.random.default_rng(7)
    detector = Detector(SHARED)
    detector.learn(rng.normal(0.0, 0.05, (200, 2)))
    monitor = Monitor(detector)
    for second, row in enumerate(rng.normal(0.7, 0.05, (60, 2))):
        monitor.take(row, at=second)
    state = AgentState("pump-3", 1, monitor, merged=encode(Merged(SHARED)))
    (tmp_path / "agent.state").write_bytes(state_to_bytes(state))
    (odd,) = monitor.odd_patterns.values()
    lines = call("show", tmp_path).stdout.splitlines()
    words = [line.split(maxsplit=1)[1] for line in lines if line.startswith("odd_patterns")]
    assert words == [f"odd-1: unreviewed, {odd.stats.count:g} samples"]
