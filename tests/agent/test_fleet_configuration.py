"""The fleet's configuration on a device: what it may set, what wins, applied, refused, undone."""

import json
from dataclasses import fields, replace
from threading import Event

import pytest

from edgemerge import Projection
from edgemerge.agent.background import ReportSchedule, SyncSchedule
from edgemerge.agent.config import (
    HELD_FILE,
    TABLES,
    FleetConfiguration,
    QualityConfig,
    SaveConfig,
    SinkConfig,
    origins_of,
    read_config,
    read_configuration,
    read_fleet_tables,
    with_fleet_tables,
)
from edgemerge.agent.control import SOCKET_NAME, send_command
from edgemerge.agent.factory import make_monitor
from edgemerge.agent.quality import DataQuality
from edgemerge.agent.runner import Agent, Reconfiguration
from edgemerge.agent.state import AgentState, StateFolder, state_tensors
from edgemerge.agent.supervisor import run
from edgemerge.agent.sync import Clocks
from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import DesiredState
from edgemerge.exchange.configuration import ALLOWED_KEYS, SINK_KEYS, check_tables, overlay
from tests.agent.agents import Listener, Running, shared, stream, write_rows
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow


FILE = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 6
n_hidden = 8
seed = 7
[source]
kind = "csv"
path = "rows.csv"
header = false
[exchange]
kind = "http"
url = "http://127.0.0.1:9"
fleet = "pumps"
token_file = "token"
"""


@pytest.fixture
def own(tmp_path):
    """Return what reads the device's own file, with more tables in it."""

    def read(more="", *overrides, environment=None):
        (tmp_path / "agent.toml").write_text(FILE + more)
        (tmp_path / "token").write_text("secret")
        (tmp_path / "token").chmod(0o600)
        return read_config(
            tmp_path / "agent.toml", environment=environment or {}, overrides=overrides
        )

    return read


