"""An agent with its monitor: lasting faults, episodes, reviews, ranges, and what is shared."""

import json
import logging
from threading import Event

import numpy as np
import pytest

from edgemerge import Monitor, Stats
from edgemerge.agent.control import send_command
from edgemerge.agent.runner import NO_USABLE_DATA
from edgemerge.agent.state import STATE_FILE, own_stats, state_from_bytes
from edgemerge.agent.supervisor import run
from edgemerge.core.errors import SettingError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.folder import FolderExchange
from tests.agent.agents import Listener, Running, configured, ran, shared, stream, write_rows
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

P = shared()
NORMAL = stream(400)
FAULT = stream(120, 1) + np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.2])
NAMES = 'projection.names=["a","b","c","d","e","f"]'
COLUMNS = "source.columns=[0,1,2,3,4,5]"
LIMIT = "monitor.limit=30"  # a stream of two causes, seen by eight hidden values, has long tails


def saved(config):
    """Return the state that an agent saved, also while it runs."""
    return state_from_bytes((config.state / STATE_FILE).read_bytes())


class Machine:
    """An agent that follows a growing file of samples."""

    def __init__(self, folder, *settings, kind="detector"):
        self.path, self.given = folder / "pump-1.csv", 0
        self.path.touch()
        tail = ("source.kind=tail", "sync.every_s=0", "sync.gate=1", LIMIT)
        self.config = configured(folder, *tail, *settings, kind=kind, learn="normal")
        self.exchange = FolderExchange(self.config.exchange.path, P)

    def __enter__(self):
        self.agent = Running(self.config).__enter__()
        until((self.config.state / "control").exists)
        return self

    def __exit__(self, *error):
        self.agent.__exit__(*error)

    def meets(self, rows):
        """Give it samples, and wait until it has judged them."""
        write_rows(self.path, rows, "a")
        self.given += len(rows)
        until(lambda: len(self.agent.listener.verdicts) == self.given)
        return self.agent.listener.verdicts[-len(rows) :]

    def ask(self, command, **more):
        return send_command(self.config.state, {"command": command, **more}, DEADLINE_S)

    def saved(self):
        """Have it save its state, and return that."""
        self.ask("save")
        return saved(self.config)

    def shared(self):
        """Exchange, and return what the exchange holds."""
        assert self.ask("sync")["exchange"] == "ok"
        return self.exchange.pull(Selection(devices=("pump-1",))).total


@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_a_fault_that_lasts_stays_an_alarm_and_is_not_learnt(tmp_path, caplog, kind):
    write_rows(tmp_path / "pump-1.csv", np.vstack([NORMAL, FAULT, stream(50, 2)]))
    settings = ("sync.every_s=0", NAMES, COLUMNS, LIMIT)
    config = configured(tmp_path, *settings, kind=kind, learn="normal")
    with caplog.at_level(logging.INFO):
        told = ran(config)
    before, during, after = told.verdicts[:400], told.verdicts[400:520], told.verdicts[520:]
    assert not any(verdict.ready for verdict in before[:127])
    assert all(verdict.ready for verdict in before[128:])
    assert sum(verdict.alarm for verdict in before) == 0
    assert sum(verdict.alarm for verdict in during) >= 118
    assert not after[-1].alarm
    late = during[-1]
    assert (late.pattern, late.episode) == ("odd-1", 1)
    assert late.level > late.limit == 30.0
    assert list(late.why) == [name for name, share in late.carried if share > 1.0][:3] != []
    status = told.statuses[-1]["monitor"]
    assert status["patterns"][0]["status"] == "unreviewed"
    assert status["episodes"][0]["samples"] >= 118
    assert {name for name, _share in status["episodes"][0]["inputs"]} <= set("abcdef")
    for words in (
        "an alarm began",
        "the alarm has ended",
        "new pattern",
        "commissioning has ended",
    ):
        assert words in caplog.text
    json.dumps(told.statuses, allow_nan=False)
    learnt = sum(each.count for each in own_stats(saved(config).learner).values())
    assert learnt <= len(NORMAL) + 50


@pytest.mark.parametrize("block", [0, 12])
def test_the_log_says_which_part_of_commissioning_was_not_learnt(tmp_path, caplog, block):
    odd = stream(block, 1) + np.array([0.0, 0.0, 0.0, 0.0, 2.0, 1.5])
    rows = np.vstack([stream(60), odd, stream(300, 2)])
    write_rows(tmp_path / "pump-1.csv", rows)
    settings = ("sync.every_s=0", NAMES, COLUMNS)
    with caplog.at_level(logging.INFO):
        told = ran(configured(tmp_path, *settings, kind="detector", learn="normal"))
    (ended,) = [r.values for r in caplog.records if r.message.startswith("commissioning has ended")]
    waiting = told.statuses[-1]["monitor"]["patterns"][: bool(block)]
    expected = [f"{each['name']}: {each['samples']:g} samples" for each in waiting]
    assert ended.get("not_learnt_until_reviewed", []) == expected
    assert len(expected) == bool(block)


