"""A sensor is added: the next generation learns beside the former one, and then replaces it."""

import json
import logging
import os
import time
from socket import AF_INET, SOCK_DGRAM, socket
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.agent.config import REPLACED_FILE, FleetConfiguration, read_config
from edgemerge.agent.control import SOCKET_NAME, send_command
from edgemerge.agent.judge import Verdict
from edgemerge.agent.supervisor import (
    BEHIND,
    MAX_WITHHELD,
    SILENT_S,
    SKEW_S,
    DeviceThread,
    FormerWatch,
    Generations,
    Handover,
    run,
)
from edgemerge.core.errors import SettingError
from edgemerge.delivery import Message
from edgemerge.files import DiskQueue, to_json_line
from tests.agent.agents import Listener, Running, stream, write_rows
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

FILE = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 5
n_hidden = 8
seed = 7
[source]
kind = "tail"
path = "rows.csv"
header = false
columns = ["1", "2", "3", "4", "5"]
[learner]
kind = "detector"
[monitor]
commissioning = 128
limit = 12.0
[save]
every = 10
[[sinks]]
kind = "jsonl"
path = "verdicts.jsonl"
"""
NEXT = """
[next]
state = "state-2"
[next.projection]
n_inputs = 6
[next.source]
columns = ["1", "2", "3", "4", "5", "6"]
start = "end"
"""
FROM_THE_START = NEXT.replace('start = "end"\n', "")
CSV = FILE.replace('"tail"', '"csv"')
GAP_S = 1.5 * SKEW_S  # between two rows


def configured(folder, text=FILE + NEXT):
    (folder / "agent.toml").write_text(text)
    return read_config(folder / "agent.toml", environment={})


def rows(count, seed, fault=0.0):
    found = stream(count, seed)
    found[:, 0] += fault
    return found


def test_next_is_the_file_with_changes(tmp_path):
    config = configured(tmp_path)
    assert (config.projection.n_inputs, config.next.projection.n_inputs) == (5, 6)
    assert config.next.projection.seed == 7  # as above it
    assert (config.next.device, config.next.state) == ("pump-1", tmp_path / "state-2")
    assert (config.next.monitor, config.next.sinks) == (config.monitor, config.sinks)
    assert config.next.next is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FILE + "[next]\n", "without `state`"),
        (FILE + '[next]\nstate = "state"\n', "the same state folder"),
        (FILE + NEXT.replace("[next]", '[next]\ndevice = "b"'), "found `device` or `next`"),
        (FILE.replace('"tail"', '"stdin"') + NEXT, "the same source, standard input"),
        (FILE + NEXT.replace("n_inputs = 6", "inputs = 6"), r"\[next\]: Unknown key"),
        ("next = 4\n" + FILE, "without `state`"),
    ],
)
def test_what_cannot_run_beside_is_refused(tmp_path, text, why):
    with pytest.raises(SettingError, match=why):
        configured(tmp_path, text)


def test_a_pipe_cannot_be_read_by_two(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(SettingError, match=r"the same source, .*rows.csv: both run side by side"):
        configured(tmp_path)


@pytest.mark.slow
def test_the_alarm_is_never_silent_while_a_sensor_is_added(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config, path = configured(tmp_path, FILE), tmp_path / "rows.csv"
    write_rows(path, rows(300, 1))
    with Running(config) as agent:  # it watches before the change
        until(lambda: len(agent.listener.verdicts) == 300)
        assert agent.listener.verdicts[-1].ready
    config = configured(tmp_path)
    with Running(config) as agent:
        told = agent.listener.verdicts
        until((config.next.state / SOCKET_NAME).exists)
        write_rows(path, rows(20, 2), "a")
        write_rows(path, rows(30, 3, fault=3.0), "a")  # a fault in the middle, all at once
        until(lambda: len(told) == 50)
        assert told[-1].alarm
        write_rows(path, rows(10, 4), "a")
        write_rows(path, rows(BEHIND, 5), "a")
        until(lambda: len(told) == 60 + BEHIND)
        assert not (config.next.state / REPLACED_FILE).exists()
        more = iter(range(6, 1000))

        written = len(told)

        def replaced():
            nonlocal written
            if len(told) >= written:  # all that was written is judged
                write_rows(path, rows(20, next(more)), "a")
                written += 20
            return (config.next.state / REPLACED_FILE).exists()

        until(replaced)
        count = len(told)
        write_rows(path, rows(30, 2000, fault=3.0), "a")  # and one right after it
        until(lambda: any(verdict.alarm for verdict in told[count:]))
        until(lambda: not (config.state / SOCKET_NAME).exists())
        assert send_command(config.next.state, "status", DEADLINE_S)["learning"]
        values = [getattr(each, "values", {}) for each in caplog.records]
        switched = [each["learning"] for each in values if "learning" in each]
        assert switched == [True, False, True]  # not of a machine that was in alarm
    assert agent.code == 0
    indices = [verdict.index for verdict in told[: 60 + BEHIND]]
    assert indices == list(range(300, 360 + BEHIND))  # the former one went on as before
    again = read_config(config.file, environment={})  # from now on there is the next one only
    assert (again.state, again.next) == (config.next.state, None)
    with Running(again) as agent:
        write_rows(path, rows(5, 3000), "a")
        until(lambda: len(agent.listener.verdicts) >= 5)
    delivered = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    assert sum('"alarm": true' in line or '"alarm":true' in line for line in delivered) >= 40


@pytest.mark.slow
def test_a_next_generation_that_fails_does_not_disturb_the_former(tmp_path):
    write_rows(tmp_path / "rows.csv", rows(300, 1))
    alone = configured(tmp_path, FILE.replace('"state"', '"state-alone"'))
    with Running(alone) as agent:
        until(lambda: len(agent.listener.verdicts) == 300)
    text = FILE + NEXT.replace('columns = ["1", "2", "3", "4", "5", "6"]', 'columns = ["1", "9"]')
    with Running(configured(tmp_path, text)) as beside:
        until(lambda: len(beside.listener.verdicts) == 300)
    assert beside.code == 0
    assert beside.listener.scores == agent.listener.scores
    assert not (tmp_path / "state-2" / REPLACED_FILE).exists()


def test_the_handover_waits_for_the_end_of_an_alarm_and_then_delivers(tmp_path):
    config = configured(tmp_path).next
    former = FormerWatch()
    handover = Handover(config, former)

    def verdict(*, ready=True, alarm=False, index=0):
        return Verdict("pump-1", index, 0.0, 1.0, 4.0, alarm, ready=ready)

    former.verdict(verdict(alarm=True))
    handover.verdict(verdict())
    assert not handover.ready.is_set()
    former.verdict(verdict())
    handover.verdict(verdict(ready=False))
    assert not handover.ready.is_set()
    handover.verdict(verdict())
    assert handover.ready.is_set()
    assert not (tmp_path / "verdicts.jsonl").exists()
    handover.verdict(verdict(alarm=True, index=7))  # while the former one ends
    handover.former_ended.set()
    handover.commands()  # no other verdict comes
    handover.verdict(verdict(alarm=True, index=8))
    handover.close()
    lines = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 7, 8]


def test_nothing_that_was_withheld_is_lost_when_the_next_one_ends_first(tmp_path):
    config = configured(tmp_path, CSV + FROM_THE_START)
    write_rows(tmp_path / "rows.csv", rows(400, 1))
    has_replaced = (config.next.state / REPLACED_FILE).exists

    class Slow(Listener):
        """Holds the former one up in the middle, and at its end until the next one has ended."""

        def verdict(self, verdict):
            super().verdict(verdict)
            if len(self.verdicts) == 300:
                until(has_replaced)

        def status(self, status):
            super().status(status)
            if has_replaced():
                until(lambda: not (config.next.state / SOCKET_NAME).exists())

    slow = Slow()
    assert run(config, stop=Event(), sinks=[slow], clock=lambda: 1000.0) == 0
    assert {verdict.index for verdict in slow.verdicts} == set(range(400))


def test_the_next_one_waits_when_much_is_withheld(tmp_path):
    handover = Handover(configured(tmp_path).next, FormerWatch())
    handover.commands()
    handover.ready.set()
    for at in range(MAX_WITHHELD):
        assert handover.may_pass(at)
        handover.verdict(judged(at))
    assert not handover.may_pass(MAX_WITHHELD)
    handover.former_ended.set()
    handover.commands()
    assert handover.may_pass(MAX_WITHHELD)
    handover.close()
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == MAX_WITHHELD


@pytest.mark.slow
def test_a_state_folder_that_cannot_be_written_delays_the_handover_and_nothing_else(
    tmp_path, caplog
):
    config = configured(tmp_path, FILE + FROM_THE_START)
    write_rows(tmp_path / "rows.csv", rows(400, 1))
    config.next.state.mkdir()
    mark = config.next.state / REPLACED_FILE
    mark.symlink_to(tmp_path / "missing" / "file")
    with Running(config, clock=lambda: 1000.0) as agent:
        until((config.next.state / SOCKET_NAME).exists)
        samples = lambda: send_command(config.next.state, "status", DEADLINE_S)["samples"]  # noqa: E731
        until(lambda: samples() == 400)
        until(lambda: "the former one goes on" in caplog.text)
        assert (config.state / SOCKET_NAME).exists()
        mark.unlink()
        until(mark.exists)
        until(lambda: not (config.state / SOCKET_NAME).exists())
        assert caplog.text.count("the former one goes on") == 1
    assert agent.code == 0


def hold_tables(folder, **tables):
    """Let a device have a fleet's configuration, as if its server had sent it."""
    folder.mkdir()
    FleetConfiguration(1, tables, 1).save(folder)


