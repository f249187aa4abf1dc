"""Others read and write the same files at the same time; nothing of theirs or ours is lost."""

from threading import Thread

import numpy as np
import pytest

from edgemerge import Bank, Detector, EdgemergeError, Monitor, Stats, load, save
from edgemerge.agent.state import AgentState, state_to_bytes
from edgemerge.exchange.folder import folder_lock
from edgemerge.flower import device
from edgemerge.flower.device import adopt
from edgemerge.wire.state import to_bytes
from tests.flower.fleet import SHARED, note, rows
from tests.flower.nodes import given, learnt, node_of, told


@pytest.fixture
def config(tmp_path):
    return node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))


def test_while_another_process_has_the_folder_nothing_is_read_or_written(config, monkeypatch):
    monkeypatch.setattr(device, "LOCK_TIMEOUT_S", 0.05)
    before = config.state.read_bytes()
    with folder_lock(config.state.parent, 1.0):
        for task in (lambda: given(config), lambda: adopt(config, told(note("b", 2)))):
            with pytest.raises(EdgemergeError, match="is being written by another process"):
                task()
    assert [path.name for path in config.state.parent.iterdir()] == ["pump"]
    assert config.state.read_bytes() == before
    assert given(config)[1]


def test_what_another_program_learns_while_we_adopt_is_not_lost(config, monkeypatch):
    def busy(learner, times=[1]):  # noqa: B006 - counts its calls
        if times:
            times.pop()
            learnt(load(config.state), config.state, 5)
        return to_bytes(learner)

    monkeypatch.setattr(device, "to_bytes", busy)
    adopt(config, told(note("b", 2)))
    after = load(config.state)
    assert after.own == Stats.of(SHARED, np.vstack([rows(1), rows(5)]))
    assert after.others == Stats.of(SHARED, rows(2))


def test_a_program_that_writes_all_the_time_is_told_of(config, monkeypatch):
    def busy(learner):
        learnt(load(config.state), config.state, 5)
        return to_bytes(learner)

    monkeypatch.setattr(device, "to_bytes", busy)
    with pytest.raises(EdgemergeError, match="written by another program, again and again: stop"):
        adopt(config, told(note("b", 2)))
    assert load(config.state).others.count == 0


def test_of_runs_at_the_same_time_each_gives_what_was_remembered(config):
    found = []
    together = [Thread(target=lambda: found.append(given(config))) for _ in range(8)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert len(found) == 8
    assert all(each == found[0] for each in found)


def test_the_state_of_an_agent_is_left_to_the_agent(tmp_path):
    pump = Detector(SHARED)
    pump.learn(rows(1))
    state = tmp_path / "agent.state"
    state.write_bytes(state_to_bytes(AgentState("a", 1, Monitor(pump))))
    with pytest.raises(
        EdgemergeError, match="is the state of an agent, which no other program may"
    ):
        given(node_of("a", state=state))


def test_samples_of_a_bank_that_wait_go_on_waiting_when_it_adopts(tmp_path):
    state = learnt(Bank(SHARED), tmp_path / "bank", 1, 2)
    before = load(state, Bank)
    adopt(node_of("a", state=state), told(note("b", 3)))
    after = load(state, Bank)
    assert np.array_equal(after.waiting, before.waiting)
    assert {n: after[n].own for n in before} == {n: before[n].own for n in before}


def test_samples_that_cannot_be_had_are_told_with_their_error():
    def broken(_number, _parts):
        raise RuntimeError("no sensor")

    config = node_of("a", partition=3, partitions=5)
    with pytest.raises(EdgemergeError, match=r"samples\(3, 5\) raised RuntimeError\('no sensor'\)"):
        given(config, samples=broken)


def test_what_left_is_kept_by_its_owner_alone(config):
    given(config)
    assert (config.state.parent / "pump.release").stat().st_mode & 0o077 == 0
    save(load(config.state), config.state)
