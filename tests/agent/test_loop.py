"""The loop: verdicts, commands, clocks, silent sources, hanging exchanges; agents in threads."""

import json
import logging
import socket
from itertools import count
from random import Random
from threading import Event
from time import monotonic

import numpy as np
import pytest

from edgemerge import Detector, Stats
from edgemerge.agent import runner
from edgemerge.agent.control import send_command
from edgemerge.agent.runner import NO_USABLE_DATA
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import StateFolder
from edgemerge.agent.supervisor import run
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.protocol import MemoryExchange
from tests.agent.agents import Listener, Running, configured, ran, shared, stream, write_rows
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

P = shared()
TAIL = ("source.kind=tail", "sync.every_s=0", "save.every_s=0.01")


@pytest.fixture
def tailing(tmp_path):
    """An agent that follows a growing file, with 100 samples learnt."""
    write_rows(tmp_path / "pump-1.csv", stream(100))
    config = configured(tmp_path, *TAIL)
    with Running(config) as agent:
        agent.config, agent.path = config, tmp_path / "pump-1.csv"
        agent.ask = lambda command, **more: send_command(
            config.state, {"command": command, **more}, DEADLINE_S
        )
        until(lambda: len(agent.listener.verdicts) == 100)
        yield agent
    assert agent.code == 0


def test_each_sample_is_scored_before_it_is_learnt(tmp_path):
    rows = stream(120)
    write_rows(tmp_path / "pump-1.csv", rows)
    told = ran(configured(tmp_path, "sync.every_s=0"))
    detector = Detector(P)
    expected = [detector.learn_and_score(x) for x in rows]
    unknown = [verdict.index for verdict in told.verdicts if verdict.score is None]
    assert unknown == list(range(11))  # 1.3 times the hidden values
    assert not any(verdict.ready for verdict in told.verdicts[:11])
    assert told.scores[11:] == pytest.approx(expected[11:], rel=1e-9)
    assert [verdict.index for verdict in told.verdicts] == list(range(120))
    assert {verdict.device for verdict in told.verdicts} == {"pump-1"}


def test_an_alarm_names_the_inputs_that_carry_it(tmp_path):
    rows = stream(200)
    rows[150, 4] += 0.8
    write_rows(tmp_path / "pump-1.csv", rows)
    names = ['projection.names=["a","b","c","d","e","f"]', "source.columns=[0,1,2,3,4,5]"]
    told = ran(configured(tmp_path, "sync.every_s=0", "monitor.limit=30", *names))
    alarm = told.verdicts[150]
    assert alarm.alarm
    assert alarm.score > alarm.limit == 30.0
    assert alarm.why[0] == "e"
    assert len(alarm.why) == 3
    assert told.verdicts[149].why == ()
    assert told.statuses[-1]["alarms"] == sum(verdict.alarm for verdict in told.verdicts)


def test_a_bank_names_the_pattern(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(64))
    told = ran(configured(tmp_path, "sync.every_s=0", kind="bank"))
    assert told.verdicts[0].pattern is None
    assert told.verdicts[-1].pattern == "normal"


def test_samples_that_do_not_fit_are_skipped_and_counted(tmp_path, monkeypatch):
    rows = [*stream(30), np.full(6, np.nan), *stream(3, 1)]

    class Given:
        def read(self, _stop, _position=None):
            for row in rows:
                yield Reading(row)

    monkeypatch.setattr(runner, "make_source", lambda *_: Given())
    told = ran(configured(tmp_path, "sync.every_s=0"))
    assert len(told.verdicts) == 33
    assert told.statuses[-1]["skipped"] == 1
    assert np.isfinite(told.scores[11:]).all()


def test_a_source_that_fails_ends_the_agent_with_what_it_has_learnt(tmp_path, caplog):
    config = configured(tmp_path, "sync.every_s=0")  # there is no such file
    assert run(config, stop=Event()) == NO_USABLE_DATA
    assert "the source failed" in caplog.text
    folder = StateFolder(config.state)
    assert folder.read() is not None
    folder.close()