@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_a_fault_is_shared_when_it_was_approved_and_gone_again_after_undo(tmp_path, kind):
    with Machine(tmp_path, "sync.gate=0", kind=kind) as machine:

        def learnt():
            """All that was learnt; the exchange has it, but for what a bank has buffered."""
            there, learner = machine.shared(), machine.saved().learner
            own = Stats.total(P, own_stats(learner).values())
            assert there == own
            waiting = learner.waiting if kind == "bank" else np.empty((0, P.n_inputs))
            return own + Stats.of_rows(P, waiting)

        def odd():
            return machine.saved().monitor.odd_patterns["odd-1"].stats

        machine.meets(NORMAL)
        assert learnt() == Stats.of(P, NORMAL)
        machine.meets(np.vstack([FAULT, stream(64, 2)]))
        first = learnt()
        assert first == Stats.of(P, np.vstack([NORMAL, stream(64, 2)[4:]]))  # 5 quiet ones end it
        assert odd() == Stats.of(P, FAULT)
        done = machine.ask("review", pattern="odd-1", decision="approve")["done"]
        assert done == "odd-1 (120 samples) is normal now"
        machine.meets(stream(64, 5))
        second = learnt()
        assert second == first + Stats.of(P, FAULT) + Stats.of(P, stream(64, 5))
        machine.ask("review", pattern="odd-1", decision="undo")
        machine.meets(stream(64, 6))
        assert learnt() + odd() == second + Stats.of(P, stream(64, 6))
        if kind == "detector":
            assert odd() == Stats.of(P, FAULT)


@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_relearning_replaces_what_was_shared_with_the_next_release(tmp_path, kind):
    with Machine(tmp_path, kind=kind) as machine:
        machine.meets(NORMAL)
        assert machine.shared().count > 300
        assert "commissioning begins again" in machine.ask("relearn")["done"]
        other = stream(300, 3, 0.5)
        first = machine.meets(other[:100])
        assert not any(verdict.ready or verdict.alarm for verdict in first)
        machine.meets(other[100:])
        there = machine.shared()
        own = own_stats(machine.saved().learner).values()
        assert there == Stats.total(P, own)
        assert 250 < there.count <= 300


def test_sinks_are_told_soon_of_what_has_happened(tmp_path):
    with Machine(tmp_path) as machine:
        machine.meets(NORMAL)
        machine.meets(FAULT)
        told = machine.agent.listener.statuses

        def kinds():
            return [each["kind"] for each in told[-1]["monitor"]["events"]]

        until(lambda: "new pattern" in kinds(), deadline_s=8.0)  # usually every 10 s
        assert kinds() == ["watching", "episode began", "new pattern"]


def test_decisions_come_by_command_and_survive(tmp_path):
    with Machine(tmp_path) as machine:
        with pytest.raises(SettingError, match="found 0 samples since commissioning began"):
            machine.ask("watch")
        machine.meets(NORMAL[:60])
        machine.ask("watch")
        machine.meets(NORMAL[60:])
        machine.meets(FAULT[:40])
        assert machine.ask("review", pattern="odd-1", decision="fault", name="bearing")
        machine.meets(stream(20, 4))
        assert machine.meets(FAULT[40:])[-1].pattern == "bearing"
        machine.ask("snooze", time="1 hour")
        assert not any(verdict.alarm for verdict in machine.meets(FAULT))
        machine.ask("snooze", time="off")
        assert machine.meets(FAULT)[-1].alarm
        machine.ask("acknowledge", episode=1)
        assert [each["number"] for each in machine.ask("status")["monitor"]["episodes"]] == [2, 3]
        machine.ask("accept-drift")
        for said, words in (
            ({"pattern": "odd-9", "decision": "approve"}, "no pattern 'odd-9'"),
            ({"pattern": "bearing", "decision": "praise"}, "found decision 'praise'"),
            ({"pattern": "bearing", "decision": "fault", "name": "x"}, "undo that first"),
            ({"decision": "approve"}, 'expected "pattern"'),
        ):
            with pytest.raises(SettingError, match=words):
                machine.ask("review", **said)
        for command, more in (
            ("acknowledge", {"episode": 99}),
            ("acknowledge", {"episode": "1"}),
            ("snooze", {"time": "soon"}),
            ("snooze", {"until": "x"}),
        ):
            with pytest.raises(SettingError, match=r"expected|no episode 99"):
                machine.ask(command, **more)
    memory = saved(machine.config)
    assert memory.monitor.odd_patterns["bearing"].status == "fault"
    assert [each.acknowledged for each in memory.monitor.episodes] == [True, False, False]


