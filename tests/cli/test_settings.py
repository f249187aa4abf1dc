"""The command that shows and changes the label and limit of a device, with a server."""

import time

import pytest

from tests.cli.calls import failure
from tests.server.reporting import said

pytestmark = pytest.mark.slow
PUMP = "pump-1"


def test_settings_are_shown_changed_and_undone(hub, fleet, client):
    assert hub.told("settings", fleet, PUMP)["state"] == "none"
    made = hub.fleet("settings", fleet, PUMP, "--label", "Pump of hall B", "--limit", 5)
    assert "label Pump of hall B, limit 5" in made.stdout
    assert "applies them when it next reports" in made.stderr
    assert client.desired().settings["limit"] == 5.0
    client.send(said(time.time(), settings={"version": 1, "refused": "it does not fit"}))
    assert "refused: it does not fit" in hub.fleet("settings", fleet, PUMP).stdout
    after = hub.told("settings", fleet, PUMP, "--false-alarms", "1 per week", "--comment", "x")
    assert (after["label"], after["limit"]) == ("Pump of hall B", None)  # the label stays
    assert (after["false_alarms"], after["versions"][0]["comment"]) == ("1 per week", "x")
    own = hub.told("settings", fleet, PUMP, "--own-limit")
    assert (own["version"], own["false_alarms"]) == (3, None)
    back = hub.told("settings", fleet, PUMP, "--undo", 3)
    assert (back["version"], back["false_alarms"]) == (4, "1 per week")
    assert "(undoes 3)" in hub.fleet("settings", fleet, PUMP).stdout


@pytest.mark.usefixtures("client")
def test_mistakes_are_told(hub, fleet):
    wrong = lambda *words: hub.fleet("settings", fleet, PUMP, *words)  # noqa: E731
    assert "expected one of --limit" in wrong("--limit", 4, "--own-limit").stderr
    assert "or --undo alone" in wrong("--undo", 1, "--label", "x").stderr
    assert "expected such as" in failure(wrong("--false-alarms", "seldom"))
    assert "look again" in failure(wrong("--undo", 7))
    assert "no device nobody" in failure(hub.fleet("settings", fleet, "nobody"))
