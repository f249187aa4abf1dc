"""Invitations for a list of devices, and one configuration for all of them."""

import json
import stat
import time

import pytest

from edgemerge.agent.config import FleetConfiguration
from edgemerge.cli.fleet import read_device_list
from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import ReportClient
from tests.cli.calls import call, failure
from tests.server.reporting import said


@pytest.fixture
def listed(tmp_path):
    """Return what writes a list of devices."""

    def write(text, encoding="utf-8"):
        path = tmp_path / "devices.csv"
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_a_list_has_names_and_labels(listed):
    text = 'Device,label,hall\npump-1,"Pump 1, left",B\n\npump-2,,C\n'
    assert read_device_list(listed(text)) == {"pump-1": "Pump 1, left", "pump-2": ""}
    assert read_device_list(listed("device\npump-1\n")) == {"pump-1": ""}
    excel = listed("label;device\nLinks;pump-1\n", "utf-8-sig")
    assert read_device_list(excel) == {"pump-1": "Links"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"found the columns \[\] in .*, expected one named device"),
        ("name\npump-1\n", r"found the columns \['name'\]"),
        ("device\n", "names no device"),
        ("device\npump-1\npump-2\npump-1\n", "line 4: pump-1 is in line 2 already"),
        ("device\npump 1\n", "line 2: found the device name 'pump 1'.*such as pump-1"),
        ("device,label\n,left\n", "line 2: no device"),
        ("device,label\npump-1," + "x" * 101 + "\n", "line 2: the label of pump-1 is too long"),
        ("device\n" + "a b\n" * 12, r"line 11: .*; and 2 more. Nothing was made."),
    ],
)
def test_a_list_that_cannot_be_is_refused_with_its_lines(listed, text, why):
    with pytest.raises(SettingError, match=why):
        read_device_list(listed(text))


@pytest.mark.slow
def test_each_device_of_a_list_gets_its_invitation_and_repeating_is_safe(
    hub, fleet, tmp_path, listed
):
    path, out = listed("device,label\npump-1,Left\npump-2,\n"), tmp_path / "invitations"
    made = hub.fleet("invite", fleet, "--from", path, "--out", out)
    assert made.exit_code == 0, made.stderr
    assert "2 of 2 devices invited, each once, until" in made.stderr
    files = [out / "pump-1", out / "pump-2"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600, 0o600]
    words = ("--invitation-file", files[0], "--token-file", tmp_path / "token")
    assert call("enrol", hub.url, fleet, "pump-1", *words).exit_code == 0
    assert hub.told("settings", fleet, "pump-1")["label"] == "Left"
    before = [each.read_text() for each in files]
    path = listed("device\npump-1\npump-2\npump-3\n")
    again = hub.told("invite", fleet, "--from", path, "--out", out)
    assert [each["what"] for each in again] == [
        "left out: enrolled before",
        "left out: invited before",
        "invited",
    ]
    assert [each.read_text() for each in files] == before
    hub.told("settings", fleet, "pump-1", "--limit", 5)
    path = listed("device,label\npump-1,Right\npump-2,\npump-3,\n")
    made = hub.fleet("invite", fleet, "--from", path, "--out", out, "--again")
    assert "3 of 3 devices invited" in made.stderr
    assert [each.read_text() for each in files] != before
    settings = hub.told("settings", fleet, "pump-1")
    assert (settings["label"], settings["limit"]) == ("Right", 5.0)  # the limit stays


@pytest.mark.slow
def test_nothing_is_made_of_a_list_with_a_mistake(hub, fleet, tmp_path, listed):
    out = tmp_path / "invitations"
    words = failure(hub.fleet("invite", fleet, "--from", listed("device\na\na\n"), "--out", out))
    assert "line 3: a is in line 2 already" in words
    assert not out.exists()
    path = listed("device\na\n")
    assert "--from needs --out FOLDER" in hub.fleet("invite", fleet, "--from", path).stderr
    wrong = hub.fleet("invite", fleet, "b", "--from", path, "--out", out)
    assert "takes no DEVICE" in wrong.stderr
    assert "--again is for --from" in hub.fleet("invite", fleet, "b", "--again").stderr


@pytest.mark.slow
def test_a_configuration_is_shown_changed_and_undone(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    client = ReportClient(hub.url, fleet, "pump-1", (tmp_path / "token").read_text().strip())
    path = tmp_path / "pumps.toml"
    path.write_text("[monitor]\nlimit = 5\n[sync]\nevery_s = 60\n")
    made = hub.fleet("configure", fleet, "--file", path, "--comment", "calmer")
    assert made.exit_code == 0, made.stderr
    assert "monitor.limit = 5, sync.every_s = 60" in made.stdout
    assert "Devices apply it when they next report." in made.stderr
    assert client.desired().configuration == {
        "version": 1,
        "tables": {"monitor": {"limit": 5}, "sync": {"every_s": 60}},
    }
    about = {"version": 0, "seen": 1, "refused": "it does not fit"}
    client.send(said(time.time(), configuration=about))
    shown = hub.fleet("configure", fleet).stdout
    assert "refused" in shown
    assert "it does not fit" in shown
    path.write_text("[save]\nevery = 7\n")
    one = hub.told("configure", fleet, "--device", "pump-1", "--file", path)
    assert (one["version"], one["tables"]) == (2, {"save": {"every": 7}})
    assert "'save': {'every': 7}" in str(client.desired().configuration)
    back = hub.told("configure", fleet, "--device", "pump-1", "--undo", 2)
    assert (back["version"], back["versions"][0]["undoes"]) == (3, 2)
    back = hub.fleet("configure", fleet, "--undo", 1)
    assert "nothing (undoes 1)" in back.stdout
    assert client.desired().configuration == {"version": 4, "tables": {}}
    path.write_text("[sync]\ngate = 0\n")
    assert "found sync.gate" in failure(hub.fleet("configure", fleet, "--file", path))
    both = hub.fleet("configure", fleet, "--file", path, "--undo", 1)
    assert "expected one of --file and --undo" in both.stderr
    client.close()


CONFIG = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 2
[sync]
every_s = 60.0
"""


def test_the_agent_and_the_doctor_say_what_holds_and_who_set_it(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG)
    tables = {"monitor": {"limit": 9.0}, "sync": {"every_s": 1.0}}
    (tmp_path / "state").mkdir()
    FleetConfiguration(3, tables, 4, "it does not fit").save(tmp_path / "state")
    shown = call("agent", path, "--check")
    assert shown.exit_code == 0, shown.stderr
    assert "monitor.limit is set by the fleet's configuration, version 3" in shown.stdout
    assert "configuration version 3; version 4 was refused: it does not fit" in shown.stdout
    plain = json.loads(call("agent", path, "--check", "--json").stdout)
    assert (plain["monitor"]["limit"], plain["sync"]["every_s"]) == (9.0, 60.0)
    assert plain["origins"]["sync.every_s"] == str(path)
    assert plain["fleet_configuration"]["version"] == 3
    found = json.loads(call("doctor", path, "--json").stdout)
    (about,) = [each for each in found if each["about"] == "fleet"]
    assert about["level"] == "warn"
    assert "version 4 was refused: it does not fit" in about["words"]
    path.write_text(CONFIG + "[report]\nfollow = false\n")
    plain = json.loads(call("agent", path, "--check", "--json").stdout)
    assert plain["monitor"]["limit"] is None
    assert plain["fleet_configuration"]["why"] == "report.follow is false"