def test_a_second_run_goes_on_behind_the_first(tmp_path):
    rows = stream(300)
    whole = tmp_path / "whole"
    whole.mkdir()
    write_rows(whole / "pump-1.csv", rows)
    expected = ran(configured(whole, "sync.every_s=0")).scores
    config = configured(tmp_path, "sync.every_s=0")
    write_rows(tmp_path / "pump-1.csv", rows[:137])
    first = ran(config)
    write_rows(tmp_path / "pump-1.csv", rows[137:], "a")
    second = ran(config)
    assert first.scores + second.scores == expected
    assert second.verdicts[0].index == 137
    assert first.statuses[-1]["incarnation"] == second.statuses[-1]["incarnation"]


def test_an_agent_that_has_read_its_file_says_that_nothing_in_it_is_new(tmp_path, caplog):
    caplog.set_level("INFO")
    config = configured(tmp_path, "sync.every_s=0")
    write_rows(tmp_path / "pump-1.csv", stream(40))
    ran(config)
    ran(config)
    ends = [each.values for each in caplog.records if each.message == "the source has ended"]
    assert [(end["new_samples"], end["samples"]) for end in ends] == [(40, 40), (0, 40)]


def test_commands_are_answered_while_the_source_is_silent(tailing):
    found = tailing.ask("status")
    assert found["samples"] == 100
    assert found["patterns"] == {"normal": 100.0}
    assert found["exchange"] == "not asked yet"
    assert tailing.ask("save") == {"saved": "ok"}


def test_scores_can_be_asked_for_without_learning(tailing):
    rows = stream(3, 5)
    rows[2] += 0.5
    first = tailing.ask("score", rows=rows.tolist())
    assert first["alarms"] == [False, False, True]
    assert tailing.ask("score", rows=rows.tolist()) == first
    assert tailing.ask("status")["patterns"] == {"normal": 100.0}


def test_learning_can_be_paused_and_resumed(tailing):
    assert tailing.ask("learn", on=False) == {"learning": False}
    write_rows(tailing.path, stream(10, 2), "a")
    until(lambda: len(tailing.listener.verdicts) == 110)
    assert tailing.ask("status")["patterns"] == {"normal": 100.0}
    tailing.ask("learn", on=True)
    write_rows(tailing.path, stream(10, 3), "a")
    until(lambda: len(tailing.listener.verdicts) == 120)
    assert tailing.ask("status")["patterns"] == {"normal": 110.0}


def test_sync_and_undo_on_command(tailing):
    exchange = FolderExchange(tailing.config.exchange.path, P)
    from edgemerge import Contribution

    exchange.push(Contribution("pump-2", Stats.of(P, stream(80, 7)), 1))
    found = tailing.ask("sync")
    assert found["held_back"] == ["normal: 100 of 128 samples"]  # peers see each contribution
    assert found["told"] == "adopted 80 samples of 1 devices"
    assert found["preview"]["shift"] < 2.0
    assert tailing.ask("undo") == {"told": "the last merge was undone"}
    assert tailing.ask("status")["patterns"] == {"normal": 100.0}
    assert "it was undone" in tailing.ask("sync")["told"]
    write_rows(tailing.path, stream(50, 3), "a")
    until(lambda: len(tailing.listener.verdicts) == 150)
    assert tailing.ask("sync")["pushed"] == 1
    assert exchange.pull(Selection(devices=("pump-1",))).total.count == 150


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"command": "dance"}, "known are status, sync, undo, trust, save, score, learn, review"),
        ({"command": "score"}, "a list of samples"),
        ({"command": "score", "rows": [[1.0, 2.0]]}, "expected"),
        ({"command": "score", "rows": ["x"]}, "a sample must be 6 numbers"),
        ({"command": "learn"}, "true or false"),
    ],
)
def test_commands_that_make_no_sense_are_answered_with_words(tailing, command, words):
    with pytest.raises(SettingError, match=words):
        send_command(tailing.config.state, command, DEADLINE_S)
    assert tailing.ask("status")["samples"] == 100