# What may be set


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[monitor]\nlimitt = 5",
            "Unknown key 'monitor.limitt' in t.toml. Did you mean 'monitor.",
        ),
        ("[monitr]\nlimit = 5", "Unknown key 'monitr' in t.toml. Did you mean 'monitor'?"),
        (
            "[sync]\npush = true",
            "found sync.push in a fleet's configuration: only the device's own",
        ),
        ("device = 'x'", "found device in a fleet's configuration: only the device's own"),
        ("a,b\n1,2", "is not TOML: .*: give tables such as \\[monitor\\]"),
        (None, "t.toml cannot be read .*: give tables such as \\[monitor\\]"),
    ],
)
def test_a_key_that_is_nowhere_is_unknown_and_not_for_the_devices_own_file(tmp_path, text, words):
    if text is not None:
        (tmp_path / "t.toml").write_text(text)
    with pytest.raises(SettingError, match=words):
        read_fleet_tables(tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"sinks": [{"kind": "exec", "command": ["rm"]}]}, "sinks.0.kind = 'exec'"),
        ({"sinks": [{"kind": "file", "path": "/etc/x"}]}, "sinks.0.kind = 'file'"),
        ({"sinks": [{"kind": "jsonl", "path": "/etc/x"}]}, "sinks.0.kind = 'jsonl'"),
        ({"sinks": [{"path": "/etc/x"}]}, "sinks.0.kind = None"),
        ({"sinks": [{"kind": "mqtt", "password_file": "x"}]}, "sinks.0.password_file"),
        ({"sinks": [{"kind": "email", "username": "x"}]}, "sinks.0.username"),
        ({"sinks": [{"kind": "webhook", "token_file": "x"}]}, "sinks.0.token_file"),
        ({"sinks": [{"kind": "webhook", "headers": ["A: b"]}]}, "sinks.0.headers"),
        ({"sinks": [{"kind": "webhook", "ca_file": "x"}]}, "sinks.0.ca_file"),
        ({"sinks": [{"kind": "webhook", "url": "https://a:b@c/"}]}, "a password in sinks.0.url"),
        ({"sinks": [{"kind": "webhook", "command": ["x"]}]}, "sinks.0.command"),
        ({"source": {"path": "/etc/passwd"}}, "source.path"),
        ({"source": {"kind": "csv"}}, "source.kind"),
        ({"source": {"password_file": "/x"}}, "source.password_file"),
        ({"source": {"endpoint": "opc.tcp://x"}}, "source.endpoint"),
        ({"source": {"host": "x"}}, "source.host"),
        ({"exchange": {"url": "http://elsewhere"}}, "exchange"),
        ({"projection": {"file": "/x"}}, "projection"),
        ({"sync": {"gate": 0}}, "sync.gate"),
        ({"sync": {"trust": "members"}}, "sync.trust"),
        ({"sync": {"max_shift": 1e9}}, "sync.max_shift"),
        ({"sync": {"push": True}}, "sync.push"),
        ({"sync": {"devices": ["x"]}}, "sync.devices"),
        ({"report": {"report_values": True}}, "report.report_values"),
        ({"report": {"follow": False}}, "report.follow"),
        ({"state": "/x"}, "state"),
        ({"device": "x"}, "device"),
        ({"log": {"level": "debug"}}, "log"),
        ({"next": {"state": "x"}}, "next"),
        ({"devices": []}, "devices"),
    ],
)
def test_what_only_the_own_file_may_set_is_refused_by_its_name(own, tables, key):
    with pytest.raises(SettingError, match=f"found {key}".replace("[", r"\[")) as refused:
        check_tables(tables)
    assert "only the device's own file sets it" in str(refused.value)
    with pytest.raises(SettingError, match=f"found {key}".replace("[", r"\[")):
        with_fleet_tables(own(), tables)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ([], "is no table"),
        ({"monitor": 4}, "expected a table"),
        ({"monitor": {"limit": {"a": 1}}}, "expected a value or a list"),
        ({"monitor": {"limit": None}}, "expected a value or a list"),
        ({"monitor": {"limit": float("nan")}}, "is no plain JSON"),
        ({"monitor": {"commissioning": "x" * 20000}}, "bytes, expected 16384 at most"),
        ({"sinks": {}}, r"expected at most 8 \[\[sinks\]\]"),
        ({"sinks": [{"kind": "syslog"}] * 9}, "expected at most 8"),
        ({"sinks": ["syslog"]}, "expected a table"),
        ({"report": {"every_s": 0}}, "expected above 0 and at most 3600"),
        ({"report": {"every_s": 1e9}}, "expected above 0 and at most 3600"),
        ({"report": {"every_s": True}}, "expected above 0 and at most 3600"),
    ],
)
def test_what_no_configuration_can_be_is_refused(tables, why):
    with pytest.raises(SettingError, match=why):
        check_tables(tables)


def test_every_key_that_may_be_set_is_a_key_of_an_agent_and_no_path():
    for table, keys in {**ALLOWED_KEYS, "sinks": SINK_KEYS}.items():
        known = {each.name: each for each in fields(TABLES.get(table, SinkConfig))}
        assert set(keys) <= set(known)
        for key in keys:
            assert "Path" not in str(known[key].type)


# What wins


def test_the_devices_own_file_environment_and_flags_win_over_the_fleet(own):
    tables = {
        "monitor": {"limit": 9.0, "votes": [2, 3]},
        "sync": {"every_s": 7.0, "jitter": 0.5},
        "save": {"every": 5, "every_s": 6.0},
    }
    config = own("[sync]\nevery_s = 60.0\n", "save.every=50", environment={
        "EDGEMERGE_SAVE__EVERY_S": "2",
    })  # fmt: skip
    found = with_fleet_tables(config, tables)
    assert (found.sync.every_s, found.sync.jitter) == (60.0, 0.5)
    assert (found.save.every, found.save.every_s) == (50, 2.0)
    assert (found.monitor.limit, found.monitor.votes) == (9.0, (2, 3))
    assert found.exchange == config.exchange
    assert with_fleet_tables(config, {}) == config
    origins = origins_of(found, FleetConfiguration(3, tables, 3))
    assert origins["sync.every_s"] == str(config.file)
    assert origins["sync.jitter"] == "the fleet's configuration, version 3"
    assert origins["save.every"] == "the environment or a flag"
    assert origins["monitor.votes"] == "the fleet's configuration, version 3"


