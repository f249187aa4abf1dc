"""Settings of the server: applied once, refused with a reason, kept over a restart."""

import json

import numpy as np
import pytest

from edgemerge import Detector, Monitor
from edgemerge.agent.background import ReportOutcome
from edgemerge.agent.config import MonitorConfig, read_config
from edgemerge.agent.reports import describe_values
from edgemerge.agent.reviewer import Reviewer
from edgemerge.agent.runner import follow_settings
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, AppliedSettings, state_from_bytes, state_to_bytes
from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import DesiredState, ReportAnswer, parse_desired
from tests.agent.reporting_desk import OK, Desk, P

OWN = MonitorConfig(false_alarms="1 per day", votes=(2, 3))
FILE = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 6
"""


class Saver:
    """Counts how often the state is saved."""

    trouble = ""

    def __init__(self):
        self.saved = 0

    def save(self):
        self.saved += 1
        return True


class Quiet:
    """A judge that has nothing to say."""

    def news(self):
        return []


@pytest.fixture
def memory():
    return AgentState("pump-1", 1, Monitor(Detector(P), **OWN.options))


@pytest.fixture
def saver():
    return Saver()


@pytest.fixture
def reviewer(memory, saver):
    return Reviewer(memory, Quiet(), saver, clock=lambda: 0.0, monitor=OWN)


def desired(memory, **settings):
    memory.desired = DesiredState(7, reviews=(), settings=settings).plain()


def test_a_limit_is_applied_once_and_saved(memory, reviewer, saver):
    desired(memory, version=3, label="Pump of hall B", limit=5.5, false_alarms=None)
    assert reviewer.tend()
    assert memory.settings == AppliedSettings(3, label="Pump of hall B", limit=5.5)
    assert memory.monitor.limit.value == 5.5
    assert memory.monitor.options == OWN.options | {"limit": 5.5, "false_alarms": None}
    assert saver.saved == 1
    memory.monitor.change(**OWN.options | {"limit": 9.0, "false_alarms": None})
    desired(memory, version=3, label="Pump of hall B", limit=5.5, false_alarms=None)
    assert not reviewer.tend()
    assert memory.monitor.limit.value == 9.0


def test_what_the_file_says_comes_back_when_the_setting_is_gone(memory, reviewer):
    desired(memory, version=1, label="", limit=5.5, false_alarms=None)
    reviewer.tend()
    desired(memory, version=2, label="", limit=None, false_alarms=None)
    assert reviewer.tend()
    assert memory.monitor.options == OWN.options
    desired(memory, version=3, label="", limit=None, false_alarms="2 per week")
    reviewer.tend()
    assert memory.monitor.options["false_alarms"] == "2 per week"
    desired(memory, version=0, label="", limit=None, false_alarms=None)  # a new server
    assert reviewer.tend()
    assert memory.monitor.options == OWN.options


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"limit": -1.0}, "found limit=-1.0, expected a finite number above 0"),
        ({"limit": "4"}, "found limit='4', expected a value of another type"),
        ({"limit": True}, "expected a value of another type"),
        ({"false_alarms": "now and then"}, "expected such as"),
        ({"limit": 4.0, "false_alarms": "1 per day"}, "expected one of them"),
        ({"label": None}, "found label=None"),
        ({"report_values": True}, "found the setting 'report_values', known are label, limit"),
        ({"sinks": [{"kind": "exec", "command": ["x"]}]}, "found the setting 'sinks'"),
        ({"exchange": {"url": "http://elsewhere"}}, "found the setting 'exchange'"),
        ({"gate": 0.0}, "found the setting 'gate'"),
        ({"votes": [1, 1]}, "found the setting 'votes'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(memory, reviewer, wrong, why):
    desired(memory, version=1, label="a", limit=5.5, false_alarms=None)
    reviewer.tend()
    before = memory.monitor.options
    desired(memory, version=2, **({"label": "b"} | wrong))
    assert reviewer.tend()
    assert memory.settings.version == 2
    assert why in memory.settings.refused
    assert (memory.settings.label, memory.settings.limit) == ("a", 5.5)
    assert memory.monitor.options == before
    desired(memory, version=3, label="b", limit=6.0, false_alarms=None)
    reviewer.tend()
    assert memory.settings == AppliedSettings(3, label="b", limit=6.0)


def test_an_agent_that_does_not_follow_applies_nothing(memory):
    alone = Reviewer(memory, Quiet(), Saver(), clock=lambda: 0.0, follow=False, monitor=OWN)
    desired(memory, version=1, label="", limit=5.5, false_alarms=None)
    assert not alone.tend()
    assert memory.monitor.options == OWN.options


def test_settings_survive_a_restart_also_with_another_file(memory, reviewer, tmp_path):
    desired(memory, version=4, label="B", limit=5.5, false_alarms=None)
    reviewer.tend()
    again = state_from_bytes(state_to_bytes(memory))
    assert again.settings == memory.settings
    (tmp_path / "agent.toml").write_text(FILE + '[monitor]\nfalse_alarms = "1 per week"\n')
    config = read_config(tmp_path / "agent.toml", environment={})
    follow_settings(again, config)
    assert again.monitor.limit.value == 5.5
    assert again.monitor.options["false_alarms"] is None


def test_states_without_settings_are_read(memory):
    data = state_to_bytes(memory)
    assert b'"settings"' in data
    assert state_from_bytes(data).settings == AppliedSettings()
    # Golden states of former versions have none: see tests/golden.


def test_the_document_carries_them_and_older_ones_have_none():
    document = {"format": 1, "revision": 7, "adopt": {"devices": None, "excluded": []}}
    assert parse_desired(document).settings is None
    given = {"version": 2, "label": "x", "limit": None, "false_alarms": None}
    found = parse_desired(document | {"settings": given})
    assert found.settings == given
    assert parse_desired(json.loads(json.dumps(found.plain()))) == found
    for wrong in (None, 5, {"version": "2"}, {"version": -1}, {}):
        assert parse_desired(document | {"settings": wrong}).settings is None


def test_only_servers_that_take_them_hear_of_settings_and_values():
    desk = Desk(Detector(P))
    desk.words |= {"monitor": Monitor(Detector(P)).status(), "reviews": {"done": 0}}
    values = [{"name": "pressure", "value": 2.5, "unit": "bar"}]
    desk.reporting._values = lambda: values
    desk.memory.settings = AppliedSettings(3, refused="no")
    first = desk.told_by(ReportOutcome(ReportAnswer(1.0, 0, 0, monitor=True, settings=True)))
    assert first.status.settings is None
    assert first.status.values is None
    second = desk.told_by(OK)
    assert (second.status.settings.version, second.status.settings.refused) == (3, "no")
    assert [each.model_dump() for each in second.status.values] == values
    third = desk.told_by(OK)
    assert (third.status.settings, third.status.values) == (None, None)


def test_values_are_reported_only_if_the_device_s_own_file_says_so(tmp_path):
    file = tmp_path / "agent.toml"
    for text, expected in (("", False), ("[report]\nreport_values = true\n", True)):
        file.write_text(FILE + text)
        assert read_config(file, environment={}).report.report_values is expected
    file.write_text(FILE + '[source]\ncolumns = ["a", "b"]\nunits = ["bar"]\n')
    with pytest.raises(SettingError, match=r"found 1 source.units .* expected 2, one for each"):
        read_config(file, environment={})


def test_values_have_names_and_units_and_are_finite_and_bounded():
    reading = Reading(np.array([-1.23456789, np.nan, np.inf]), names=("a", "b\x1b", "\x00"))
    assert describe_values(reading, ["x"], ["bar", "m" * 99]) == [
        {"name": "a", "value": -1.23457, "unit": "bar"},
        {"name": "b", "value": None, "unit": "m" * 40},
        {"name": "3", "value": None, "unit": ""},
    ]
    assert describe_values(None, ["x"], []) == []
    assert len(describe_values(Reading(np.zeros(500)), [], [])) == 64