def test_lines_that_are_no_commands_are_answered_too(tailing):
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(DEADLINE_S)
        there.connect(str(tailing.config.state / "control"))
        with there.makefile("rb") as lines:
            for line in (b"{\n", b"[1]\n", b'{"command": "status"}\n'):
                there.sendall(line)
                found = json.loads(lines.readline())
                assert ("error" in found) == (b"status" not in line)


def test_where_no_agent_runs_that_is_said(tmp_path):
    with pytest.raises(UnavailableError, match="start it first"):
        send_command(tmp_path, "status", 1.0)


def test_only_the_owner_may_ask_and_a_dead_agents_socket_is_replaced(tmp_path):
    config = configured(tmp_path, *TAIL)
    config.state.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(config.state / "control"))
    with Running(config):
        until((config.state / "agent.state").exists)
        assert send_command(config.state, "status", DEADLINE_S)["samples"] == 0
        assert (config.state / "control").stat().st_mode & 0o077 == 0
    assert not (config.state / "control").exists()


def test_a_long_path_to_the_state_folder_does_no_harm(tmp_path):
    deep = tmp_path / ("x" * 90) / ("y" * 90)
    deep.mkdir(parents=True)
    config = configured(deep, *TAIL)
    with Running(config):
        until((config.state / "control").exists)
        assert send_command(config.state, "status", DEADLINE_S)["device"] == "pump-1"


def answers_in(caplog):
    return [each.values for each in caplog.records if each.message == "a command was run"]


def test_commands_that_come_by_a_sink_are_carried_out(tmp_path, caplog):
    caplog.set_level("INFO")
    write_rows(tmp_path / "pump-1.csv", stream(130))
    config = configured(tmp_path, *TAIL)
    with Running(config) as agent:
        words = ["sync", "dance"]
        agent.listener.commands = lambda: [words.pop()] if words else []
        exchange = FolderExchange(config.exchange.path, P)
        until(lambda: not words)
        until(lambda: len(agent.listener.verdicts) == 130)
        words.append("sync")
        until(lambda: exchange.pull(Selection()).total.count == 130)
        until(lambda: len(answers_in(caplog)) == 3)
    answers = answers_in(caplog)
    assert answers[0]["error"].startswith("found the command 'dance', known are status, sync")
    assert [found["exchange"] for found in answers[1:]] == ["ok", "ok"]


class Hanging:
    """An exchange that neither answers nor fails."""

    def __init__(self):
        self.asked, self.let_go = Event(), Event()

    def push(self, _what, **_how):
        self.asked.set()
        self.let_go.wait(60.0)

    pull = push


