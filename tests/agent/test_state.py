"""The state of an agent: it comes back as it was, or not at all, and belongs to one agent."""

import json
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.state import (
    MAGIC,
    MAX_BROKEN_FILES,
    STATE_FILE,
    AgentState,
    InUseError,
    StateFolder,
    merged_digest,
    own_stats,
    state_from_bytes,
    state_to_bytes,
)
from edgemerge.agent.sync import release
from edgemerge.core.errors import FormatError, SettingError
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.core.limit import Threshold
from edgemerge.wire.codec import encode, pack, unpack
from edgemerge.wire.state import to_bytes
from tests.agent.agents import configured, ran, shared, stream, write_rows

P = shared()


def remembered(kind=Bank):
    """A memory with something in every place."""
    learner = kind(P)
    for x in stream(130):
        learner.learn(learner.look(x))
    peer = Merged(P, (MergedPart.of([Contribution("peer", Stats.of(P, stream(90, 3)), 4)], P),))
    memory = AgentState(
        "pump-1", 1234, Monitor(learner, learn="always"), revision=3, index=130, alarms=2, skipped=1
    )
    memory.position, memory.features = {"offset": 17, "names": ["a", "ü"]}, {"rows": [[0.1, 2.0]]}
    memory.merged, memory.before = encode(peer), b""
    memory.reject(merged_digest(memory.merged), "it was undone")
    assert release(memory, 16).released
    return memory


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_a_memory_comes_back_as_it_was(kind):
    memory = remembered(kind)
    data = state_to_bytes(memory)
    again = state_from_bytes(data)
    assert state_to_bytes(again) == data
    for name in ("device", "incarnation", "revision", "index", "position", "features", "merged"):
        assert getattr(again, name) == getattr(memory, name), name
    assert again.before == b""
    assert again.pending == memory.pending
    assert again.gate.state() == memory.gate.state()
    assert own_stats(again.learner) == own_stats(memory.learner)
    x = stream(1, 9)[0]
    assert again.learner.score(x) == memory.learner.score(x)


def of_former_version(learner):
    """Return the bytes that a version without monitors wrote."""
    data = state_to_bytes(AgentState("pump-1", 1234, Monitor(learner, learn="always"), index=7))
    words, tensors = unpack(data[len(MAGIC) + 32 :], 2**30)
    del tensors["monitor"]
    tensors["learner"] = np.frombuffer(to_bytes(learner), np.int8)
    plain = json.loads(tensors["plain"].tobytes())
    plain = {k: v for k, v in plain.items() if k not in ("reviewed", "refused_reviews")}
    plain["threshold"] = {"recent": [0.1], "seen": 1, "votes": [True]}
    tensors["plain"] = np.frombuffer(json.dumps(plain).encode(), np.int8)
    payload = pack(words, tensors)
    return MAGIC + sha256(payload).digest() + payload


@pytest.mark.parametrize("kind", [Detector, Bank])
@pytest.mark.parametrize(("rows", "phase"), [(130, "watching"), (9, "commissioning")])
def test_a_state_of_a_former_version_is_watched_over_from_now_on(kind, rows, phase):
    learner = kind(P)
    learner.learn(stream(rows))
    memory = state_from_bytes(of_former_version(learner))
    monitor = memory.monitor
    assert (memory.index, memory.reviewed, memory.learning) == (7, 0, True)
    assert (monitor.phase, monitor.learn) == (phase, "normal")
    assert own_stats(monitor.learner) == own_stats(learner)
    assert monitor.learner.supervised
    if phase == "watching":  # drift is measured from the state that was loaded
        assert own_stats(monitor.snapshot) == own_stats(learner)
    again = state_from_bytes(state_to_bytes(memory))
    assert (again.monitor.phase, again.index) == (phase, 7)


@pytest.mark.parametrize("device", ["pump-1", "pump-2", "pump-3", "pump-4"])
def test_the_states_of_the_corpus_load_into_watching(device):
    corpus = Path(__file__).parents[1] / "golden/corpus/agent"
    memory = state_from_bytes((corpus / f"state-{device}" / STATE_FILE).read_bytes())
    assert (memory.monitor.phase, memory.monitor.ready) == ("watching", True)
    assert own_stats(memory.monitor.snapshot) == own_stats(memory.learner)


