"""The settings and values of a device on its page."""

import pytest

from edgemerge.server.schemas import ConfigurationRequest
from tests.server.reporting import report
from tests.server.signing_in import Page
from tests.server.world import FLEET, ROOT

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}/devices/pump-1"
BAD = "<img src=x onerror=alert(1)>"


@pytest.fixture
def world(world):
    world.caller("pump-1")
    return world


def tell(world, **status):
    world.service.take_report(FLEET, "pump-1", report(world.now, **status), world.now)


def section(operator, name="settings"):
    return Page(operator.get(PAGE).text).text("section", id=f"part-{name}")


def save(operator, **fields):
    return operator.post(f"{PAGE}/settings", {"csrf": operator.csrf(), "kind": "own", **fields})


def test_settings_are_saved_applied_refused_and_undone(world, operator):
    tell(world)
    assert "as the device's own file says" in section(operator)
    answer = save(operator, label=BAD, kind="limit", limit="5,5", comment="why not")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}#settings")
    (made,) = world.service.settings.versions(FLEET, "pump-1")
    assert (made.label, made.limit, made.comment) == (BAD, 5.5, "why not")
    assert "Version 1 will be applied when the device next reports" in section(operator)
    text = operator.get(PAGE).text
    assert BAD not in text
    assert Page(text).text("h1").startswith(BAD)
    assert 'value="5.5"' in text
    tell(world, settings={"version": 1, "refused": ""})
    assert "applied version 1" in section(operator)
    tell(world, settings={"version": 1, "refused": BAD})
    assert f"refused version 1, and goes on as before: {BAD}" in section(operator)
    save(operator, kind="false_alarms", false_alarms="2 per week")
    assert world.service.settings.versions(FLEET, "pump-1")[0].false_alarms == "2 per week"
    undone = operator.post(f"{PAGE}/settings/undo", {"csrf": operator.csrf(), "version": "2"})
    assert undone.status_code == 303
    newest = world.service.settings.versions(FLEET, "pump-1")[0]
    assert (newest.version, newest.limit, newest.undoes) == (3, 5.5, 2)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"kind": "limit", "limit": "much"}, 422, "expected a number such as 4.5"),
        ({"kind": "limit", "limit": "-4"}, 422, "limit"),
        ({"kind": "limit", "limit": "nan"}, 422, "limit"),
        ({"kind": "false_alarms", "false_alarms": "seldom"}, 422, "expected such as"),
        ({"kind": "false_alarms", "false_alarms": ""}, 422, "false_alarms"),
        ({"kind": "exec"}, 422, "expected own, limit or false_alarms"),
    ],
)
def test_what_is_wrong_is_said_on_the_page(world, operator, fields, status, words):
    answer = save(operator, **fields)
    assert answer.status_code == status
    (alert,) = [text for a, text in Page(answer.text).all("p") if a.get("role") == "alert"]
    assert words in alert
    assert world.service.settings.versions(FLEET, "pump-1") == []


def test_an_undo_of_another_version_says_so(operator):
    save(operator, label="a")
    save(operator, label="b")
    answer = operator.post(f"{PAGE}/settings/undo", {"csrf": operator.csrf(), "version": "1"})
    assert answer.status_code == 409
    assert "look again" in answer.text
    assert operator.post(f"{PAGE}/settings/undo", {"csrf": operator.csrf()}).status_code == 422


def test_forms_need_their_token(world, operator):
    for path in ("settings", "settings/undo"):
        answer = operator.post(f"{PAGE}/{path}", {"kind": "own", "version": "1"})
        assert answer.status_code == 403
    assert world.service.settings.versions(FLEET, "pump-1") == []


def test_values_are_shown_for_devices_that_report_them(world, operator):
    tell(world)
    assert "Values now" not in operator.get(PAGE).text
    values = [
        {"name": BAD, "value": -2.5, "unit": "°C"},
        {"name": "flow", "value": None, "unit": ""},
    ]
    tell(world, values=values)
    found = section(operator, "values")
    assert f"{BAD} −2.5 °C" in found
    assert "flow –" in found
    assert BAD not in operator.get(PAGE).text
    tell(world)
    assert "Values now" not in operator.get(PAGE).text


def test_the_configuration_of_the_fleet_is_shown_with_what_became_of_it(world, operator):
    tell(world)
    assert "Configuration of the fleet" not in section(operator)
    asked = ConfigurationRequest(tables={"monitor": {"commissioning": BAD}, "save": {"every": 9}})
    world.service.configurations.change(FLEET, "", asked, ROOT)
    assert "Version 1 will be applied when the device next reports" in section(operator)
    text = operator.get(PAGE).text
    assert BAD not in text
    assert "save.every = 9" in section(operator)
    tell(world, configuration={"version": 0, "seen": 1, "refused": BAD})
    assert f"refused version 1, and goes on with its own file: {BAD}" in section(operator)
    tell(world, configuration={"version": 1, "seen": 1, "restart": ["sinks"]})
    assert "applied version 1; after its next restart: sinks" in section(operator)
