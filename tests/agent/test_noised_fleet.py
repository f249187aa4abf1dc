"""Agents in a masked fleet with noise: what they learn is clipped, sent once, and adopted."""

from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Detector, Monitor, Stats
from edgemerge.agent.control import send_command
from edgemerge.agent.runner import new_state
from edgemerge.agent.state import state_from_bytes, state_to_bytes
from edgemerge.agent.sync import SharingPolicy
from edgemerge.privacy.noise import CLIPPED, ClippedSums, NoiseSettings
from tests.agent.agents import Running, configured, enrolled, shared, stream, write_rows
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

P = shared()
AGREED = NoiseSettings(8.0, 1e-5)
COMMISSIONING = 16 * P.n_hidden
DEVICES = ("pump-1", "pump-2", "pump-3")


def clipped_sums(rows):
    return AGREED.noise(P).whole_sums_of(P.to_rows(rows))


def memory_of(tmp_path, *settings, learn="normal"):
    config = configured(tmp_path, *settings, learn=learn)
    memory = new_state(config, P, lambda: 1.0)
    memory.clip(AGREED)
    return memory


def taught(memory, rows):
    for at, row in enumerate(rows):
        memory.monitor.take(row, float(at))


def test_what_is_learnt_one_by_one_is_clipped_and_commissioning_is_not(tmp_path):
    memory = memory_of(tmp_path)
    X = stream(COMMISSIONING + 100)
    taught(memory, X[:COMMISSIONING])
    assert memory.monitor.phase == "watching"
    before = memory.learner.own.count
    assert (memory.clipped.rows, before > 100) == (0, True)
    taught(memory, X[COMMISSIONING:])
    learnt = memory.learner.own.count - before
    assert 90 <= memory.clipped.rows == learnt <= 100
    assert 128 * learnt < memory.clipped.sums.count <= 256 * learnt


@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_an_alarm_an_approval_and_forgetting_add_nothing(tmp_path, kind):
    memory = memory_of(tmp_path, f"learner.kind={kind}")
    taught(memory, stream(COMMISSIONING + 50))
    before = memory.clipped.sums
    at = 1e4 + np.arange(200.0)
    for now, row in zip(at, stream(200, 1, place=0.9), strict=True):
        memory.monitor.take(row, now)
    (odd,) = memory.monitor.odd_patterns
    memory.monitor.review(odd, "approve")
    memory.monitor.review(odd, "undo")
    memory.monitor.relearn()
    assert memory.clipped.sums == before


def test_a_release_takes_what_is_new_and_waits_for_the_gate(tmp_path):
    memory = memory_of(tmp_path, learn="always")
    sharing = SharingPolicy(memory, gate=2.0, max_shift=2.0)
    X = stream(40)
    taught(memory, X[:15])
    assert (sharing.release(), sharing.decision.held) == (0, ("clipped: 15 of 16 samples",))
    taught(memory, X[15:20])
    assert sharing.release() == 1
    (sent,) = memory.pending
    assert (sent.pattern, sent.revision, sent.stats) == (CLIPPED, 1, clipped_sums(X[:20]))
    memory.pending.clear()
    taught(memory, X[20:])
    sharing.release()
    (sent,) = memory.pending
    assert (sent.revision, sent.stats) == (2, clipped_sums(X[20:]))
    assert memory.clipped.rows == 0


def test_after_a_crash_a_sample_is_in_the_clipped_sums_if_it_is_in_the_learner(tmp_path):
    memory = memory_of(tmp_path, learn="always")
    X = stream(100)
    taught(memory, X[:70])
    saved = state_to_bytes(memory)
    taught(memory, X[70:])  # lost with the crash
    again = state_from_bytes(saved)
    assert again.learner.own == Stats.of(P, X[:70])
    assert (again.clipped.rows, again.clipped.sums) == (70, clipped_sums(X[:70]))
    taught(again, X[70:])  # read again from the source
    assert again.clipped.sums == memory.clipped.sums
    assert again.clipped.settings == AGREED


def test_before_the_noise_is_known_nothing_is_released(tmp_path):
    config = configured(tmp_path)
    memory = new_state(config, P, lambda: 1.0)
    sharing = SharingPolicy(memory, gate=2.0, max_shift=2.0)
    sharing.agreed = False
    taught(memory, stream(40))
    assert sharing.release() == 0
    sharing.agree(AGREED)
    assert sharing.release() == 0  # what was learnt before was not clipped
    taught(memory, stream(40))
    assert sharing.release() == 1