def test_a_limit_of_the_own_file_wins_over_a_promise_of_the_fleet(own):
    tables = {"monitor": {"false_alarms": "1 per day", "votes": [1, 2]}}
    found = with_fleet_tables(own("[monitor]\nlimit = 5.0\n"), tables)
    assert (found.monitor.limit, found.monitor.false_alarms) == (5.0, None)
    assert found.monitor.votes == (1, 2)
    origins = origins_of(found, FleetConfiguration(1, tables, 1))
    assert "monitor.false_alarms" not in origins
    below = {"monitor": {"false_alarms": "1 per day", "votes": [1, 2]}}
    assert overlay(below, {"monitor": {"limit": 4}}) == {"monitor": {"votes": [1, 2], "limit": 4}}


def test_sinks_of_the_fleet_come_behind_those_of_the_device(own):
    tables = {"sinks": [{"kind": "mqtt", "site": "{device}"}]}
    found = with_fleet_tables(own('[[sinks]]\nkind = "jsonl"\npath = "-"\n'), tables)
    assert [each.kind for each in found.sinks] == ["jsonl", "mqtt"]
    assert found.sinks[1].site == "pump-1"
    assert [each.kind for each in with_fleet_tables(own(), tables).sinks] == ["mqtt"]


def test_each_device_of_a_gateway_has_its_own_tables_on_top(tmp_path):
    (tmp_path / "gateway.toml").write_text(
        'state = "state"\n[projection]\nn_inputs = 6\n[source]\nkind = "tail"\n'
        'path = "{device}.csv"\n[[devices]]\ndevice = "a"\n[devices.sync]\nevery_s = 1.0\n'
        '[[devices]]\ndevice = "b"\n'
    )
    devices = read_configuration(tmp_path / "gateway.toml", environment={}).devices
    found = [with_fleet_tables(each, {"sync": {"every_s": 9.0}}) for each in devices]
    assert [each.sync.every_s for each in found] == [1.0, 9.0]


def test_a_file_is_read_and_checked_before_it_is_sent(tmp_path):
    path = tmp_path / "pumps.toml"
    path.write_text('[monitor]\nlimit = 5\n[[sinks]]\nkind = "syslog"\nhost = "log"\n')
    assert read_fleet_tables(path) == {
        "monitor": {"limit": 5},
        "sinks": [{"kind": "syslog", "host": "log"}],
    }
    for text, why in (
        ("[monitor]\nlimt = 5\n", "Unknown key 'monitor.limt'"),
        ("[monitor]\nlimit = -5\n", "expected above 0"),
        ('[monitor]\nlimit = 5\nfalse_alarms = "1 per day"\n', "expected one of them"),
        ('[[sinks]]\nkind = "syslog"\nport = 0\n', "expected 1 to 65535"),
        ("[sync]\nevery_s = 'often'\n", "expected a number"),
        ("device = 1979-05-27\n", "is no plain JSON"),
    ):
        path.write_text(text)
        with pytest.raises(SettingError, match=why):
            read_fleet_tables(path)


# On a running agent


@pytest.fixture
def hub(tmp_path):
    with running(str(tmp_path / "hub.db")) as found:
        operator = found.operator
        operator.create_fleet("pumps", shared())
        yield found, operator
        operator.close()