def test_the_next_one_delivers_nothing_before_whatever_its_fleet_configures(tmp_path):
    config = configured(tmp_path, CSV + FROM_THE_START)
    write_rows(tmp_path / "rows.csv", rows(50, 1))  # too few to watch
    hold_tables(config.next.state, quality={"stuck_rows": 7})
    assert run(config, stop=Event(), clock=lambda: 1000.0) == 0
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 50


@pytest.mark.parametrize(("kind", "expected"), [("syslog", 2), ("email", 1)])
def test_the_next_one_has_the_sinks_of_its_fleet_if_they_can_be_used(tmp_path, kind, expected):
    config = configured(tmp_path).next
    hold_tables(config.state, sinks=[{"kind": kind, "host": "127.0.0.1"}])  # mail needs more
    handover = Handover(config, FormerWatch())
    handover.former_ended.set()
    assert len(handover._own_sinks()) == expected
    handover.close()


def test_messages_that_wait_are_delivered_by_the_next_one(tmp_path):
    with socket(AF_INET, SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(DEADLINE_S)
        sink = f'[[sinks]]\nkind = "syslog"\nhost = "127.0.0.1"\nport = {log.getsockname()[1]}\n'
        config = configured(tmp_path, FILE + sink + NEXT)
        waits = DiskQueue(config.state / "messages-1.jsonl")
        waits.add(to_json_line(Message("alarm", "pump-1", 5.0, 7).plain()))
        config.next.state.mkdir()
        handover = Handover(config.next, FormerWatch(), replaces=config)
        handover.former_ended.set()
        handover.commands()
        assert b"pump-1: alarm" in log.recv(2000)
        handover.close()
    assert len(DiskQueue(config.state / "messages-1.jsonl")) == 0, "they are sent once"


def test_one_that_was_replaced_is_not_run_again(tmp_path):
    config = configured(tmp_path, CSV + FROM_THE_START)
    write_rows(tmp_path / "rows.csv", rows(20, 1))
    config.next.state.mkdir()
    (config.next.state / REPLACED_FILE).touch()  # since the file was read, as in a gateway
    device = DeviceThread(config, Event(), time.time, lambda _error: 1)
    device.join()
    assert device.ending.code == 0
    assert device.plain()["folder"] == str(config.next.state)
    assert not config.state.exists()


def test_one_that_is_started_again_is_told_again_whether_to_learn(tmp_path):
    config = configured(tmp_path, CSV + FROM_THE_START)  # and there is no file
    stop, handover = Event(), Handover(config.next, FormerWatch())
    assert handover.commands() == [{"command": "learn", "on": True}]
    assert handover.commands() == []
    beside = DeviceThread(config.next, stop, time.time, lambda _error: 1)
    generations = Generations(config, stop, time.time, (), lambda _told: None)
    watcher = Thread(target=generations._watch, args=(config.next, handover, beside))
    watcher.start()
    until(lambda: handover.commands() == [{"command": "learn", "on": True}])
    stop.set()
    watcher.join()
    beside.join()
    assert not (config.next.state / REPLACED_FILE).exists()


def test_one_that_has_failed_replaces_nothing(tmp_path):
    config = configured(tmp_path, CSV + FROM_THE_START)  # and there is no file
    stop, handover = Event(), Handover(config.next, FormerWatch())
    beside = DeviceThread(config.next, stop, time.time, lambda _error: 1)
    beside.join()
    handover.ready.set()  # before it failed
    generations = Generations(config, stop, time.time, (), lambda _told: None)
    watcher = Thread(target=generations._watch, args=(config.next, handover, beside))
    watcher.start()
    watcher.join(1.0)
    stop.set()
    watcher.join()
    assert not (config.next.state / REPLACED_FILE).exists()
    assert not handover.ready.is_set(), "it must watch again first"


def judged(at, *, alarm=False):
    return Verdict("pump-1", 0, at, 1.0, 4.0, alarm)


def test_the_next_one_follows_behind_the_former_one():
    now = [0.0]
    former = FormerWatch(lambda: now[0])
    for at in range(10, 10 + BEHIND - 1):
        assert not former.has_passed(0.0)
        former.verdict(judged(at))
    assert not former.has_passed(0.0)
    former.verdict(judged(99.0))
    assert former.has_passed(10.0)  # as many as are needed came at that time or later
    assert not former.has_passed(10.5)
    former.verdict(judged(100.0))
    assert former.has_passed(11.0)
    assert not former.has_passed(100.0)
    now[0] = SILENT_S
    assert not former.has_passed(100.0)
    now[0] += 1
    assert former.has_passed(100.0)  # nothing was judged for long
    former.verdict(judged(101.0))
    assert not former.has_passed(100.0)
    former.close()
    assert former.has_passed(100.0)


def test_an_alarm_of_a_former_one_that_is_silent_holds_nothing_back():
    now = [0.0]
    former = FormerWatch(lambda: now[0])
    former.verdict(judged(50.0, alarm=True))
    assert former.alarm
    assert former.is_doubtful(50.0)
    assert former.is_doubtful(1000.0)
    now[0] = SILENT_S + 1
    assert not former.alarm
    assert former.is_doubtful(50.0 + SKEW_S)  # of the alarm itself
    assert not former.is_doubtful(1000.0)
    former.verdict(judged(1001.0, alarm=True))
    assert former.alarm
    assert former.is_doubtful(1000.0)


@pytest.mark.parametrize(("calm", "doubtful"), [(0, True), (BEHIND - 2, True), (BEHIND, False)])
def test_an_alarm_soon_after_a_restart_may_have_begun_before_it(calm, doubtful):
    """The next one has rows to read that the former one judged before both were stopped."""
    former = FormerWatch()
    for i in range(calm):
        former.verdict(judged(1000.0 + i))
    former.verdict(judged(1000.0 + calm, alarm=True))
    assert former.is_doubtful(900.0) == doubtful
    former.verdict(judged(1001.0 + calm))
    assert former.is_doubtful(900.0) == doubtful
    assert not former.is_doubtful(1002.0 + calm + SKEW_S)


@pytest.mark.parametrize("event", ["ready", "former_ended"])
def test_nothing_waits_once_the_next_one_takes_over(tmp_path, event):
    former = FormerWatch()
    handover = Handover(configured(tmp_path).next, former)
    handover.commands()
    former.verdict(judged(0.0, alarm=True))
    assert not handover.may_pass(0.0)
    assert handover.commands() == [{"command": "learn", "on": False}]
    getattr(handover, event).set()
    assert not handover.may_pass(0.0)  # not before it learns again
    assert {"command": "learn", "on": True} in handover.commands()
    assert handover.may_pass(0.0)
    handover.close()


@given(
    faults=st.lists(st.tuples(*[st.integers(1, 60)] * 2, st.integers(0, BEHIND - 1)), max_size=4),
    lags=st.lists(st.integers(0, 80), min_size=1, max_size=20),
)
def test_the_next_one_learns_what_is_far_from_a_fault_and_nothing_else(faults, lags):
    """A fault lasts from its row on; the alarm begins with a delay and ends a little later."""
    faulty, alarms = [], []
    for before, length, delay in faults:
        faulty += [False] * before + [True] * length + [False] * 10
        alarms += [False] * (before + delay) + [True] * (length - delay)
        alarms += [length > delay] * 5 + [False] * (len(faulty) - len(alarms))
        alarms = alarms[: len(faulty)]
    faulty, alarms = faulty + [False] * 200, alarms + [False] * 200
    former, learning, learned, taken = FormerWatch(), True, set(), 0
    handover = Handover(None, former)
    for row, alarm in enumerate(alarms):
        former.verdict(judged(row * GAP_S, alarm=alarm))
        for _ in range(row - lags[row % len(lags)] - taken + 2):
            if handover.may_pass(taken * GAP_S):
                learned |= {taken} if learning else set()
                taken += 1
            for command in handover.commands():
                learning = command["on"]
    opened = [row for row in range(1, len(alarms)) if alarms[row] and not alarms[row - 1]]
    held = {row for first in opened for row in range(first - BEHIND + 1, first + 1)}
    held |= {row for row, alarm in enumerate(alarms) if alarm or (row and alarms[row - 1])}
    assert learned == set(range(taken)) - held
    heard = {row for row in range(len(faulty)) if faulty[row] and row in held}
    assert not heard & learned
    assert taken > len(alarms) - 150