def test_a_hanging_exchange_stops_neither_detection_nor_leaving(tmp_path, monkeypatch):
    hanging = Hanging()
    monkeypatch.setattr(runner, "make_exchange", lambda *_: hanging)
    write_rows(tmp_path / "pump-1.csv", stream(50))
    config = configured(tmp_path, "source.kind=tail", "sync.every_s=0.01")
    with Running(config) as agent:
        assert hanging.asked.wait(DEADLINE_S)
        before = len(agent.listener.verdicts)
        write_rows(tmp_path / "pump-1.csv", stream(50, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 100 > before)
        assert send_command(config.state, "status", DEADLINE_S)["samples"] == 100
        asked = monotonic()
    assert monotonic() - asked < 5.0  # two seconds, on a machine that does nothing else
    assert agent.code == 0
    hanging.let_go.set()
    folder = StateFolder(config.state)
    assert folder.read().index == 100
    folder.close()


def test_clocks_that_jump_change_nothing(tmp_path, monkeypatch):
    rows = stream(200)
    write_rows(tmp_path / "pump-1.csv", rows)
    exchange = MemoryExchange(P)
    monkeypatch.setattr(runner, "make_exchange", lambda *_: exchange)
    random, ticks = Random(1), count()

    def clock():
        next(ticks)
        return random.choice([0.0, 5.0, 1e9, 1e9 + 1, 4e9, 1e17])

    told = ran(configured(tmp_path, "sync.gate=0"), clock=clock)
    assert len(told.verdicts) == 200
    assert next(ticks) > 200
    assert exchange.pull(Selection()).total == Stats.of(P, rows)


def test_a_disk_that_cannot_be_written_does_not_stop_detection(tailing, monkeypatch):
    def full(*_given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgemerge.agent.state.write_atomically", full)
    write_rows(tailing.path, stream(20, 2), "a")
    until(lambda: len(tailing.listener.verdicts) == 120)
    until(lambda: tailing.ask("status")["saved"] != "ok")
    assert "No space left" in tailing.ask("status")["saved"]
    assert "nothing is shared" in tailing.ask("sync")["exchange"]
    monkeypatch.undo()
    assert tailing.ask("save") == {"saved": "ok"}


@pytest.mark.parametrize(
    ("gate", "warning"),
    [
        ("0", "sync.gate is lower than the default: single samples can be recovered"),
        ("12", "sync.gate is lower than the default: whether a sample was among those learnt"),
        ("16", None),
    ],
)
def test_a_lower_gate_than_the_default_is_warned_of(tmp_path, caplog, gate, warning):
    write_rows(tmp_path / "pump-1.csv", stream(5))
    with caplog.at_level(logging.WARNING):
        ran(configured(tmp_path, f"sync.gate={gate}"))
    assert (warning or "sync.gate is lower") in caplog.text or warning is None
    assert ("sync.gate is lower" in caplog.text) == bool(warning)


def test_changed_settings_of_the_learner_are_warned_of(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", stream(5))
    ran(configured(tmp_path, "sync.every_s=0"))
    ran(configured(tmp_path, "sync.every_s=0", "learner.forgetting=0.9"))
    assert "settings of [learner] have changed" in caplog.text


def test_what_is_shared_at_the_end_of_a_source_can_be_chosen(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(200))
    exchange = FolderExchange(tmp_path / "exchange", P)
    ran(configured(tmp_path, "sync.every_s=3600", "sync.at_end=false"))
    assert exchange.pull(Selection()).total.count == 0
    ran(configured(tmp_path, "sync.every_s=3600"))
    assert exchange.pull(Selection()).total.count == 200


def test_the_projection_of_the_fleet_is_kept_for_when_it_is_away(tmp_path, monkeypatch):
    class Fleet(MemoryExchange):
        asked = 0

        @property
        def projection(self):
            Fleet.asked += 1
            if Fleet.asked == 1:
                raise UnavailableError("not there yet")
            return P

        @projection.setter
        def projection(self, _given):
            pass

    fleet = Fleet(P)
    monkeypatch.setattr(runner, "make_exchange", lambda *_: fleet)
    monkeypatch.setattr("edgemerge.agent.runner.FIRST_RETRY_S", 0.01)
    config = configured(tmp_path, "sync.every_s=0")
    object.__setattr__(config, "projection", None)
    write_rows(tmp_path / "pump-1.csv", stream(20))
    ran(config)
    assert Fleet.asked == 2
    (config.state / "agent.state").unlink()
    ran(config)
    assert Fleet.asked == 2


def test_a_lost_state_is_a_new_incarnation_that_is_told_what_the_old_one_saw(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(60))
    config = configured(tmp_path, "sync.gate=2", "sync.every_s=10000")
    ran(config, clock=lambda: 1000.0)
    (config.state / "agent.state").unlink()
    write_rows(tmp_path / "pump-1.csv", stream(30, 1))
    told = ran(config, clock=lambda: 2000.0)
    assert told.statuses[-1]["incarnation"] == 2_000_000
    assert told.statuses[-1]["patterns"] == {"normal": 90.0}
    every = np.vstack([stream(60), stream(30, 1)])
    assert FolderExchange(tmp_path / "exchange", P).pull(Selection()).total == Stats.of(P, every)


def test_a_listener_is_told_how_it_goes(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(5))
    listener = Listener()
    assert run(configured(tmp_path), stop=Event(), sinks=[listener]) == 0
    json.dumps(listener.statuses, allow_nan=False)
    assert {
        "samples",
        "alarms",
        "skipped",
        "patterns",
        "revision",
        "incarnation",
        "last_sync",
        "held_back",
        "preview",
        "exchange",
    } <= set(listener.statuses[-1])
