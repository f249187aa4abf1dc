"""The configuration of a fleet's agents: versions, overrides, undo, and what devices hear."""

import json

import pytest

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.exchange.configuration import check_tables, table_lines, without_addresses
from edgemerge.server.auth import Caller
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.main import create_app
from edgemerge.server.schemas import ConfigurationRequest, ReportedConfiguration
from edgemerge.server.settings import EVERY_DEVICE, MAX_VERSIONS, configuration_state
from tests.server.reporting import report
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT

PATH = f"/fleets/{FLEET}/configuration"
DEVICE_PATH = f"/fleets/{FLEET}/devices/pump-1/configuration"


@pytest.fixture
def world(any_world):
    any_world.caller("pump-1")
    any_world.caller("pump-2")
    return any_world


def change(world, tables, device=EVERY_DEVICE, comment=""):
    asked = ConfigurationRequest(tables=tables, comment=comment)
    return world.service.configurations.change(FLEET, device, asked, ROOT)


def undo(world, version, device=EVERY_DEVICE):
    return world.service.configurations.undo(FLEET, device, version, ROOT)


def desired(world, device="pump-1"):
    return world.service.choices.desired(FLEET, device)[1]


def test_a_version_reaches_all_devices_and_an_override_one(world):
    before = desired(world)
    assert before.configuration == {"version": 0, "tables": {}}
    made = change(world, {"monitor": {"limit": 5.0}, "save": {"every": 9}}, comment="calmer")
    assert (made.version, made.by, made.comment) == (1, "operator root", "calmer")
    both = {"version": 1, "tables": {"monitor": {"limit": 5.0}, "save": {"every": 9}}}
    for device in ("pump-1", "pump-2"):
        assert desired(world, device).configuration == both
        assert desired(world, device).revision > before.revision
        revision = world.service.choices.desired_revision(FLEET, device)
        assert revision == desired(world, device).revision
    second = desired(world, "pump-2")
    assert change(world, {"monitor": {"false_alarms": "1 per day"}}, "pump-1").version == 2
    tables = {"monitor": {"false_alarms": "1 per day"}, "save": {"every": 9}}
    assert desired(world).configuration == {"version": 2, "tables": tables}
    assert desired(world, "pump-2") == second
    assert change(world, {"monitor": {"limit": 5.0}, "save": {"every": 9}}).version == 1
    entry = world.service.audit_newest_first(FLEET, 2**62, 10, action="configure")[-1]
    assert (entry.subject, entry.actor) == ("all devices", "operator root")
    assert json.loads(entry.detail) == {
        "version": 1,
        "tables": both["tables"],
        "comment": "calmer",
    }


def test_one_command_goes_back_and_twice_is_once(world):
    change(world, {"save": {"every": 1}})
    change(world, {"save": {"every": 2}})
    change(world, {"save": {"every": 3}}, "pump-1")
    for _ in range(2):
        back = undo(world, 2)
        assert (back.version, back.tables, back.undoes) == (4, {"save": {"every": 1}}, 2)
    with pytest.raises(ChangedError, match=r"found version 4 .* expected 1: look again"):
        undo(world, 1)
    assert undo(world, 3, "pump-1").tables == {}
    assert desired(world).configuration == {"version": 5, "tables": {"save": {"every": 1}}}
    with pytest.raises(ChangedError):
        undo(world, 0)
    assert [each.version for each in world.service.configurations.versions(FLEET)] == [4, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"sinks": [{"kind": "exec", "command": ["x"]}]}, "sinks.0.kind = 'exec'"),
        ({"exchange": {"url": "x"}}, "found exchange in a fleet's configuration"),
        ({"sync": {"gate": 0}}, "found sync.gate"),
        ({"report": {"report_values": True}}, "found report.report_values"),
        ({"source": {"path": "/x"}}, "found source.path"),
        ({"monitor": {"limit": 5.0, "false_alarms": "1 per week"}}, "expected one of them"),
        ({"monitor": {"limit": "high"}}, "expected other types"),
    ],
)
def test_what_no_fleet_may_set_is_refused(world, tables, words):
    with pytest.raises(SettingError, match=words):
        change(world, tables)
    assert world.service.configurations.versions(FLEET) == []


def test_unknown_devices_and_fleets_have_none(world):
    with pytest.raises(UnknownError):
        change(world, {}, "nosuch")
    with pytest.raises(UnknownError):
        world.service.configurations.versions("nosuch")
    world.service.invite(FLEET, "pump-9", 60.0, ROOT)
    assert change(world, {"save": {"every": 1}}, "pump-9").version == 1  # before it has enrolled


def test_a_comment_is_one_line(world):
    with pytest.raises(SettingError, match="one printable line"):
        change(world, {}, comment="a\nb")


def test_old_versions_are_forgotten_and_the_fleet_takes_them_along(world):
    change(world, {"save": {"every": 7}}, "pump-1")
    for number in range(MAX_VERSIONS + 2):
        change(world, {"save": {"every": number + 1}})
    found = world.service.configurations.versions(FLEET)
    assert len(found) == MAX_VERSIONS
    assert found[0].version == MAX_VERSIONS + 3
    assert len(world.service.configurations.versions(FLEET, "pump-1")) == 1
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from configurations") == (0,)


