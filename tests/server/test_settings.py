"""Settings of a device: versions, who may change them, what the device hears, going back."""

import json

import pytest

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.main import create_app
from edgemerge.server.schemas import SettingsRequest
from edgemerge.server.settings import MAX_VERSIONS, labels_of
from tests.server.reporting import report
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT

PATH = f"/fleets/{FLEET}/devices/pump-1/settings"
DESIRED = f"/fleets/{FLEET}/devices/pump-1/desired"


@pytest.fixture
def world(any_world):
    any_world.caller("pump-1")
    any_world.caller("pump-2")
    return any_world


def change(world, device="pump-1", **chosen):
    return world.service.settings.change(FLEET, device, SettingsRequest(**chosen), ROOT)


def desired(world, device="pump-1"):
    return world.service.choices.desired(FLEET, device)[1]


def tell(world, version, refused=""):
    settings = {"version": version, "refused": refused}
    said = report(world.now, settings=settings)
    world.service.take_report(FLEET, "pump-1", said, world.now)


def test_a_change_is_a_version_that_the_device_hears_of(world):
    before = desired(world)
    assert before.settings == {"version": 0, "label": "", "limit": None, "false_alarms": None}
    made = change(world, label=" Pump of hall B ", limit=5.0, comment="too nervous")
    assert (made.version, made.label, made.limit, made.by) == (
        1,
        "Pump of hall B",
        5.0,
        "operator root",
    )
    after = desired(world)
    assert after.settings == {
        "version": 1,
        "label": "Pump of hall B",
        "limit": 5.0,
        "false_alarms": None,
    }
    assert after.revision > before.revision
    assert world.service.choices.desired_revision(FLEET, "pump-1") == after.revision
    assert desired(world, "pump-2").revision == before.revision
    assert change(world, label="Pump of hall B", limit=5.0).version == 1  # the same again
    assert change(world, false_alarms="1 per week").version == 2
    with world.service.database.reading() as tx:
        assert labels_of(tx, FLEET) == {}
    change(world, "pump-2", label="x")
    with world.service.database.reading() as tx:
        assert labels_of(tx, FLEET) == {"pump-2": "x"}
    entry = world.service.audit_newest_first(FLEET, 2**62, 10, action="settings")[-1]
    assert (entry.subject, entry.actor) == ("pump-1", "operator root")
    assert json.loads(entry.detail) == {
        "version": 1,
        "label": "Pump of hall B",
        "limit": 5.0,
        "comment": "too nervous",
    }


def test_one_command_goes_back_and_twice_is_once(world):
    change(world, limit=5.0)
    change(world, limit=6.0)
    for _ in range(2):
        back = world.service.settings.undo(FLEET, "pump-1", 2, ROOT)
        assert (back.version, back.limit, back.undoes) == (3, 5.0, 2)
    with pytest.raises(ChangedError, match=r"found version 3 .* expected 1: look again"):
        world.service.settings.undo(FLEET, "pump-1", 1, ROOT)
    again = world.service.settings.undo(FLEET, "pump-1", 3, ROOT)  # undoing the undoing
    assert (again.version, again.limit) == (4, 6.0)
    change(world, "pump-2", limit=7.0)
    first = world.service.settings.undo(FLEET, "pump-2", 1, ROOT)
    assert first.chosen == {"label": "", "limit": None, "false_alarms": None}
    with pytest.raises(ChangedError):
        world.service.settings.undo(FLEET, "pump-2", 0, ROOT)


def test_a_version_is_above_what_the_device_knows(world):
    tell(world, 41)  # this database is older than the device's state
    assert change(world, limit=5.0).version == 42


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"limit": 5.0, "false_alarms": "1 per week"}, "expected one of them"),
        ({"false_alarms": "now and then"}, "expected such as"),
        ({"label": "a\nb"}, "expected one printable line"),
        ({"comment": "a\x00b"}, "expected one printable line"),
    ],
)
def test_what_no_agent_would_take_is_refused(world, wrong, words):
    with pytest.raises(SettingError, match=words):
        change(world, **wrong)
    assert world.service.settings.versions(FLEET, "pump-1") == []


def test_unknown_devices_have_none(world):
    with pytest.raises(UnknownError):
        change(world, "nosuch", limit=5.0)
    with pytest.raises(UnknownError):
        world.service.settings.versions(FLEET, "nosuch")


def test_old_versions_are_forgotten(world):
    for i in range(MAX_VERSIONS + 3):
        change(world, limit=1.0 + i)
    versions = [each.version for each in world.service.settings.versions(FLEET, "pump-1")]
    assert versions == list(range(MAX_VERSIONS + 3, 3, -1))


def test_they_are_gone_with_the_fleet(world):
    change(world, limit=5.0)
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        assert tx.rows("select * from settings") == []


def test_over_http(world):
    client = Visitor(create_app(world.service))
    token = f"Bearer {world.operator_token}"

    def ask(method, path, body=None, who=token):
        return client.ask(method, path, headers={"Authorization": who}, json=body)

    assert ask("GET", PATH).json()["state"] == "none"
    made = ask("PUT", PATH, {"label": "B", "limit": 5}).json()
    assert (made["version"], made["state"], made["limit"]) == (1, "waiting", 5.0)
    device = f"Bearer {world.tokens['pump-1']}"
    assert ask("GET", DESIRED, who=device).json()["settings"] == {
        "version": 1,
        "label": "B",
        "limit": 5.0,
        "false_alarms": None,
    }
    tell(world, 1)
    assert ask("GET", PATH).json()["state"] == "applied"
    ask("PUT", PATH, {"false_alarms": "1 per week"})
    assert ask("GET", PATH).json()["state"] == "waiting"
    tell(world, 2, "it does not fit")
    refused = ask("GET", PATH).json()
    assert (refused["state"], refused["why"]) == ("refused", "it does not fit")
    assert [each["version"] for each in refused["versions"]] == [2, 1]
    back = ask("DELETE", f"{PATH}/2").json()
    assert (back["version"], back["limit"], back["versions"][0]["undoes"]) == (3, 5.0, 2)
    assert ask("DELETE", f"{PATH}/1").status_code == 409
    for wrong in (
        {"limit": 0},
        {"limit": True},
        {"limit": 4, "false_alarms": "1 per week"},
        {"report_values": True},
        {"sinks": []},
        {"label": "x" * 101},
    ):
        assert ask("PUT", PATH, wrong).status_code == 422, wrong
    for method, path in (("GET", PATH), ("PUT", PATH), ("DELETE", f"{PATH}/3")):
        assert ask(method, path, {"limit": 4}, who=device).status_code == 403