def test_without_something_to_undo_to_there_is_still_none():
    memory = remembered()
    memory.before = None
    assert state_from_bytes(state_to_bytes(memory)).before is None


def test_a_state_cut_short_anywhere_is_refused():
    data = state_to_bytes(remembered(Detector))
    for end in range(0, len(data), 97):
        with pytest.raises(FormatError, match="cut short or changed"):
            state_from_bytes(data[:end])
    with pytest.raises(FormatError, match="cut short or changed"):
        state_from_bytes(data + b"\0")


def test_a_state_with_one_bit_changed_anywhere_is_refused():
    data = state_to_bytes(remembered(Detector))
    rng = np.random.default_rng(0)
    places = {*range(64), *rng.integers(0, len(data), 400).tolist()}
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(FormatError, match="cut short or changed"):
            state_from_bytes(bytes(changed))


@pytest.mark.slow
def test_a_broken_state_is_set_aside_and_a_new_incarnation_begins(tmp_path, caplog):
    config = configured(tmp_path, "sync.every_s=0")
    write_rows(tmp_path / "pump-1.csv", stream(50))
    ran(config, clock=lambda: 1000.0)
    path = config.state / STATE_FILE
    for n in range(1, MAX_BROKEN_FILES + 3):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        caplog.clear()
        told = ran(config, clock=lambda n=n: 1000.0 + n)
        assert "the saved state is broken" in caplog.text
        assert told.statuses[-1]["incarnation"] == 1000_000 + 1000 * n
        assert told.statuses[-1]["samples"] == 50
    kept = sorted(each.name for each in config.state.glob(f"{STATE_FILE}.broken-*"))
    assert kept == [f"{STATE_FILE}.broken-{n}" for n in (3, 4, 5)]


def test_a_folder_is_for_one_agent_at_a_time(tmp_path):
    folder = StateFolder(tmp_path / "state")
    with pytest.raises(InUseError, match=rf"process {os.getpid()}.*a folder of its own"):
        StateFolder(tmp_path / "state")
    folder.close()
    StateFolder(tmp_path / "state").close()


def test_what_a_killed_writer_left_behind_is_cleared_away(tmp_path):
    StateFolder(tmp_path).close()
    left = tmp_path / f".{STATE_FILE}.abc"
    left.write_bytes(b"half")
    StateFolder(tmp_path).close()
    assert not left.exists()


def test_only_its_owner_can_read_the_state(tmp_path):
    config = configured(tmp_path, "sync.every_s=0")
    write_rows(tmp_path / "pump-1.csv", stream(5))
    ran(config)
    assert config.state.stat().st_mode & 0o077 == 0
    assert (config.state / STATE_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("device=pump-2", "device 'pump-1'.*'pump-2'"),
        ("learner.kind=bank", "learner.kind 'detector'.*'bank'"),
        ("projection.seed=8", "change it back, or choose another state folder"),
    ],
)
def test_the_state_of_something_else_is_refused_and_left_alone(tmp_path, setting, words):
    write_rows(tmp_path / "pump-1.csv", stream(20))
    config = configured(tmp_path, "sync.every_s=0")
    ran(config)
    before = (config.state / STATE_FILE).read_bytes()
    with pytest.raises(SettingError, match=words):
        ran(configured(tmp_path, "sync.every_s=0", setting))
    assert (config.state / STATE_FILE).read_bytes() == before


@pytest.mark.parametrize(
    "options", [{"limit": 3.0}, {"quantile": 0.9, "window": 50}, {"sigmas": 2.0, "window": 20}]
)
@pytest.mark.parametrize("after", [0, 7, 30, 120])
def test_a_threshold_goes_on_as_if_nothing_had_been(options, after):
    values = np.random.default_rng(1).exponential(1.0, 200)
    one, other = Threshold(**options, votes=(2, 3)), Threshold(**options, votes=(2, 3))
    for value in values[:after]:
        one.update(value)
    assert other.resume(one.state())
    for value in values[after:]:
        assert one.limit == other.limit
        assert one.update(value) == other.update(value)


def test_a_threshold_of_another_kind_begins_anew():
    learnt = Threshold(quantile=0.9, window=50)
    learnt.update(1.0)
    fixed = Threshold(limit=3.0)
    assert not fixed.resume(learnt.state())
    assert fixed.limit == 3.0