def test_what_became_of_a_version():
    said = ReportedConfiguration
    assert configuration_state(0, None) == ("none", "")
    assert configuration_state(0, said()) == ("none", "")
    assert configuration_state(0, said(version=3, seen=3)) == ("waiting", "")
    assert configuration_state(2, None) == ("waiting", "")
    assert configuration_state(2, said(version=1, seen=1)) == ("waiting", "")
    assert configuration_state(2, said(version=1, seen=2, refused="why")) == ("refused", "why")
    assert configuration_state(2, said(version=2, seen=2)) == ("applied", "")
    waits = said(version=2, seen=2, restart=["sinks"])
    assert configuration_state(2, waits) == ("applied", "after its next restart: sinks")


def test_over_http_operators_change_it_and_devices_do_not(world):
    client = Visitor(create_app(world.service))

    def ask(method, path, body=None, who=world.operator_token):
        return client.ask(method, path, headers={"Authorization": f"Bearer {who}"}, json=body)

    assert ask("GET", PATH).json()["version"] == 0
    body = {"tables": {"save": {"every": 4}}, "comment": "why"}
    found = ask("PUT", PATH, body)
    assert found.status_code == 200
    assert found.json()["tables"] == body["tables"]
    assert [each["state"] for each in found.json()["devices"]] == ["waiting", "waiting"]
    said = report(world.now, configuration={"version": 1, "seen": 1})
    world.service.take_report(FLEET, "pump-1", said, world.now)
    states = {each["device"]: each for each in ask("GET", PATH).json()["devices"]}
    assert states["pump-1"] == {
        "device": "pump-1",
        "version": 1,
        "in_force": 1,
        "state": "applied",
        "why": "",
    }
    found = ask("PUT", DEVICE_PATH, {"tables": {"save": {"every": 5}}}).json()
    assert [each["device"] for each in found["devices"]] == ["pump-1"]
    pump = world.tokens["pump-1"]
    document = ask("GET", f"/fleets/{FLEET}/devices/pump-1/desired", who=pump).json()
    assert document["configuration"] == {"version": 2, "tables": {"save": {"every": 5}}}
    assert ask("DELETE", f"{DEVICE_PATH}/2").json()["tables"] == {}
    assert ask("GET", DEVICE_PATH).json()["version"] == 3
    assert ask("DELETE", f"{PATH}/7").status_code == 409
    assert ask("DELETE", f"{PATH}/1").json()["versions"][0]["undoes"] == 1
    wrong = ask("PUT", PATH, {"tables": {"sync": {"gate": 0}}})
    assert wrong.status_code == 422
    assert "found sync.gate" in wrong.text
    assert ask("PUT", PATH, {"tables": []}).status_code == 422
    for method, path in (
        *(("GET", PATH), ("PUT", PATH), ("DELETE", f"{PATH}/1")),
        *(("GET", DEVICE_PATH), ("PUT", DEVICE_PATH), ("DELETE", f"{DEVICE_PATH}/3")),
    ):
        assert ask(method, path, body, who=pump).status_code == 403


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://chat.example/hooks/k3y", "https://chat.example/…"),
        ("http://chat.example:8080?k3y", "http://chat.example:8080/…"),
        ("https://chat.example#k3y", "https://chat.example/…"),
        ("https://eve:k3y@chat.example/in", "https://chat.example/…"),
        ("chat.example/hooks/k3y", "…"),
        ("https:/chat.example/k3y", "…"),
        ("https://[k3y", "…"),
    ],
)
def test_of_an_address_only_the_host_is_shown(url, shown):
    tables = {"sinks": [{"kind": "webhook", "url": url, "template": '{"routing_key": "k3y"}'}]}
    found = without_addresses(tables)
    assert found == {"sinks": [{"kind": "webhook", "url": shown, "template": "…"}]}
    assert "k3y" not in " ".join(table_lines(found))
    for wrong in (shown, *([url] if shown == "…" else [])):
        with pytest.raises(SettingError, match=r"found no whole address in sinks\.0\.url") as why:
            check_tables({"sinks": [{"kind": "webhook", "url": wrong}]})
        assert "k3y" not in str(why.value)


def test_what_a_terminal_would_obey_is_escaped():
    (line,) = table_lines({"save": {"every": "\x9b2J\u202e"}})
    assert line.isprintable()
    assert line.isascii()


def test_only_those_who_may_set_it_see_where_webhooks_are(world):
    _, viewer = world.service.accounts.add("vera", "viewer", None, Caller("root", role="admin"))
    secret = "https://chat.example/hooks/k3y"
    sinks = [{"kind": "webhook", "url": secret}, {"kind": "syslog"}]
    for device in (EVERY_DEVICE, "pump-1"):
        change(world, {"sinks": sinks}, device)
    assert desired(world).configuration["tables"]["sinks"] == sinks
    client = Visitor(create_app(world.service))

    def ask(path, who):
        return client.ask("GET", path, headers={"Authorization": f"Bearer {who}"}).text

    for path in (PATH, DEVICE_PATH):
        assert ask(path, world.operator_token).count(secret) == 2  # now, and in the version
        seen = ask(path, viewer)
        assert secret not in seen
        assert seen.count("https://chat.example/") == 2
    for entry in world.service.audit_newest_first(FLEET, 2**62, 10, action="configure"):
        assert "k3y" not in entry.detail
        assert json.loads(entry.detail)["tables"]["sinks"][0]["url"] == "https://chat.example/…"
    client.sign_in(world.operator_token)
    page = client.get(f"/ui/fleets/{FLEET}/devices/pump-1").text
    assert "https://chat.example/…" in page
    assert "k3y" not in page