def test_the_configuration_wins_over_the_saved_state(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", NORMAL)
    promised = ("sync.every_s=0", "monitor.false_alarms=1 per 1000 samples")
    config = configured(tmp_path, *promised, learn="normal")
    ran(config)
    counted = saved(config).monitor.limit.counts.samples
    assert counted > 200
    changed = ("monitor.false_alarms=1 per 100 samples", "monitor.votes=[2, 3]")
    with caplog.at_level(logging.INFO):
        ran(configured(tmp_path, "sync.every_s=0", *changed, learn="normal"))
    assert "settings of [monitor] have changed" in caplog.text
    monitor = saved(config).monitor
    assert monitor.options["votes"] == (2, 3) == monitor.level.votes
    assert monitor.limit.counts.samples == counted
    ran(configured(tmp_path, "sync.every_s=0", "monitor.limit=5", learn="normal"))
    assert saved(config).monitor.limit.value == 5.0
    caplog.clear()
    ran(configured(tmp_path, "sync.every_s=0"))
    assert "a fault that lasts will be learnt" in caplog.text
    assert saved(config).monitor.learn == "always"


def test_rejecting_samples_is_said_to_have_no_effect(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", NORMAL[:5])
    ran(configured(tmp_path, "sync.every_s=0", "learner.reject_above=8", learn="normal"))
    assert caplog.text.count("learner.reject_above has no effect") == 1


def test_samples_far_outside_are_counted_and_told(tmp_path, caplog):
    rows = NORMAL.copy()
    rows[200:205, 2] = 40.0
    write_rows(tmp_path / "pump-1.csv", rows)
    told = ran(configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, learn="normal"))
    assert told.statuses[-1]["monitor"]["outside"] == 5
    logged = [r.values for r in caplog.records if "far outside" in r.message]
    assert [values["outside"] for values in logged] == [1, 2, 4]
    assert logged[0]["inputs"] == "c from 40 to 40, expected -1 to 1"


def test_mostly_outside_the_agent_stops_and_says_what_to_do(tmp_path, caplog):
    rows = 50.0 + NORMAL
    write_rows(tmp_path / "pump-1.csv", rows)
    config = configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, learn="normal")
    listener = Listener()
    assert run(config, stop=Event(), sinks=[listener]) == NO_USABLE_DATA == 5
    (said,) = [str(r.values["why"]) for r in caplog.records if r.message == "the agent stops"]
    assert "of the first 400 samples 400 lie far outside" in said
    assert "found a from " in said
    assert "expected -1 to 1" in said
    assert "[projection]" in said
    assert len(listener.verdicts) == 400
    ranges = ("projection.low=48", "projection.high=52")
    told = ran(configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, *ranges, learn="normal"))
    assert len(told.verdicts) == 400


def test_of_a_long_file_mostly_outside_the_agent_reads_only_the_first_1000_samples(tmp_path):
    write_rows(tmp_path / "pump-1.csv", np.vstack([50.0 + NORMAL] * 3))
    listener = Listener()
    config = configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, learn="normal")
    assert run(config, stop=Event(), sinks=[listener]) == NO_USABLE_DATA
    assert len(listener.verdicts) == 999


def test_a_machine_that_stands_still_at_first_is_watched(tmp_path):
    rows = np.vstack([50.0 + NORMAL[:180], NORMAL])
    write_rows(tmp_path / "pump-1.csv", rows)
    told = ran(configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, learn="normal"))
    assert len(told.verdicts) == len(rows)
    assert told.statuses[-1]["monitor"]["outside"] == 180


def test_what_was_outside_long_ago_is_not_said_again(tmp_path, caplog):
    rows = NORMAL.copy()
    rows[20:30, 0] = 50.0
    rows[300:320, 2] = 40.0
    write_rows(tmp_path / "pump-1.csv", rows)
    ran(configured(tmp_path, "sync.every_s=0", NAMES, COLUMNS, learn="normal"))
    began = [r.values for r in caplog.records if r.message == "a problem with the data began"]
    said = [values["words"] for values in began if values["problem"] == "outside range"]
    assert ": a from 50 to 50, expected -1 to 1. " in said[0]
    assert ": c from 40 to 40, expected -1 to 1. " in said[1]


def test_a_restored_monitor_of_an_agent_is_a_monitor(tmp_path):
    write_rows(tmp_path / "pump-1.csv", NORMAL)
    config = configured(tmp_path, "sync.every_s=0", learn="normal")
    ran(config)
    assert isinstance(saved(config).monitor, Monitor)
    assert saved(config).monitor.phase == "watching"