def test_what_was_queued_without_clipping_is_not_sent(tmp_path):
    memory = new_state(configured(tmp_path), P, lambda: 1.0)
    sharing = SharingPolicy(memory, gate=2.0, max_shift=2.0)
    taught(memory, stream(40))
    assert sharing.release() == 1
    sharing.agree(AGREED)
    assert memory.pending == []


def test_a_new_incarnation_forgets_what_may_have_been_released_elsewhere(tmp_path):
    memory = memory_of(tmp_path, learn="always")
    taught(memory, stream(40))
    SharingPolicy(memory, gate=2.0, max_shift=2.0).start_new_incarnation(lambda: 2.0)
    assert (memory.clipped.rows, memory.clipped.sums) == (0, Stats.empty(P))


def test_full_sums_leave_samples_out_and_say_so():
    fine = replace(P, grid_bits=16)  # sums are exact up to 2⁵³ quanta of 2⁻³²: 2²¹, 256 a sample
    clipped = ClippedSums(AGREED, fine)
    for row in fine.to_rows(np.zeros((8300, 6))):
        clipped.push(row)
    assert clipped.sums.count <= 2.0**21
    assert (clipped.rows + clipped.left_out, clipped.left_out > 0) == (8300, True)


def test_a_monitor_reports_what_it_learns_one_by_one():
    seen = []
    monitor = Monitor(Detector(P))
    monitor.on_learnt = seen.append
    X = stream(COMMISSIONING + 50)
    for at, row in enumerate(X[:COMMISSIONING]):
        monitor.take(row, float(at))
    first = monitor.learner.own
    for at, row in enumerate(X[COMMISSIONING:]):
        monitor.take(row, 1e3 + at)
    assert monitor.learner.own == first + Stats.of_rows(P, np.array(seen))


def config_of(hub, folder, device):
    noise = "exchange.privacy=masked", "exchange.epsilon=8.0", "exchange.delta=1e-5"
    return enrolled(hub, folder, *noise, device=device)


@pytest.mark.slow
def test_agents_add_up_with_noise_adopt_it_and_raise_an_alarm(tmp_path):
    count = COMMISSIONING + 1500
    with running(str(tmp_path / "hub.db")) as hub:
        operator = hub.operator
        operator.create_fleet("pumps", P, reads="masked", epsilon=8.0, delta=1e-5)
        configs = [config_of(hub, tmp_path / each, each) for each in DEVICES]
        agents = [Running(config) for config in configs]
        for number, config in enumerate(configs):
            write_rows(config.state.parent / "rows.csv", stream(COMMISSIONING, number))
        with agents[0] as one, agents[1], agents[2]:
            for config, agent in zip(configs, agents, strict=True):
                until(lambda a=agent: len(a.listener.verdicts) == COMMISSIONING)
                told = send_command(
                    config.state, "sync", DEADLINE_S
                )  # registers, and hears of noise
                assert told["noise"]["epsilon"] == 8.0
            for number, (config, agent) in enumerate(zip(configs, agents, strict=True)):
                path = config.state.parent / "rows.csv"
                write_rows(path, stream(1500, 10 + number), "a")
                until(lambda a=agent: len(a.listener.verdicts) == count)
            operator.form_cohorts("pumps", least=3)
            merges = []
            for _ in range(3):
                answers = [send_command(config.state, "sync", DEADLINE_S) for config in configs]
                merges += [each["told"] for each in answers]
            assert sum(each.startswith("adopted") for each in merges) == 3, merges
            assert all(each["noise"]["waiting"] < 100 for each in answers)
            assert (
                send_command(configs[0].state, "status", DEADLINE_S)["noise"]["lost_uploads"] == 0
            )
            write_rows(tmp_path / "pump-1" / "rows.csv", stream(40, 5, place=0.8), "a")
            until(lambda: len(one.listener.verdicts) == count + 40)
            assert one.listener.verdicts[-1].alarm
            assert not any(verdict.alarm for verdict in one.listener.verdicts[count - 500 : count])
            words = hub.service.masked.total("pumps").words
            found = AGREED.read(P, words)
            assert 3000 < found.sums.count < 4600  # some of the 4500 are clipped
        operator.close()


@pytest.mark.slow
def test_an_agent_refuses_a_fleet_with_less_noise_than_its_file_asks_for(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub:
        operator = hub.operator
        operator.create_fleet("pumps", P, reads="masked", epsilon=20.0, delta=1e-5)
        config = config_of(hub, tmp_path / "pump-1", "pump-1")
        write_rows(tmp_path / "pump-1" / "rows.csv", stream(40))
        with Running(config) as agent:
            until(lambda: len(agent.listener.verdicts) == 40)
            answer = send_command(config.state, "sync", DEADLINE_S)
        assert "found epsilon = 20, expected epsilon of at most 8" in answer["exchange"]
        operator.close()