def enrolled(hub, folder, more="", *overrides):
    (folder / "token").write_text(hub.enrol("pumps", "pump-1"))
    (folder / "token").chmod(0o600)
    (folder / "agent.toml").write_text(
        f"""
        device = "pump-1"
        state = "state"
        [source]
        kind = "tail"
        path = "rows.csv"
        header = false
        [exchange]
        kind = "http"
        url = "{hub.url}"
        fleet = "pumps"
        token_file = "token"
        [report]
        every_s = 0.05
        {more}
        """
    )
    write_rows(folder / "rows.csv", stream(40))
    return read_config(folder / "agent.toml", environment={}, overrides=overrides)


def state_of(operator):
    (found,) = operator.configuration("pumps")["devices"]
    return found["state"], found["in_force"], found["why"]


def status(config):
    return send_command(config.state, "status", DEADLINE_S)


@pytest.mark.long
@pytest.mark.slow
def test_a_version_is_applied_without_a_restart_and_undone_by_one_command(hub, tmp_path):
    server, operator = hub
    config = enrolled(server, tmp_path, "[save]\nevery = 77\n")
    tables = {
        "monitor": {"limit": 9.0},
        "quality": {"stuck_rows": 5},
        "sync": {"every_s": 1000.0},
        "save": {"every": 3, "every_s": 4.0},
        "report": {"every_s": 0.07},
        "sinks": [{"kind": "syslog"}],
    }
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        assert "configuration" not in status(config)
        operator.configure("pumps", tables)
        until(lambda: state_of(operator) == ("applied", 1, "after its next restart: sinks"))
        found = status(config)
        assert found["monitor"]["limit"]["value"] == 9.0
        assert found["configuration"] == {
            "version": 1, "seen": 1, "refused": "", "restart": ["sinks"]
        }  # fmt: skip
        write_rows(tmp_path / "rows.csv", stream(5, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 45)  # detection goes on
        operator.configure("pumps", {"monitor": {"limit": 3.0, "votes": [9, 1]}})
        until(lambda: state_of(operator)[0] == "refused")
        assert "monitor.votes = [9, 1]" in state_of(operator)[2]
        assert state_of(operator)[1] == 1
        assert status(config)["monitor"]["limit"]["value"] == 9.0
        operator.undo_configuration("pumps", 2)
        until(lambda: state_of(operator)[:2] == ("applied", 3))
        operator.undo_configuration("pumps", 3)  # the undoing, to the refused one
        until(lambda: state_of(operator)[:2] == ("refused", 3))
        operator.configure("pumps", {})
        until(lambda: state_of(operator) == ("applied", 5, ""))
        assert status(config)["monitor"]["limit"]["value"] != 9.0
        assert len(agent.listener.verdicts) == 45
    assert agent.code == 0


@pytest.mark.slow
def test_after_a_restart_the_version_holds_also_without_the_server(hub, tmp_path):
    server, operator = hub
    config = enrolled(server, tmp_path, "[monitor]\nvotes = [2, 4]\n")
    tables = {"monitor": {"limit": 9.0, "votes": [1, 1]}, "sinks": [{"kind": "syslog"}]}
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        operator.configure("pumps", tables, device="pump-1")
        until(lambda: state_of(operator)[0] == "applied")
    away = read_config(config.file, environment={}, overrides=["exchange.url=http://127.0.0.1:9"])
    with Running(away):
        until((config.state / SOCKET_NAME).exists)
        found = status(away)
        assert found["monitor"]["limit"]["value"] == 9.0
        assert found["configuration"] == {"version": 1, "seen": 1, "refused": "", "restart": []}
    folder = StateFolder(config.state)
    assert folder.read().monitor.options["votes"] == (2, 4)  # of its own file
    folder.close()


@pytest.mark.slow
def test_a_new_device_takes_features_from_the_fleet_and_an_old_one_refuses_others(hub, tmp_path):
    server, operator = hub
    wide = Projection(n_inputs=12, n_hidden=8, seed=7)
    operator.create_fleet("windows", wide)
    operator.configure("windows", {"features": {"kind": "window", "length": 4,
                                                "statistics": ["mean", "std"]}})  # fmt: skip
    config = enrolled(server, tmp_path, "", "exchange.fleet=windows")
    (tmp_path / "token").write_text(server.enrol("windows", "pump-1"))

    def state():
        (found,) = operator.configuration("windows")["devices"]
        return found["state"], found["in_force"], found["why"]

    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 10)  # four rows each
        until(lambda: state()[0] == "applied")
        operator.configure("windows", {"features": {"kind": "window", "length": 8,
                                                    "statistics": ["mean", "std"]}})  # fmt: skip
        until(lambda: state()[0] == "refused")
        assert "it changes features.length, and so what a sample is" in state()[2]
        assert state()[1] == 1
        write_rows(tmp_path / "rows.csv", stream(4, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 11)
    with Running(config) as agent:  # version 1 holds after a restart
        write_rows(tmp_path / "rows.csv", stream(4, 2), "a")
        until(lambda: len(agent.listener.verdicts) == 1)


class Recorder:
    """A part of an agent that remembers what it was changed to."""

    def __init__(self):
        self.changes = []

    def change(self, *settings):
        self.changes += settings


def test_each_part_of_a_running_agent_follows_its_table_and_no_other(own):
    config = own("[save]\nevery = 77\n[features]\nrate_hz = 8.0\n")
    memory = AgentState("pump-1", 1, make_monitor(config, config.projection))
    parts = {name: Recorder() for name in ("keeper", "syncing", "reporting", "quality")}
    agent = Agent(memory, None, None, sinks=[], reviews=None, **parts)
    follow = Reconfiguration(config, config, agent)

    def changes():
        return {name: each.changes[-1] for name, each in parts.items() if each.changes}

    monitor, restart = follow.apply({"monitor": {"limit": 9.0}})
    assert (monitor.limit, restart) == (9.0, ())
    assert memory.monitor.limit.value == 9.0
    assert changes() == {"keeper": config.save}
    follow.apply({"sync": {"every_s": 7.0}, "save": {"every": 5, "every_s": 2.0}})
    assert changes() == {
        "syncing": replace(config.sync, every_s=7.0),
        "keeper": SaveConfig(every=77, every_s=2.0),
    }
    assert memory.monitor.limit.value != 9.0
    follow.apply({"report": {"every_s": 9.0}, "quality": {"stuck_rows": 5}})
    assert changes()["reporting"].every_s == 9.0
    assert changes()["quality"] == QualityConfig(stuck_rows=5, rate_hz=8.0)
    assert changes()["syncing"] == config.sync  # the version has none any more
    memory.index = 1
    before = changes()
    for wrong in ({"features": {"length": 5}}, {"learner": {"kind": "detector"}}):
        with pytest.raises(
            SettingError, match="so what a sample is, but this device has 1 samples"
        ):
            follow.apply(wrong | {"save": {"every_s": 3.0}})
    assert changes() == before
    assert follow.apply({"sinks": [{"kind": "syslog"}]})[1] == ("sinks",)
    assert follow.apply({"sinks": [{"kind": "syslog"}], "save": {"every_s": 1.0}})[1] == ("sinks",)
    assert follow.apply({})[1] == ()


def test_a_schedule_follows_another_interval_without_waiting_for_the_old_one():
    schedule = SyncSchedule(3600.0, 0.0, "pump-1")
    schedule.start(0.0)
    schedule.succeeded(100.0)
    assert schedule.next == 3700.0
    schedule.change(60.0, 0.0, 200.0)
    assert schedule.next == 260.0
    schedule.change(5000.0, 0.0, 210.0)  # the next one comes as planned
    assert schedule.next == 260.0
    schedule.succeeded(260.0)
    assert schedule.next == 5260.0
    schedule.change(0.0, 0.0, 300.0)
    assert not schedule.due(1e9)
    reports = ReportSchedule(1.0, "pump-1")
    reports.change(7.0)
    reports.begun(100.0)
    reports.succeeded(100.0, None)
    assert (reports.due(106.9), reports.due(107.0)) == (False, True)


def test_data_are_looked_at_by_the_new_settings():
    now = [0.0]
    clocks = Clocks(lambda: now[0], lambda: now[0])
    quality = DataQuality(QualityConfig(no_data_s=0.0), clocks=clocks, live=True)

    def problems():
        quality.tend(skipped=0, why="", waiting=str)
        return [each.name for each in quality.problems]

    now[0] = 100.0
    assert problems() == []
    quality.change(QualityConfig(no_data_s=5.0))
    now[0] = 106.0
    assert problems() == ["no data"]
    quality.change(QualityConfig(no_data_s=50.0))
    assert problems() == []


@pytest.mark.parametrize(
    "tables",
    [
        {"features": {"kind": "spectrum", "rate_hz": 8.0}},  # does not fit the projection
        {"sinks": [{"kind": "webhook", "url": "no address"}]},
        {"sinks": [{"kind": "exec", "command": ["true"]}]},  # written into the file by hand
        {"monitor": {"limit": "high"}},
    ],
)
def test_a_bad_document_never_stops_detection_at_the_start(tmp_path, own, tables):
    config = own("[report]\nevery_s = 0.0\n[sync]\nevery_s = 0.0\n")
    config.state.mkdir()
    held = {"version": 4, "tables": tables, "seen": 4, "refused": "", "restart": []}
    (config.state / HELD_FILE).write_text(json.dumps(held))
    write_rows(tmp_path / "rows.csv", stream(30))
    listener = Listener()
    assert run(config, stop=Event(), sinks=[listener]) == 0
    assert len(listener.verdicts) == 30
    after = FleetConfiguration.read(config.state)
    assert after.version == 0
    assert after.tables == {}


def test_what_was_refused_is_looked_at_again_after_a_restart(tmp_path, own):
    config = own("[report]\nevery_s = 0.0\n[sync]\nevery_s = 0.0\n")
    write_rows(tmp_path / "rows.csv", stream(30))
    assert run(config, stop=Event()) == 0
    folder = StateFolder(config.state)
    memory = folder.read()
    wanted = {"version": 2, "tables": {"monitor": {"limit": 9.0}}}
    memory.desired = DesiredState(5, configuration=wanted).plain()
    folder.write(state_tensors(memory))
    folder.close()
    FleetConfiguration(seen=2, refused="it did not fit the file then").save(config.state)
    write_rows(tmp_path / "rows.csv", stream(200, 1), "a")
    assert run(config, stop=Event()) == 0
    assert FleetConfiguration.read(config.state) == FleetConfiguration(2, wanted["tables"], 2)


def test_a_broken_file_counts_as_none(tmp_path):
    for text in ("", "[]", '{"version": 1, "nosuch": 2}', '{"tables": {"state": "x"}}'):
        (tmp_path / HELD_FILE).write_text(text)
        assert FleetConfiguration.read(tmp_path) == FleetConfiguration()
    held = FleetConfiguration(3, {"sync": {"every_s": 5}}, 4, "why", ("sinks",))
    held.save(tmp_path)
    assert FleetConfiguration.read(tmp_path) == replace(held, restart=())


def test_an_agent_that_does_not_follow_applies_nothing(tmp_path, own):
    config = own("[report]\nevery_s = 0.0\nfollow = false\n[sync]\nevery_s = 0.0\n")
    config.state.mkdir()
    FleetConfiguration(1, {"monitor": {"limit": 9.0}}, 1).save(config.state)
    write_rows(tmp_path / "rows.csv", stream(200))
    listener = Listener()
    assert run(config, stop=Event(), sinks=[listener]) == 0
    assert listener.verdicts[-1].limit != 9.0
